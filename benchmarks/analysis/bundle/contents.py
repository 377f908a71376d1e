"""The contents of a bundle: files of the run and of the project, and texts that are made for it."""

from pathlib import Path
from typing import Any

from benchmarks.analysis.bundle.stage import INPUTS, OUTPUTS, files_of
from benchmarks.core.paths import ROOT, RUNS
from benchmarks.core.provenance import STATUS, git
from benchmarks.core.record import CellResult, RecordError
from resireduce.errors import ConfigError

PROJECT = (
    "LICENSE",
    "CITATION.cff",
    "constraints.txt",
    "pyproject.toml",
    "benchmarks/pyproject.toml",
    "containers/*.lock",
    "containers/*.in",
    "containers/images.lock.json",
    "results/paper/*",
    "results/reference/*.json",
)
"""Files of the project in every bundle: licence, citation, versions, published numbers, claims, measurements."""
Content = Path | bytes


def contents(folder: Path, report: Path, name: str) -> dict[str, Content]:
    """Return the contents of a bundle by their path in it, except README, crate and manifest.

    folder: the run's folder; report: the folder of its fresh report; name: the run's name.
    """
    found: dict[str, Content] = {f"{RUNS}/{name}/{path}": file for path, file in files_of(folder, INPUTS).items()}
    found |= {f"{RUNS}/{name}/{path}": file for path, file in files_of(report, OUTPUTS).items()}
    for pattern in PROJECT:
        found |= {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob(pattern)) if path.is_file()}
    return found | {f"source/{path}": text.encode() for path, text in source_texts().items()}


def source_texts() -> dict[str, str]:
    """Return the state of the code: its commit and uncommitted changes; without git, a text that says so."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"commit.txt": "not known: not a git checkout\n"}
    texts = {"commit.txt": commit, "status.txt": git(*STATUS) or ""}
    return texts | {"changes.diff": git("diff-index", "--patch", "--binary", "--no-ext-diff", "HEAD") or ""}


def check_links(folder: Path) -> None:
    """Raise ConfigError, with one line, for a link among a run's files: what it names may be no part of the run."""
    for name in INPUTS:
        for path in sorted([folder / name, *(folder / name).rglob("*")]):
            if path.is_symlink():
                raise ConfigError(
                    f"run: {path} is a link, which a bundle does not follow; put the file itself there, or delete it"
                )


def check_records(folder: Path) -> None:
    """Raise ConfigError, with one line, for a broken record: a bundle with it could not be verified."""
    for path in sorted((folder / "cells").glob("*.json")):
        if (problem := record_problem(path)) is not None:
            raise ConfigError(f"run: {problem}; delete the record, or run its cell again, and then bundle")


def record_problem(path: Path) -> str | None:
    """Return in one line what is wrong with the record in a file; None if nothing is."""
    try:
        record = CellResult.load(path)
    except RecordError as error:
        return str(error)
    expected = path.name.removesuffix(".json").removesuffix(".failed")
    return None if record.cell.name == expected else f"{path}: the record is of another cell, {record.cell.name}"


def counts(folder: Path) -> dict[str, Any]:
    """Return the number of records of finished and of failed cells."""
    names = [path.name for path in (folder / "cells").glob("*.json")]
    failed = sum(name.endswith(".failed.json") for name in names)
    return {"finished": len(names) - failed, "failed": failed}
