"""Folders and files of the host that a container sees, under the same paths as on the host."""

import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from resireduce.errors import ConfigError

TMP = Path("/tmp")


@dataclass(frozen=True)
class Bind:
    """One folder or file, which exists."""

    path: Path
    """Absolute."""
    writable: bool = False
    target: Path | None = None
    """Where in the container; None: where it is on the host."""

    def option(self) -> str:
        """The value of --mount, which docker, podman and apptainer read as a line of CSV: colons mean nothing in it."""
        line = io.StringIO()
        fields = ["type=bind", f"source={self.path}", f"destination={self.target or self.path}"]
        csv.writer(line, lineterminator="").writerow(fields if self.writable else [*fields, "readonly"])
        return line.getvalue()


def bind_all(
    writable: Iterable[Path | None], readable: Iterable[Path | None], variables: Mapping[str, str]
) -> tuple[Bind, ...]:
    """Return the binds of these paths as far as they exist, and of the scratch folder TMPDIR, the outermost first.

    /tmp itself stays the container's own. Raises ConfigError, one line, for a path that no runtime could be told of.
    """
    scratch = [Path(variables["TMPDIR"])] if variables.get("TMPDIR") else []
    found: dict[Path, bool] = {}
    for paths, may_write in ((readable, False), ([*writable, *scratch], True)):
        for path in paths:
            if path is not None and path.exists() and (there := Path(os.path.abspath(path))) != TMP:
                found[_checked(there)] = may_write
    return tuple(Bind(path, found[path]) for path in sorted(found))


def _checked(path: Path) -> Path:
    if not str(path).isprintable() or '"' in str(path):
        raise ConfigError(
            f"runtime: {str(path)!r} cannot be bound into a container; allowed: printable characters but quotes; "
            "rename it, or take another folder"
        )
    return path
