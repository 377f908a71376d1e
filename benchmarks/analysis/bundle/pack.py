"""`python -m benchmarks bundle`: put a run and everything it rests on into one zip."""

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.page.page import rendered
from benchmarks.analysis.report_command import write_report
from benchmarks.core.files import file_hash, replacing, writable
from benchmarks.core.paths import ROOT, RUNS
from benchmarks.core.progress import counted
from benchmarks.core.provenance import STATUS, git, provenance
from benchmarks.core.record import CellResult, RecordError
from benchmarks.core.run_config import get_run_name
from resireduce.errors import ConfigError

BUNDLES = Path("results/bundles")
INPUTS = ("cells", "logs", "config.json", "start.json")
"""What a report is made from (of logs, whether they exist and how they end), and what restarts the run."""
OUTPUTS = ("tables", "figures", "report.html", "claims.json")
"""What a report consists of."""
UNTRACKED = ("LICENSE", "CITATION.cff", "results/reference/*.json")
"""Files of the project in every bundle whose changes `dirty` does not tell: licence, citation, measurements."""
PROJECT = (
    "constraints.txt",
    "pyproject.toml",
    "benchmarks/pyproject.toml",
    "containers/*.lock",
    "containers/*.in",
    "containers/images.lock.json",
    "results/paper/*",
)
"""The others: versions, published numbers, claims."""
NAME, FORMAT = "manifest.json", 1
"""The last file of a bundle: format, run, date, commit, dirty, and SHA-256 and bytes of each other file."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can store."""
Content = Path | bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/smoke")
    text = "the zip to write (default: results/bundles/RUN-DATE-COMMIT.zip)"
    parser.add_argument("--output", metavar="FILE", type=Path, help=text)


def main(args: argparse.Namespace) -> int:
    """Write the zip. What the run lacks is listed; it is no error, since partial runs have bundles too."""
    run = load_run(args.run)
    records = sorted((args.run / "cells").glob("*.json"))
    if problem := next(filter(None, map(record_problem, records)), None):
        raise ConfigError(f"run: {problem}; delete the record, or run its cell again, and then bundle")
    name, here = get_run_name({"run": args.run.resolve().name}), provenance()
    head = {"run": name, "date": datetime.now(UTC).date().isoformat(), "commit": here["commit"], "dirty": here["dirty"]}
    output = args.output or BUNDLES / f"{name}-{head['date']}-{(here['commit'] or 'no-commit')[:12]}.zip"
    writable("output", output)
    with fresh_report(args.run, name) as report:
        files = contents(args.run, report, name)
        failed = sum(path.name.endswith(".failed.json") for path in records)
        readme = rendered("bundle.md.j2", **head, failed=failed, finished=len(records) - failed)
        pack(files | {"README.md": readme.encode()}, head, output)
    print(f"{len(run.results)} cells, {len(run.holes)} missing, {len(files) + 1} files")
    if here["dirty"]:
        print("Note: the code has changes that are not committed; source/changes.diff has them")
    print(f"Bundle: {output}, SHA-256 {file_hash(output)}")
    return 0


@contextmanager
def fresh_report(folder: Path, name: str) -> Iterator[Path]:
    """Make the report of the records in `folder` as if they lay in results/runs/`name`; yields its folder.

    That folder is temporary and links to the inputs; `folder` stays unchanged. Commands in tables name the run's
    folder, so they are the same on every machine.
    """
    source = folder.resolve()
    with tempfile.TemporaryDirectory(prefix="resireduce-report-") as temporary:
        run = Path(temporary) / RUNS / name
        run.mkdir(parents=True)
        for one in INPUTS:
            if (source / one).exists():
                (run / one).symlink_to(source / one)
        with chdir(temporary):
            write_report(load_run(RUNS / name))
        yield run


def files_of(folder: Path, names: tuple[str, ...]) -> dict[str, Path]:
    """Return the files in these parts of a folder by their path in the folder."""
    parts = [folder / name for name in names]
    paths = [path for part in parts for path in (part.rglob("*") if part.is_dir() else [part])]
    return {path.relative_to(folder).as_posix(): path for path in paths if path.is_file() and path.name[0] != "."}


def contents(folder: Path, report: Path, name: str) -> dict[str, Content]:
    """Return the contents of a bundle by their path in it, except README and manifest."""
    found: dict[str, Content] = {f"{RUNS}/{name}/{path}": file for path, file in files_of(folder, INPUTS).items()}
    found |= {f"{RUNS}/{name}/{path}": file for path, file in files_of(report, OUTPUTS).items()}
    for pattern in (*PROJECT, *UNTRACKED):
        found |= {path.relative_to(ROOT).as_posix(): path for path in ROOT.glob(pattern) if path.is_file()}
    return found | {f"source/{path}": text.encode() for path, text in source_texts().items()}


def source_texts() -> dict[str, str]:
    """Return the state of the code: its commit and uncommitted changes; without git, a text that says so."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {"commit.txt": "not known: not a git checkout\n"}
    texts = {"commit.txt": commit, "status.txt": git(*STATUS) or ""}
    return texts | {"changes.diff": git("diff-index", "--patch", "--binary", "--no-ext-diff", "HEAD") or ""}


def record_problem(path: Path) -> str | None:
    """Return in one line what is wrong with the record in a file; None if nothing is."""
    try:
        record = CellResult.load(path)
    except RecordError as error:
        return str(error)
    expected = path.name.removesuffix(".json").removesuffix(".failed")
    return None if record.cell.name == expected else f"{path}: the record is of another cell, {record.cell.name}"


def pack(files: Mapping[str, Content], head: Mapping[str, Any], output: Path) -> None:
    """Write the zip atomically: the files, sorted by name and with one time stamp, and the manifest with this head."""
    said: dict[str, Any] = {}
    with replacing(output) as file, ZipFile(file, "w", ZIP_DEFLATED) as bundle:
        for path in counted("packed files", sorted(files), len(files)):
            content = files[path]
            data = content.read_bytes() if isinstance(content, Path) else content
            said[path] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            bundle.writestr(_entry(path), data)
        bundle.writestr(_entry(NAME), json.dumps({"format": FORMAT, **head, "files": said}, indent=1) + "\n")


def _entry(path: str) -> ZipInfo:
    info = ZipInfo(path, EPOCH)
    info.compress_type, info.external_attr = ZIP_DEFLATED, 0o100644 << 16
    return info
