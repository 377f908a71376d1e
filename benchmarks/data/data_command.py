"""`python -m benchmarks data`: list, check and prepare the data that cells read. Imports no torch."""

import argparse
import sys
from functools import partial
from pathlib import Path

from benchmarks.core.prepared import check_prepared, find_root, open_prepared
from benchmarks.core.registry import DATASETS
from benchmarks.data.dataset import Dataset, damage, download, prepare
from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

DOWNLOADS = "downloads"
_progress = partial(print, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    root = argparse.ArgumentParser(add_help=False)
    text = "folder of prepared data sets (default: $RESIREDUCE_DATA, else data)"
    root.add_argument("--root", type=Path, metavar="DIR", help=text)
    actions.add_parser("list", parents=[root], help="what there is, its terms and size, and what is prepared")
    check = actions.add_parser("check", parents=[root], help="read what is prepared, and say what is damaged")
    check.add_argument("names", nargs="*", metavar="NAME", help="data sets that must be there (default: all prepared)")
    make = actions.add_parser(
        "prepare", parents=[root], help="read published files, check them, and write what cells read"
    )
    make.add_argument("names", nargs="+", metavar="NAME", help=f"one or more of: {', '.join(DATASETS)}")
    make.add_argument("--from", dest="source", type=Path, metavar="DIR", help="folder with the published files")
    make.add_argument("--download", action="store_true", help="fetch them from their publisher into DIR/downloads/NAME")
    weights = actions.add_parser("pretrain", help="train a model densely once, as the start of its cells")
    load("benchmarks.training.pretrain:add_arguments")(weights)


def main(args: argparse.Namespace) -> int:
    """Run the action; return 1 if something that was checked is damaged or missing. Raises ConfigError, one line."""
    if args.action == "pretrain":
        return int(load("benchmarks.training.pretrain:main")(args))
    root = find_root(args.root)
    if root.exists() and not root.is_dir():
        raise ConfigError(f"root: {root} is not a folder; give one, or the name of a new one")
    if args.action == "list":
        return show(root)
    for name in args.names:
        choose("data", name, DATASETS)
    if args.action == "check":
        return check(args.names, root)
    if args.source and (len(args.names) > 1 or args.download):
        raise ConfigError("from: one folder is of one data set, and needs no --download; name one")
    for name in sorted(args.names, key=lambda name: len(load(DATASETS[name]).needs)):
        prepare_one(name, root, args)
    return 0


def show(root: Path) -> int:
    """Print a line for each data set, with its state."""
    rows = [("name", "prepared", "download", "terms", "what it is")]
    for name in DATASETS:
        dataset: Dataset = load(DATASETS[name])
        sizes = [file.size for file in dataset.files] or [None]
        known = [size for size in sizes if size is not None]
        size = f"{sum(known) / 1e6:,.1f} MB" if len(known) == len(sizes) else "not known"
        rows.append((name, _state(name, root), size if dataset.address else "by hand", dataset.terms, dataset.title))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip())
    print(f"in {root}")
    return 0


def _state(name: str, root: Path) -> str:
    try:
        open_prepared(name, root)
    except ConfigError:
        return "damaged" if (root / name).exists() else "no"
    return "yes"


def check(names: list[str], root: Path) -> int:
    """Check the named data sets, or all prepared ones, and print a line for each."""
    wrong, found = 0, names or [name for name in DATASETS if (root / name).exists()]
    if not found:
        print(f"nothing is prepared in {root}")
    for name in found:
        problem = damage(name, load(DATASETS[name]), root, _progress)
        wrong += problem is not None
        print(f"{name}: {problem or 'as it was prepared'}", flush=True)
    return int(wrong > 0)


def prepare_one(name: str, root: Path, args: argparse.Namespace) -> None:
    """Prepare a data set, unless it is already complete and no source is named."""
    dataset: Dataset = load(DATASETS[name])
    folder = root / DOWNLOADS / name
    if args.source is None:
        if (root / name).exists() and damage(name, dataset, root, _progress) is None:
            print(f"{name}: is prepared in {root / name}", flush=True)
            return
        if args.download:
            check_prepared(dataset.needs, root)
            download(name, dataset, folder, _progress)
        elif dataset.missing(folder):
            print("\n".join([f"{name}: {line}" for line in dataset.instructions(folder)]), file=sys.stderr)
            fetch = " or add --download" if dataset.address else ""
            raise ConfigError(
                f"data: no files of {name!r} in {folder}; put them there, name their folder with --from{fetch}"
            )
    prepared = prepare(name, dataset, args.source or folder, root, _progress)
    print(f"{name}: prepared in {prepared.folder}, hash {prepared.hash[:16]}", flush=True)
