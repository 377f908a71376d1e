"""Remake a run's report in a temporary folder under the run's own name, and compare it with another report."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from itertools import zip_longest
from pathlib import Path

from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.report_command import write_report
from benchmarks.core.paths import RUNS

INPUTS = ("cells", "logs", "config.json", "start.json")
"""What a report is made from (of logs, only whether they exist), and what restarts the run."""
OUTPUTS = ("tables", "figures", "report.html", "claims.json")
"""What a report consists of."""


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
    """Return the files in these parts of a folder, sorted, by their path in the folder."""
    found = {}
    for name in names:
        part = folder / name
        for path in sorted(part.rglob("*")) if part.is_dir() else [part]:
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(folder).as_posix()] = path
    return dict(sorted(found.items()))


PICTURES = (".png", ".svg", ".pdf")
"""Pictures depend on the versions of the drawing libraries, also inside the page; all else is text from the records."""
PICTURE = re.compile("<svg.*</svg>|sha256-[A-Za-z0-9+/=]*")
WIDTH = 160


def differences(old: Mapping[str, Path], new: Mapping[str, Path]) -> dict[str, str]:
    """Return, by path and sorted, the first difference of each file that both reports have, except pictures."""
    common = sorted(path for path in old.keys() & new.keys() if not path.endswith(PICTURES))
    return {path: text for path in common if (text := first_difference(path, old[path], new[path]))}


def first_difference(path: str, old: Path, new: Path) -> str | None:
    """Return the first line in which two files differ; None if they are equal, apart from the pictures of a page."""
    if old.read_bytes() == new.read_bytes():
        return None
    with old.open(errors="backslashreplace", newline="") as one, new.open(errors="backslashreplace", newline="") as two:
        lines = [_without_pictures(file) for file in (one, two)] if path.endswith(".html") else [one, two]
        for number, (was, now) in enumerate(zip_longest(*lines), start=1):
            if was != now:
                return f"{path}, line {number}:\n    bundle:  {_short(was, now)}\n    records: {_short(now, was)}"
    return None if path.endswith(".html") else f"{path}: its bytes are no text"


def _without_pictures(lines: Iterable[str]) -> Iterator[str]:
    """Yield a page's lines without still pictures, the library that makes live ones, and its hash."""
    skipped = False
    for line in lines:
        skipped = skipped or line.startswith('<script id="vega">')
        if not skipped:
            yield PICTURE.sub("", line)
        skipped = skipped and not line.endswith("</script>\n")


def _short(line: str | None, other: str | None) -> str:
    """Return a line, cut to start shortly before the difference."""
    if line is None:
        return "(the file ends before)"
    start = next((i for i, (a, b) in enumerate(zip(line, other or "", strict=False)) if a != b), len(other or ""))
    start = max(0, start - 60) if len(line) > WIDTH else 0
    return ("..." if start else "") + repr(line[start : start + WIDTH])[1:-1]
