"""Remake a run's report in a temporary folder under the run's own name, and compare it with another report."""

import hashlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.report_command import write_report
from benchmarks.core.paths import RUNS

INPUTS = ("cells", "logs", "config.json", "start.json")
"""What a report is made from (of logs, whether they exist and how they end), and what restarts the run."""
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
PICTURE = re.compile("<svg.*?</svg>")
KINDS = "svg|g|path|text|tspan|line|rect|circle|defs|clipPath|linearGradient|stop"
ODD = re.compile(f'<(?!/?(?:{KINDS})[ >/])|[ /"](?:style|on[a-z]+|href|xlink:href)=', re.IGNORECASE)
"""What the pictures do not need, and could show something else than a picture."""
LIBRARY = '<script id="vega">'
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
        if path.endswith(".html") and (was_drawn := _library(one)) != (drawn := _library(two)):
            return (
                f"{path}: its pictures are drawn by a library with SHA-256 {was_drawn}, the installed vl-convert has "
                f"{drawn}; verify with the versions in its constraints.txt"
            )
        lines = [_without_pictures(file) for file in (one, two)] if path.endswith(".html") else [one, two]
        for number, (was, now) in enumerate(zip_longest(*lines), start=1):
            if was != now:
                return f"{path}, line {number}:\n    bundle:  {_short(was, now)}\n    records: {_short(now, was)}"
    return None if path.endswith(".html") else f"{path}: its bytes are no text"


def _library(page: TextIO) -> str:
    """Return the SHA-256 of the library that makes live pictures in a page, which is then at its start again."""
    digest = hashlib.sha256("".join(line for line, is_library in _told(page) if is_library).encode())
    page.seek(0)
    return digest.hexdigest()


def _told(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Yield each line of a page, and whether it belongs to the library."""
    inside = False
    for line in lines:
        inside = inside or line.startswith(LIBRARY)
        yield line, inside
        inside = inside and not line.endswith("</script>\n")


def _without_pictures(lines: Iterable[str]) -> Iterator[str]:
    """Yield a page's lines without the library, and with an empty picture in the place of each still one."""
    for line, is_library in _told(lines):
        yield LIBRARY if is_library else PICTURE.sub(_blank, line)


def _blank(picture: re.Match[str]) -> str:
    return picture[0] if ODD.search(picture[0]) else "<svg></svg>"


def _short(line: str | None, other: str | None) -> str:
    """Return a line, cut to start shortly before the difference."""
    if line is None:
        return "(the file ends before)"
    start = next((i for i, (a, b) in enumerate(zip(line, other or "", strict=False)) if a != b), len(other or ""))
    start = max(0, start - 60) if len(line) > WIDTH else 0
    return ("..." if start else "") + repr(line[start : start + WIDTH])[1:-1]
