"""Containers of ranks, one for each: their command line, what they get from the host, their start and their end."""

import csv
import io
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.provenance import DIGEST_VARIABLE
from benchmarks.launching.containers.entry import ImageEntry
from benchmarks.launching.processes import Logged, Start, die_with_parent
from resireduce.errors import ConfigError
from resireduce.scheme import load

TMP = Path("/tmp")


@dataclass(frozen=True)
class Bind:
    """One folder or file, which exists."""

    path: Path
    """Absolute."""
    writable: bool = False

    def option(self) -> str:
        """Return the value of --mount; docker and apptainer read it as CSV, so colons have no meaning in it."""
        line = io.StringIO()
        fields = ["type=bind", f"source={self.path}", f"destination={self.path}"]
        csv.writer(line, lineterminator="").writerow(fields if self.writable else [*fields, "readonly"])
        return line.getvalue()


def bind_all(
    writable: Iterable[Path | None], readable: Iterable[Path | None], variables: Mapping[str, str]
) -> tuple[Bind, ...]:
    """Return the binds of these paths, if they exist, and of the scratch folder TMPDIR, the outermost first.

    /tmp itself stays the container's own.
    """
    scratch = [Path(variables["TMPDIR"])] if variables.get("TMPDIR") else []
    found: dict[Path, bool] = {}
    for paths, may_write in ((readable, False), ([*writable, *scratch], True)):
        for path in paths:
            if path is not None and path.exists() and (there := Path(os.path.abspath(path))) != TMP:
                found[there] = may_write
    return tuple(Bind(path, found[path]) for path in sorted(found))


NAMES = (
    *(
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_DEVICE_ORDER",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_MODULE_LOADING",
        "CUDA_VISIBLE_DEVICES",
    ),
    *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF"),
    *("PYTORCH_CUDA_ALLOC_CONF", "RANK", "THP_MEM_ALLOC_ENABLE", "TMPDIR", "TORCH_LOGS", "WORLD_SIZE"),
)
PREFIXES = ("GLOO_", "HOROVOD_", "MALLOC_", "MASTER_", "NCCL_", "OMPI_", "PMIX_", "PMI_", "RESIREDUCE_", "SLURM_")
"""Variables that say which rank this is and how ranks find each other, or that change memory, speed or results."""
CLIENT_NAMES = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "TERM", "USER", "XDG_RUNTIME_DIR")
CLIENT_PREFIXES = ("APPTAINER_", "http_", "https_")
"""Variables that apptainer itself needs. It passes the host's HOME and PATH to no container."""


def passed(variables: Mapping[str, str]) -> list[str]:
    """Return the names of these variables that a container gets; never PATH, PYTHONPATH or LD_LIBRARY_PATH."""
    return sorted(name for name in variables if name in NAMES or name.startswith(PREFIXES))


def for_apptainer(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment to call apptainer in: apptainer passes all of it on, so it holds only what is meant.

    --cleanenv would pass nothing, not even the variables that srun and mpirun set: each rank would take itself for 0.
    """
    own = {name for name in variables if name in CLIENT_NAMES or name.startswith(CLIENT_PREFIXES)}
    return {name: variables[name] for name in sorted(own | set(passed(variables)))}


SUPERVISED = ("python", "-m", "benchmarks.launching.supervise")


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container of a launch."""

    name: str
    folder: Path = TMP
    """Folder of the launch, bound and writable; HOME under apptainer, where all users of the machine share /tmp."""
    binds: tuple[Bind, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The program that runs images on this machine, and the image that it runs."""

    name: str
    image: ImageEntry
    program: tuple[str, ...]
    """The beginning of its command line."""
    sif: Path | None = None
    """The image as apptainer reads it."""
    sif_hash: str | None = None
    """SHA-256 of that file."""
    gpus: bool = False
    """Whether ranks train on NVIDIA devices."""
    user: str = "0:0"
    """User and group IDs in the container that stand for the caller on the host."""
    groups: tuple[int, ...] = ()
    """The caller's other groups, to which the data may belong."""

    def command(self, arguments: Sequence[str], container: Container, variables: Mapping[str, str]) -> list[str]:
        """Return the command line that runs `arguments` in a container.

        It passes `variables` by name only; their values come from `environment`, in which it is called: srun and mpirun
        set them for each rank.
        """
        inside = [*SUPERVISED, *arguments]
        if self.name == "apptainer":
            # Apptainer refuses to set HOME itself.
            settings = [f"{name}={value}" for name, value in self._fixed(container.folder).items()]
            options = [*self._apptainer_options(container), str(self.sif), "env", *settings]
            return [*self.program, "exec", *options, *inside]
        options = self._engine_options(container)
        options += [word for bind in container.binds for word in ("--mount", bind.option())]
        fixed = self._fixed(TMP)
        options += [word for name in passed(variables) if name not in fixed for word in ("--env", name)]
        options += [word for name, value in fixed.items() for word in ("--env", f"{name}={value}")]
        return [*self.program, "run", *options, self.image.digest, *inside]

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment to call the command line in, from `variables`: the host's and those set for ranks."""
        return for_apptainer(variables) if self.name == "apptainer" else dict(variables)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the image and its runtime for records."""
        entry = self.image
        facts = {"name": entry.name, "digest": entry.digest, "runtime": self.name}
        return {**facts, "versions": entry.versions, "sif_sha256": self.sif_hash}

    def _fixed(self, home: Path) -> dict[str, str]:
        """Return the variables that are the same for every container, whatever the host's are."""
        # The caller's ID has no name in the image, and torch asks for one. No code but the image's own is found.
        own = {"HOME": str(home), "USER": "resireduce", "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
        return own | {DIGEST_VARIABLE: self.image.digest}

    def _engine_options(self, container: Container) -> list[str]:
        # Ranks meet as processes of the machine do: over its network and /dev/shm, under its name, by which NCCL knows
        # which are on the same machine. Compiled kernels are loaded from /tmp, so programs there must be executable.
        options = ["--network=host", "--ipc=host", "--uts=host"]
        options += ["--rm", "--interactive", "--name", container.name, "--pull=never", "--sig-proxy=false"]
        options += ["--read-only", f"--tmpfs={TMP}:exec,mode=1777", f"--workdir={TMP}", "--log-driver=none"]
        options += ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--security-opt=label=disable"]
        options += ["--gpus=all", "--pid=host"] if self.gpus else []  # NVML reports the host's process IDs
        return [*options, f"--user={self.user}", *(f"--group-add={group}" for group in self.groups)]

    def _apptainer_options(self, container: Container) -> list[str]:
        # Process IDs, /dev/shm, the host name and /tmp are the host's by default; the root file system is read-only.
        options = ["--no-home", "--no-mount", "home,cwd", "--pwd", str(TMP), *(["--nv"] if self.gpus else [])]
        return options + [word for bind in container.binds for word in ("--mount", bind.option())]


ENGINE_FAILED = (125, 126, 127, 255)
"""Exit statuses with which docker, or apptainer (the last), reports that it could not start the command."""
SAID = ("docker: ", "Error: ", "FATAL: ", "OCI runtime")
"""Beginnings of the line that says why; advice may come after it."""


class Client(Logged):
    """The client process of one container.

    Signals go through a pipe to `benchmarks.launching.supervise`; neither a killed client nor a late start loses them.
    It has a session of its own, so that Ctrl-C on a terminal reaches the launcher only, which has no threads.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        options: dict[str, Any] = {"stdin": subprocess.PIPE, "start_new_session": True, "preexec_fn": die_with_parent}
        super().__init__(command, log, env=environment, **options)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the command in the container. SIGKILL ends this client, and with it the container."""
        if sig == signal.SIGKILL:
            super().send_signal(sig)
        elif self.stdin is not None:
            with suppress(BrokenPipeError):
                os.write(self.stdin.fileno(), bytes([sig]))

    def complaint(self, rank: int = 0) -> str | None:
        """Return the engine's message if it could not start the command."""
        if self.poll() not in ENGINE_FAILED:
            return None
        lines = self.said()
        told = [line for line in lines if line.startswith(SAID)] or lines or ["it said nothing"]
        return told[-1]

    def close(self) -> None:
        """Close as `Logged` does, and close the standard input."""
        super().close()
        if self.stdin is not None:
            self.stdin.close()


REMOVE_SECONDS = 60.0


@contextmanager
def containers(
    runtime: Runtime, folder: Path, writable: Sequence[Path | None] = (), readable: Sequence[Path | None] = ()
) -> Iterator[Start]:
    """Yield a function that starts commands of the image's python, each in its own container.

    They may write to `folder`, of the launch, and to the `writable` paths, and read the `readable` ones.
    """
    binds, token = bind_all([folder, *writable], readable, os.environ), f"resireduce-{secrets.token_hex(6)}"
    started: list[Client] = []

    def start(arguments: Sequence[str], variables: Mapping[str, str]) -> Client:
        rank = len(started)
        container = Container(name=f"{token}-{rank}", folder=folder, binds=binds)
        everything = {**os.environ, **variables}
        line = runtime.command(["python", *arguments], container, everything)
        started.append(Client(line, runtime.environment(everything), folder / f"container{rank}.log"))
        return started[-1]

    try:
        yield start
    finally:
        for client in started:  # the container of a killed client runs on until it notices
            client.kill()
            client.wait()
            client.close()
        if runtime.name != "apptainer" and started:
            # Containers remove themselves when they end; docker complains of missing ones.
            names = [f"{token}-{rank}" for rank in reversed(range(len(started)))]
            with suppress(subprocess.TimeoutExpired):
                line = [*runtime.program, "rm", "--force", *names]
                subprocess.run(line, capture_output=True, timeout=REMOVE_SECONDS, check=False)


def command(name: str, wrapped: bool = True) -> list[str]:
    """Return how to call a program, as the beginning of a command line. Raises ConfigError, one line with the cure.

    A program that the rig knows is fetched once if the machine lacks it, in about 10 s. Not `wrapped`, apptainer can
    build images as root, but not run them if root lacks capabilities.
    """
    wrapper = list[str]()
    if wrapped and name == "apptainer" and os.geteuid() == 0 and not _is_full_root():
        # A root without all capabilities, as in many containers, runs apptainer as a user.
        wrapper = [*command("unshare"), "--user", "--map-root-user"]
    if (found := shutil.which(name)) is not None:
        return [*wrapper, found]
    if (fetched := load("benchmarks.rig.debian:fetched_command")(name)) is not None:
        return [*wrapper, *fetched]
    raise ConfigError(f"{name}: not on PATH; install it, or choose another engine or runtime")


def _is_full_root() -> bool:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="utf-8"))
    return int(fields["CapEff"], 16) == 2 ** (last + 1) - 1
