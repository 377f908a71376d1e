"""In what a report differs from the one that its records make."""

import re
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

PICTURES = (".png", ".svg")
"""Depend on the versions of what draws them, as do those within the page; all else is text from the records alone."""
PICTURE = re.compile("data:image/png;base64,[A-Za-z0-9+/=]*")
WIDTH = 160


def differences(old: Mapping[str, Path], new: Mapping[str, Path]) -> dict[str, str]:
    """Return the first difference of each file that both reports have, by its path in them, sorted; not of pictures."""
    common = sorted(path for path in old.keys() & new.keys() if not path.endswith(PICTURES))
    return {path: text for path in common if (text := first_difference(path, old[path], new[path]))}


def first_difference(path: str, old: Path, new: Path) -> str | None:
    """Return the first line in which two files differ; None if they are equal, a page but for its pictures."""
    if old.read_bytes() == new.read_bytes():
        return None
    with old.open(errors="backslashreplace", newline="") as one, new.open(errors="backslashreplace", newline="") as two:
        lines = [map(_without_pictures, file) for file in (one, two)] if path.endswith(".html") else [one, two]
        for number, (was, now) in enumerate(zip_longest(*lines), start=1):
            if was != now:
                return f"{path}, line {number}:\n    bundle:  {_short(was, now)}\n    records: {_short(now, was)}"
    return None if path.endswith(".html") else f"{path}: its bytes are no text"


def _without_pictures(line: str) -> str:
    return PICTURE.sub("", line)


def _short(line: str | None, other: str | None) -> str:
    """A line, from a little before what differs."""
    if line is None:
        return "(the file ends before)"
    start = next((i for i, (a, b) in enumerate(zip(line, other or "", strict=False)) if a != b), len(other or ""))
    start = max(0, start - 60) if len(line) > WIDTH else 0
    return ("..." if start else "") + repr(line[start : start + WIDTH])[1:-1]
