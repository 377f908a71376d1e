"""Check disk: room for results, for temporary files, and for images if a program here builds or runs them."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core.paths import cache_folder
from benchmarks.doctor.finding import Finding, failed, gibibytes, ok, warning
from benchmarks.launching.containers.image_content import NEEDED_BYTES
from resireduce.errors import ConfigError


def existing(path: Path) -> Path:
    """Return the folder, or its nearest existing parent, in which it would be made; or a file that is in the way."""
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def why_not_writable(folder: Path) -> str | None:
    """Return why a folder cannot be written, by trying: a mount may be read-only, or a quota used up."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"doctor")
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_bytes(folder: Path) -> int:
    """Return the free bytes for users other than root."""
    return shutil.disk_usage(folder).free


NAME = "disk"
GIB = 1 << 30


@dataclass(frozen=True)
class Need:
    """The room that a folder should have."""

    what: str
    folder: Path
    least_bytes: int
    """With less, cells fail: a failure."""
    enough_bytes: int
    """With less, some cells fail: a warning."""
    reason: str
    """What needs `enough_bytes`."""
    cure: str
    writes: bool = True
    """Whether this process will write there; if not, a container engine does."""


def needs(
    results: Path, environment: Mapping[str, str] = os.environ, which: Callable[[str], str | None] = shutil.which
) -> list[Need]:
    """Return the needs of this machine."""
    return [
        # gpt2-large: 774 M parameters, 12 bytes each with AdamW's states; two exist while one is being written.
        Need("results", results, GIB, 18 * GIB, "two checkpoints of gpt2-large", "--results DIR on a larger disk"),
        *_temporary(),
        *image_stores(environment, which),
    ]


def _temporary() -> list[Need]:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:  # reported by check home
        return []
    # The largest package, torch for CUDA, is downloaded and unpacked there while .venv or an image is made.
    return [Need("temporary", folder, GIB // 8, 2 * GIB, "packages of .venv", "export TMPDIR=FOLDER")]


def image_stores(environment: Mapping[str, str], which: Callable[[str], str | None]) -> list[Need]:
    """Return the default image folders of the container programs that are here."""
    home, root = Path(environment.get("HOME") or "/"), os.geteuid() == 0
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share")
    stores = {
        "docker": (Path("/var/lib/docker"), "docker system prune, or dockerd --data-root FOLDER"),
        "podman": (
            Path("/var/lib/containers") if root else data / "containers",
            "podman system prune, or podman --root FOLDER",
        ),
        "apptainer": (
            Path(environment.get("APPTAINER_CACHEDIR") or home / ".apptainer"),
            "apptainer cache clean, or export APPTAINER_CACHEDIR=FOLDER",
        ),
    }
    wanted = {name: store for name, store in stores.items() if which(name)}
    with suppress(ConfigError):  # neither HOME nor a user with this number
        if (own := cache_folder() / "engine").is_dir():  # where images.engine keeps its own images
            wanted["the suite's own engine"] = (own, f"rm -rf {own}, or export XDG_CACHE_HOME=FOLDER")
    # A warning at most, since cells may not need the engine that a machine has.
    return [
        Need(f"images of {name}", folder, 0, NEEDED_BYTES["cuda12"], "building image cuda12", cure, writes=False)
        for name, (folder, cure) in wanted.items()
    ]


def check(wanted: Sequence[Need], free: Callable[[Path], int] = free_bytes) -> list[Finding]:
    """Return one finding for each need."""
    return [_judge(need, free) for need in wanted]


def _judge(need: Need, free: Callable[[Path], int]) -> Finding:
    folder = existing(need.folder)
    refused = why_not_writable(folder) if need.writes else None
    if refused:
        bind = "docker or podman run -v FOLDER:FOLDER -w FOLDER, apptainer exec --bind FOLDER"
        return failed(NAME, f"{need.what}: {folder} cannot be written: {refused}", f"{need.cure}; {bind}")
    room = free(folder)
    has = f"{need.what}: {gibibytes(room)} free in {folder}"
    if room < need.least_bytes:
        return failed(NAME, f"{has}, {gibibytes(need.least_bytes)} is the least", need.cure)
    if room < need.enough_bytes:
        return warning(NAME, f"{has}, {need.reason} would take {gibibytes(need.enough_bytes)}", need.cure)
    return ok(NAME, has)
