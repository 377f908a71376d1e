"""The output of `data prepare` that cells read: a folder for each data set, with a manifest. Imports no torch."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.core.files import load_json
from resireduce.errors import ConfigError

MANIFEST = "manifest.json"
ROOT_VARIABLE = "RESIREDUCE_DATA"
DEFAULT_ROOT = Path("data")


@dataclass(frozen=True)
class Prepared:
    """One prepared data set.

    `manifest` has `name`, `hash` (SHA-256 over the prepared files, in hexadecimal digits), `files` (name -> bytes) and
    further notes of the data set, such as `source` and counts.
    """

    folder: Path
    manifest: dict[str, Any]

    @property
    def hash(self) -> str:
        """SHA-256 over the prepared files."""
        return str(self.manifest["hash"])


def find_root(given: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of prepared data sets: the one given, the one in RESIREDUCE_DATA, or `data`."""
    return Path(given or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)


def open_prepared(name: str, root: Path) -> Prepared:
    """Open a prepared data set. Raises ConfigError, one line with the command that prepares it, if it is not usable."""
    cure = f"prepare it with: python -m benchmarks data prepare {name} --root {root}"
    folder = root / name
    try:
        manifest = load_json(folder / MANIFEST)
        files = {file: int(size) for file, size in manifest["files"].items()}
        if manifest["name"] != name or not isinstance(manifest["hash"], str):
            raise ValueError("it is of another data set")
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"data: {name!r} is not prepared in {root}; {cure}") from None
    except OSError as error:
        raise ConfigError(
            f"data: {folder / MANIFEST} cannot be read ({error.strerror}); see to that, or {cure}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"data: {folder / MANIFEST} cannot be read ({error}); {cure}") from None
    for file, size in files.items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != size:
            raise ConfigError(f"data: {folder / file} is missing or does not have its {size} bytes; {cure}")
    return Prepared(folder, manifest)


def check_prepared(names: Iterable[str], root: Path) -> None:
    """Raise ConfigError, one line, for the first of these that a cell could not read."""
    for name in names:
        open_prepared(name, root)
