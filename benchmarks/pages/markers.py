"""Blocks of a Markdown page that are made from measurements, between comments that its readers do not see.

`<!-- measured: NAME -->` begins a block, `<!-- end -->` ends it. Within a line, as in a cell of a table, the text stays
on that line. Where the comments have lines of their own, a paragraph between them is wrapped.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from resireduce.errors import ConfigError

COMMENT = re.compile(r"<!--\s*(measured\b.*?|end)\s*-->", re.DOTALL)
WIDTH = 120


@dataclass(frozen=True)
class Block:
    """A block of a page: its text is page[start:stop]."""

    name: str
    line: int
    """Of the comment that begins it, counted from 1."""
    start: int
    stop: int


def find_blocks(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page's text, in order.

    page: its name, for ConfigError: a block that is not closed, an end without a beginning, or a comment that begins
    a line and does not fill it, which Markdown would then not format.
    """
    opened: tuple[str, int, int] | None = None
    for comment in COMMENT.finditer(text):
        line = text.count("\n", 0, comment.start()) + 1
        where = f"{page}:{line}: {comment[0]}"
        if (comment[1] == "end") == (opened is None):
            _refuse(where, opened)
        if text[: comment.start()].endswith("\n") and text[comment.end() : comment.end() + 1] not in ("", "\n"):
            raise ConfigError(f"{where} begins a line that goes on; give it a line of its own, or put words before it")
        if opened:
            yield Block(opened[0], opened[1], opened[2], comment.start())
        opened = None if opened else (comment[1].partition(":")[2].strip(), line, comment.end())
    if opened:
        raise ConfigError(f"{page}:{opened[1]}: measured: {opened[0]} is not closed; give <!-- end --> behind it")


def _refuse(where: str, opened: tuple[str, int, int] | None) -> None:
    if opened is None:
        raise ConfigError(f"{where} ends nothing; give <!-- measured: NAME --> before it")
    raise ConfigError(f"{where} stands within measured: {opened[0]}, of line {opened[1]}; give <!-- end --> before it")


def laid_out(old: str, new: str) -> str:
    """Return the new text of a block as the old one stands there: within its line, or on lines of its own."""
    head, tail = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
    if "\n" not in head:
        return new
    if not old.strip():
        head = tail = "\n"
    if "\n" not in new:
        new = textwrap.fill(new, WIDTH, break_long_words=False, break_on_hyphens=False)
    return head + new + tail
