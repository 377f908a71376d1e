"""The entry of a built image, the lock of all, lock files of packages, and an image's content: files, hash, archive."""

import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, Self

from packaging.utils import canonicalize_name

from benchmarks.core.checks import within, wrong_fields
from benchmarks.core.content import LIBRARY, TRAINING, content_hash, text_hash
from benchmarks.core.files import load_json, save_json
from benchmarks.core.paths import ROOT
from resireduce.errors import ConfigError, choose

REMAKE = "make the file anew with 'make locks'"
PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)==([\w.+!-]+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", re.ASCII)


@dataclass(frozen=True)
class Pin:
    """A package that a lock file pins."""

    name: str
    """Normalised, as in PEP 503: lower case, single hyphens."""
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each file of that version, in 64 hexadecimal digits."""


def read_lock(path: Path) -> tuple[Pin, ...]:
    """Return the packages of a lock file, in its order. Raises ConfigError, one line, if it does not pin them."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"lock: {path} cannot be read: {error}; {REMAKE}") from None
    pins = []
    for line in re.sub(r"(?m)(^|\s)#.*", "", text).replace("\\\n", " ").splitlines():
        if line.strip():
            if (found := PINNED.fullmatch(line.strip())) is None:
                raise ConfigError(
                    f"lock: {path}: {line.strip()[:80]!r} is not a package as name==version with its hashes, each "
                    f"--hash=sha256: and 64 hex digits; {REMAKE}"
                )
            pins.append(Pin(canonicalize_name(found[1]), found[2], tuple(re.findall("[0-9a-f]{64}", found[3]))))
    return tuple(pins)


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
    """Put an entry into a lock, replacing an earlier one of the same name."""
    images = read_images(path) | {entry.name: entry}
    plain = {name: asdict(images[name]) for name in sorted(images)}
    save_json({"schema_version": SCHEMA_VERSION, "images": plain}, path)


def _read(path: Path) -> Any:
    try:
        return load_json(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; {BUILD}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: half written or not JSON ({error}); {CURE}") from None


IMAGES = ("cpu", "cuda12")
SHARED = ("build_horovod.sh", "build-tools.lock", "horovod.lock", "check_image.py")
"""Files of `containers` that every image is built with."""
SUITE = ("pyproject.toml", "README.md", "LICENSE", "resireduce", "benchmarks")
"""Files that the suite is installed from."""
PROJECTS = ("pyproject.toml", "benchmarks/pyproject.toml")
"""Project files of the library and of the suite."""
RUN_INSIDE = (*LIBRARY, *TRAINING, "benchmarks/doctor", "benchmarks/images/image_facts.py")
"""Code that runs in images: the library, the training, and the checks of both."""
LEFT_OUT = ("__pycache__", ".pytest_cache")


def containerfile(name: str) -> str:
    """Return the path of an image's Containerfile, below the project's root."""
    return f"containers/{choose('image', name, IMAGES)}/Containerfile"


def check_locks(name: str, root: Path = ROOT) -> None:
    """Raise ConfigError, one line, if a lock file that an image is built with does not pin its packages."""
    shared = [root / "containers" / file for file in SHARED if file.endswith(".lock")]
    own = {root / f"containers/{name}/requirements.lock", *root.glob(f"containers/{name}/*.lock")}
    for lock in (*shared, *sorted(own)):
        read_lock(lock)


def image_content(name: str, root: Path = ROOT) -> str:
    """Return 12 hex digits over everything that an image is built from, such as Containerfile, locks and code.

    README and code that only the host runs are left out. Raises ConfigError for an unknown name or missing files.
    """
    folder = (root / containerfile(name)).parent
    _text(folder / "Containerfile")
    own = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    files = [*sorted(own), *(root / "containers" / it for it in SHARED)]
    texts = [f"{file.relative_to(root)}\0{_text(file)}" for file in files]
    texts += [*(_text(root / name) for name in PROJECTS), content_hash(RUN_INSIDE, root)]
    return text_hash("\0".join(texts))


def _text(file: Path) -> str:
    """Return the text of a file of the project. Raises ConfigError, one line."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"image: {file} cannot be read: {problem}; it is part of the project: git checkout brings it back"
        ) from None


def write_context(name: str, extra: Iterable[tuple[str, Path]], file: BinaryIO, root: Path = ROOT) -> None:
    """Write the build context as a tar archive: locks, scripts, the suite, and `extra`: (name in it, folder) pairs."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        for part in (f"containers/{name}", *(f"containers/{it}" for it in SHARED), *SUITE):
            _add(archive, root / part, part)
        for folder, path in extra:
            for item in sorted(path.iterdir()):
                _add(archive, item, f"{folder}/{item.name}")


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, or a folder's files, with fixed owner, rights and time, since layers are cached by those too."""
    for file, inside in _files(path, name):
        info = archive.gettarinfo(str(file), inside)
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = "root"
        info.mode = 0o755 if info.mode & 0o100 else 0o644
        with file.open("rb") as content:
            archive.addfile(info, content)


def _files(path: Path, name: str) -> Iterator[tuple[Path, str]]:
    if path.is_file():
        yield path, name
        return
    for file in sorted(path.rglob("*")):
        # Hidden files belong to an editor; they are not in the content either.
        if file.is_file() and not file.name.startswith(".") and not set(file.parts) & set(LEFT_OUT):
            yield file, f"{name}/{file.relative_to(path).as_posix()}"
