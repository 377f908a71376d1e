"""`python -m benchmarks readme`: rewrite the measured passages of README and docs/ from results/reference.

`<!-- measured: NAME -->` begins a block, `<!-- end -->` ends it. Within a line, such as a table cell, the text stays on
that line. Where the comments have lines of their own, a paragraph between them is wrapped.
"""

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.analysis.readme.blocks import BLOCKS
from benchmarks.analysis.readme.measured import Measured
from benchmarks.analysis.readme.seeds_block import FILE
from benchmarks.analysis.readme.systems_block import RIVALS, SYSTEMS
from benchmarks.core.cell import Cell
from benchmarks.core.files import save_text
from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

COMMENT = re.compile(r"<!--\s*(measured\b.*?|end)\s*-->", re.DOTALL)
WIDTH = 120


@dataclass(frozen=True)
class Block:
    """A block of a page; its text is page[start:stop]."""

    name: str
    line: int
    """The line of the comment that begins the block, counted from 1."""
    start: int
    stop: int


def find_blocks(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page's text, in order.

    page: its name, for ConfigError, which is raised for a block that is not closed, an end without a beginning, or a
    comment that begins a line without filling it, as Markdown would then not format the line.
    """
    opened: tuple[str, int, int] | None = None
    for comment in COMMENT.finditer(text):
        line = text.count("\n", 0, comment.start()) + 1
        where = f"{page}:{line}: {comment[0]}"
        if comment[1] == "end" and opened is None:
            raise ConfigError(f"{where} ends nothing; give <!-- measured: NAME --> before it")
        if comment[1] != "end" and opened is not None:
            within = f"{where} stands within measured: {opened[0]}, of line {opened[1]}"
            raise ConfigError(f"{within}; give <!-- end --> before it")
        if text[: comment.start()].endswith("\n") and text[comment.end() : comment.end() + 1] not in ("", "\n"):
            raise ConfigError(f"{where} begins a line that goes on; give it a line of its own, or put words before it")
        if opened:
            yield Block(opened[0], opened[1], opened[2], comment.start())
        opened = None if opened else (comment[1].partition(":")[2].strip(), line, comment.end())
    if opened:
        raise ConfigError(f"{page}:{opened[1]}: measured: {opened[0]} is not closed; give <!-- end --> behind it")


def laid_out(old: str, new: str) -> str:
    """Return the new text of a block laid out like the old one: within its line, or on lines of its own."""
    head, tail = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
    if "\n" not in head:
        return new
    if not old.strip():
        head = tail = "\n"
    if "\n" not in new:
        new = textwrap.fill(new, WIDTH, break_long_words=False, break_on_hyphens=False)
    return head + new + tail


PAGES = ("README.md", "docs/*.md")
REFERENCE = Path("results/reference")


@dataclass(frozen=True)
class Page:
    """A page as it is, and its blocks with the texts they should have."""

    path: Path
    text: str
    blocks: tuple[tuple[Block, str], ...]

    def changed(self) -> Iterator[tuple[Block, str]]:
        """Yield the blocks whose text does not follow from the measurements, each with the text that does."""
        yield from ((one, new) for one, new in self.blocks if self.text[one.start : one.stop] != new)

    def renewed(self) -> str:
        """Return the page with all blocks up to date."""
        parts, place = [], 0
        for one, new in self.blocks:
            parts += [self.text[place : one.start], new]
            place = one.stop
        return "".join([*parts, self.text[place:]])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1, and the first that differs")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder (default: the current one)")


def main(args: argparse.Namespace) -> int:
    """Update the blocks of all pages and name those that changed, or only report the first that would change."""
    pages = read_pages(args.root)
    changed = [(page, block, new) for page in pages for block, new in page.changed()]
    if args.check and changed:
        print(_first_difference(*changed[0], args.root))
        return 1
    for page in pages:
        if not args.check and any(page.changed()):
            save_text(page.renewed(), page.path)
    if not args.check and (changed or not all((args.root / path).exists() for path in PICTURES)):
        save_pictures(Measured(args.root / REFERENCE), args.root)
    for page, block, _ in changed:
        print(f"{page.path.relative_to(args.root)}:{block.line}: {block.name}: changed")
    if not changed:
        print(f"{sum(len(page.blocks) for page in pages)} blocks, all as in {args.root / REFERENCE}")
    return 0


def read_pages(root: Path) -> list[Page]:
    """Return the pages below `root` that have blocks. Raises ConfigError for unusable comments or measurements."""
    measured = Measured(root / REFERENCE)
    paths = [path for pattern in PAGES for path in sorted(root.glob(pattern))]
    if not paths:
        raise ConfigError(f"root: {str(root)!r} has no README.md and no docs; give the project's folder")
    pages = [_read(path, path.relative_to(root).as_posix(), measured) for path in paths]
    return [page for page in pages if page.blocks]


def _read(path: Path, name: str, measured: Measured) -> Page:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: no text in UTF-8 ({error}); save it as UTF-8") from None
    found = []
    for block in find_blocks(text, name):
        old = text[block.start : block.stop]
        make = BLOCKS[choose(f"{name}:{block.line}: measured", block.name, BLOCKS)]
        where = f"{name}:{block.line}: {block.name}: {REFERENCE}"
        try:
            new = make(measured)
        except ConfigError:
            raise
        except (LookupError, StopIteration) as error:
            raise ConfigError(f"{where} lacks {error}; restore it from the repository") from None
        except (TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
            said = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{where} has values of no use ({said}); restore it from the repository") from None
        found.append((block, laid_out(old, new)))
    return Page(path, text, tuple(found))


def _schemes(measured: Measured) -> Any:
    """Return memory against accuracy, each scheme with the interval of its metric over seeds."""
    rows = [Cell(model=row["model"]).to_dict() | row for row in measured.load(FILE)["rows"]]
    return load("benchmarks.analysis.charts.trade_off:trade_off_chart")(rows, rows)


def _rivals(measured: Measured, chart: str) -> Any:
    """Return one of the charts that compare compressors."""
    return load(f"benchmarks.analysis.charts.rivals_chart:{chart}")(measured.load(RIVALS)["rows"])


def _systems(measured: Measured) -> Any:
    """Return the chart that compares systems."""
    return load("benchmarks.analysis.charts.rivals_chart:systems_chart")(measured.load(SYSTEMS)["rows"])


PICTURES: Mapping[Path, Callable[[Measured], Any]] = {
    Path("docs/memory-against-accuracy.svg"): _schemes,
    Path("docs/contraction-against-bytes.svg"): partial(_rivals, chart="contraction_chart"),
    Path("docs/lost-against-bytes.svg"): partial(_rivals, chart="lost_chart"),
    Path("docs/systems.svg"): _systems,
}


def save_pictures(measured: Measured, root: Path) -> None:
    """Draw the measurements below `root`. Pictures are not compared, as letter widths depend on the machine."""
    for path, chart in PICTURES.items():
        save_text(load("benchmarks.analysis.charts.draw:drawn")(path.stem, chart(measured)).svg + "\n", root / path)


def _first_difference(page: Page, block: Block, new: str, root: Path) -> str:
    old, should = page.text[block.start : block.stop].split("\n"), new.split("\n")
    short = min(len(old), len(should))
    at = next((n for n in range(short) if old[n] != should[n]), short)
    there, made = (lines[at] if at < len(lines) else "(nothing)" for lines in (old, should))
    where = f"{page.path.relative_to(root)}:{block.line + at}: {block.name}"
    return f"{where}\n  there:    {there}\n  measured: {made}\nWrite it anew with: python -m benchmarks readme"
