"""The entry of a built image, and `containers/images.lock.json`, which lists all entries. Imports no torch."""

import fcntl
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from benchmarks.core.checks import within, wrong_fields
from benchmarks.core.files import load_json, save_json
from resireduce.errors import ConfigError

LOCK = Path("containers/images.lock.json")
SCHEMA_VERSION = 1
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
BUILD = "build it again: python -m benchmarks image build NAME"
CURE = f"delete the file and {BUILD}"


@dataclass(frozen=True, kw_only=True)
class ImageEntry:
    """One built image, as recorded by its build."""

    name: str
    digest: str
    """sha256:..., the engine's ID of the image: the hash of its configuration, which holds the hashes of all layers."""
    content: str
    """12 hex digits over everything that it is built from: Containerfile, lock files, source code, base."""
    base: str
    base_digest: str
    """sha256:...; of the registry's manifest, or the ID of a base made from packages."""
    versions: dict[str, str | None] = field(default_factory=dict)
    """Versions of python, torch, cuda, nccl, horovod, mpi and others, read inside the image; None: not installed."""
    size_bytes: int
    engine: str
    """The program that built it, with its version."""
    built_at: str
    """ISO 8601, UTC."""

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that cannot be right."""
        digest = ("sha256: and 64 hex digits", lambda value: bool(isinstance(value, str) and DIGEST.fullmatch(value)))
        for name, allowed in wrong_fields(self, {"digest": digest, "base_digest": digest}):
            raise ConfigError(f"{name}: {getattr(self, name)!r} is not {allowed}; {CURE}")

    @property
    def tag(self) -> str:
        """Name and tag in an engine's store."""
        return f"resireduce/{self.name}:{self.content}"

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Build an entry from plain values. Raises ConfigError, one line."""
        names = {f.name for f in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            given = set(values) if isinstance(values, dict) else set()
            raise ConfigError(f"keys missing or unknown: {', '.join(sorted(names ^ given))}; {CURE}")
        return cls(**values)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read one entry from its own file. Raises ConfigError, one line with the path."""
        values = _read(path)
        with within(path):
            return cls.from_dict(values)

    def save(self, path: Path) -> None:
        """Write the entry to a file of its own."""
        save_json(asdict(self), path)


def read_images(path: Path = LOCK) -> dict[str, ImageEntry]:
    """Return all entries of a lock by name, none if there is no lock yet. Raises ConfigError, one line."""
    if not path.exists():
        return {}
    values = _read(path)
    if not isinstance(values, dict) or values.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema_version is not {SCHEMA_VERSION}; {CURE}")
    images = values.get("images")
    if not isinstance(images, dict):
        raise ConfigError(f"{path}: images is no mapping of names to images; {CURE}")
    found = {}
    for name, entry in images.items():
        with within(f"{path}: {name}"):
            found[name] = ImageEntry.from_dict(entry)
        if found[name].name != name:
            raise ConfigError(f"{path}: {name}: the image there is {found[name].name!r}; {CURE}")
    return found


def add_image(entry: ImageEntry, path: Path = LOCK) -> None:
    """Put an entry into a lock, replacing an earlier one of the same name. Processes take turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        images = read_images(path) | {entry.name: entry}
        plain = {name: asdict(images[name]) for name in sorted(images)}
        save_json({"schema_version": SCHEMA_VERSION, "images": plain}, path)
    finally:
        os.close(handle)


def _read(path: Path) -> Any:
    try:
        return load_json(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; {BUILD}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: half written or not JSON ({error}); {CURE}") from None
