"""The manifest of a bundle: what is in it, by SHA-256, and by which code it was made."""

import json
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.workflow.settings import RUN_NAME

NAME = "manifest.json"
FORMAT = 1


class BundleError(ValueError):
    """A bundle that is not what it says."""


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself."""

    run: str
    """Name of the run's folder in results/runs."""
    date: str
    """The day on which it was made, as 2026-01-31."""
    commit: str | None
    dirty: bool | None
    files: dict[str, tuple[str, int]]
    """SHA-256 and bytes of each file but the manifest, by its path in the bundle."""

    def to_json(self) -> str:
        """Return the file's text."""
        files = {path: {"sha256": digest, "bytes": size} for path, (digest, size) in sorted(self.files.items())}
        head = {"format": FORMAT, "run": self.run, "date": self.date, "commit": self.commit, "dirty": self.dirty}
        return json.dumps({**head, "files": files}, indent=1) + "\n"

    @classmethod
    def from_values(cls, values: Any) -> Self:
        """Read what the file holds. Raises BundleError, one line."""
        if not isinstance(values, dict) or values.get("format") is True or values.get("format") != FORMAT:
            found = values.get("format") if isinstance(values, dict) else None
            raise BundleError(f"{NAME}: format {found!r} cannot be read; this code reads {FORMAT}")
        if not isinstance(values.get("run"), str) or not RUN_NAME.fullmatch(values["run"]):
            raise BundleError(f"{NAME}: run: {str(values.get('run'))[:120]!r} is no name of a run")
        try:
            files = {str(path): (str(one["sha256"]), int(one["bytes"])) for path, one in values["files"].items()}
            return cls(values["run"], str(values["date"]), values["commit"], values["dirty"], files)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError(f"{NAME}: {type(error).__name__}: {error}; it is incomplete") from None
