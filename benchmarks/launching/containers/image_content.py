"""The content of an image: the files it is built from, their hash, and the archive that an engine is given."""

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from benchmarks.core.content import LIBRARY, TRAINING, content_hash, text_hash
from benchmarks.core.paths import ROOT
from benchmarks.core.requirements import read_lock
from resireduce.errors import ConfigError, choose

IMAGES = ("cpu", "cuda12")
NEEDED_BYTES = {"cpu": 8 * 10**9, "cuda12": 35 * 10**9}
"""Free disk space that a build from scratch needs: packages, context, layers of the builder, the image."""
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


def image_content(name: str, base: str | None = None, root: Path = ROOT) -> str:
    """Return 12 hex digits over everything that an image is built from, such as Containerfile, locks and code.

    README and code that only the host runs are left out. Raises ConfigError for an unknown name or missing files.
    """
    folder = (root / containerfile(name)).parent
    _text(folder / "Containerfile")
    own = [path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    files = [*sorted(own), *(root / "containers" / it for it in SHARED)]
    texts = [f"{file.relative_to(root)}\0{_text(file)}" for file in files]
    texts += [*(_text(root / name) for name in PROJECTS), content_hash(RUN_INSIDE, root), base or ""]
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
