"""Which variables of the host a container is given: a list, so that nothing else of the host reaches a measurement."""

from collections.abc import Mapping

NAMES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "RANK",
    "THP_MEM_ALLOC_ENABLE",
    "TMPDIR",
    "TORCH_LOGS",
    "WORLD_SIZE",
)
PREFIXES = ("GLOO_", "HOROVOD_", "MALLOC_", "MASTER_", "NCCL_", "OMPI_", "PMIX_", "PMI_", "RESIREDUCE_", "SLURM_")
"""Which rank this is, how ranks find each other, and what changes memory, speed or results."""
CLIENT_NAMES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TERM", "USER", "XDG_RUNTIME_DIR")
CLIENT_PREFIXES = ("APPTAINER_", "http_", "https_")
"""What apptainer itself needs. It gives HOME and PATH of the host to no container."""


def passed(variables: Mapping[str, str]) -> list[str]:
    """Return the names of these variables that a container gets. PATH, PYTHONPATH and LD_LIBRARY_PATH never are.

    TMPDIR is, if the folder is bound: `Bind` of `benchmarks.runtimes.binds`.
    """
    return sorted(name for name in variables if name in NAMES or name.startswith(PREFIXES))


def for_apptainer(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to call apptainer in: it passes all of it on, so it must not be more than is meant.

    --cleanenv would pass nothing, not even what srun and mpirun say to each rank: each would take itself for rank 0.
    """
    own = {name for name in variables if name in CLIENT_NAMES or name.startswith(CLIENT_PREFIXES)}
    return {name: variables[name] for name in sorted(own | set(passed(variables)))}
