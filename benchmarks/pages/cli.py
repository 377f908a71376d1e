"""`python -m benchmarks readme`: what README and docs/ say was measured, written anew from results/reference."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.files import save_text
from benchmarks.pages.blocks import BLOCKS, Make
from benchmarks.pages.markers import Block, find_blocks, laid_out
from benchmarks.pages.measured import Measured
from resireduce.errors import ConfigError, choose

PAGES = ("README.md", "docs/*.md")
REFERENCE = Path("results/reference")


@dataclass(frozen=True)
class Page:
    """A page as it is, and its blocks with the texts that they should have."""

    path: Path
    text: str
    blocks: tuple[tuple[Block, str], ...]

    def changed(self) -> Iterator[tuple[Block, str]]:
        """Yield the blocks whose text is not what follows from the measurements, with what does."""
        yield from ((one, new) for one, new in self.blocks if self.text[one.start : one.stop] != new)

    def renewed(self) -> str:
        """Return the page with all blocks as they should be."""
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
    """Write the blocks of all pages and name those that changed; or say which is the first that would."""
    pages = read_pages(args.root)
    changed = [(page, block, new) for page in pages for block, new in page.changed()]
    if args.check and changed:
        print(_first_difference(*changed[0], args.root))
        return 1
    for page in pages:
        if not args.check and any(page.changed()):
            save_text(page.renewed(), page.path)
    for page, block, _ in changed:
        print(f"{page.path.relative_to(args.root)}:{block.line}: {block.name}: changed")
    if not changed:
        print(f"{sum(len(page.blocks) for page in pages)} blocks, all as in {args.root / REFERENCE}")
    return 0


def read_pages(root: Path, blocks: Mapping[str, Make] = BLOCKS) -> list[Page]:
    """Return the pages below root that have blocks. ConfigError for a comment or measurements that cannot be used."""
    measured = Measured(root / REFERENCE)
    paths = [path for pattern in PAGES for path in sorted(root.glob(pattern))]
    if not paths:
        raise ConfigError(f"root: {str(root)!r} has no README.md and no docs; give the project's folder")
    pages = [_read(path, path.relative_to(root).as_posix(), measured, blocks) for path in paths]
    return [page for page in pages if page.blocks]


def _read(path: Path, name: str, measured: Measured, blocks: Mapping[str, Make]) -> Page:
    text = path.read_text(encoding="utf-8")
    found = []
    for block in find_blocks(text, name):
        old = text[block.start : block.stop]
        make = blocks[choose(f"{name}:{block.line}: measured", block.name, blocks)]
        try:
            new = make(measured)
        except (KeyError, StopIteration) as error:
            raise ConfigError(f"{name}:{block.line}: {block.name}: {REFERENCE} lacks {error}") from None
        found.append((block, old if new is None else laid_out(old, new)))
    return Page(path, text, tuple(found))


def _first_difference(page: Page, block: Block, new: str, root: Path) -> str:
    old, should = page.text[block.start : block.stop].split("\n"), new.split("\n")
    short = min(len(old), len(should))
    at = next((n for n in range(short) if old[n] != should[n]), short)
    there, made = (lines[at] if at < len(lines) else "(nothing)" for lines in (old, should))
    where = f"{page.path.relative_to(root)}:{block.line + at}: {block.name}"
    return f"{where}\n  there:    {there}\n  measured: {made}\nWrite it anew with: python -m benchmarks readme"
