"""Settings that differ between clusters, read from one file: `slurm/partitions.default.yaml` explains its lines."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from benchmarks.core.checks import Check, allow, known_keys, within, wrong_fields
from benchmarks.core.config_reader import read_yaml
from benchmarks.core.run_config import RUNTIMES
from resireduce.errors import ConfigError, choose, is_count

SITE_FILE = Path("slurm/partitions.yaml")
"""A site's own file, which git does not track."""
DEFAULT_FILE = Path("slurm/partitions.default.yaml")
"""The file that is used if a site has none."""
ONE_AT_LEAST = ("ranks_per_node", "cpus_per_rank", "memory_mb_per_rank", "minutes", "longest_minutes")
WHOLE: tuple[str, Check] = ("a whole number, 1 or more", lambda value: is_count(value) and value >= 1)


@dataclass(frozen=True, kw_only=True)
class Site:
    """One cluster, as jobs of this suite use it. The defaults apply to a site that sets nothing."""

    account: str | None = None
    """Account that jobs are charged to; None: that of the user's last job, or Slurm's default."""
    gres: str = "gpu"
    """Name of GPUs in --gres, with their type if wanted: gpu, gpu:a100."""
    gpus_per_node: int = 8
    """0: ranks train on CPUs."""
    ranks_per_node: int = 8
    """Most ranks of a node without GPUs; with GPUs each rank has one."""
    cpus_per_rank: int = 2
    memory_mb_per_rank: int = 16_000
    """Host memory. The n-th try of a job asks for n times as much."""
    most_memory_mb: int | None = None
    """Memory of a node: no try asks for more; None: no limit."""
    minutes: int = 60
    """Time limit of a job. A cell that needs more saves its state before the limit, and resumes in the next try."""
    longest_minutes: int = 1440
    """No try asks for more."""
    checkpoint_minutes: float = 10.0
    """How often a cell saves a checkpoint, from which it resumes if it is killed."""
    runtime: str = "none"
    image: str | None = None
    interface: str | None = None
    """Network device over which nodes reach each other, for gloo and NCCL; None: the device of the route to them."""

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that is not allowed."""
        for name, allowed in wrong_fields(self, dict.fromkeys(ONE_AT_LEAST, WHOLE)):
            allow(name, getattr(self, name), False, allowed)
        choose("runtime", self.runtime, RUNTIMES)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read `site` in a file. Raises ConfigError, one line with the path, if it cannot be used."""
        values = read_yaml(path, "site", f"the file of a cluster, as {DEFAULT_FILE}", "partitions", str(DEFAULT_FILE))
        with within(path):
            known_keys("file", values, ("partitions", "site"))
            if not isinstance(values.get("partitions"), Mapping):
                raise ConfigError("partitions: missing; give the partitions' names and limits, or {}")
            # Lines of site files from before, which said what is always so now.
            gone = [("network", "host"), ("modules", []), ("scratch", None)]
            given = {key: one for key, one in (values.get("site") or {}).items() if (key, one) not in gone}
            known_keys("site", given, [field.name for field in fields(cls)])
            return cls(**given)


def site_file(folder: Path = Path()) -> Path:
    """Return the site's file in a project's folder, or the default one if the site has none."""
    return folder / (SITE_FILE if (folder / SITE_FILE).exists() else DEFAULT_FILE)
