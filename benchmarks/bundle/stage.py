"""A run's records under the name that its tables know it by, in a folder where its report can be made anew."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from benchmarks.report.cli import write_report
from benchmarks.report.load import load_run
from benchmarks.workflow.settings import RUNS

INPUTS = ("cells", "logs", "config.json", "start.json")
"""What a report is made from (of logs, which there are), and what starts the run again."""
OUTPUTS = ("tables", "figures", "report.html", "claims.json")
"""What it is made to."""


@contextmanager
def fresh_report(folder: Path, name: str) -> Iterator[Path]:
    """Make the report of the records in folder, as those of results/runs/name; yields the folder that it is in.

    That is temporary, and has the inputs as links; `folder` stays as it is. Commands in tables name the run's folder,
    so they are the same on every machine.
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
    """Return the files in these parts of a folder, by their path in it, sorted."""
    found = {}
    for name in names:
        part = folder / name
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(folder).as_posix()] = path
    return dict(sorted(found.items()))


def free_bytes(folder: Path | None = None) -> int:
    """Return the room on the disk of a folder, by default of temporary files."""
    return shutil.disk_usage(folder or tempfile.gettempdir()).free
