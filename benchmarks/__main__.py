"""Command line of the experiments: one module for each command, imported only when it is called."""

import argparse
import sys
from importlib import import_module

from resireduce.errors import ConfigError

COMMANDS = {
    "cells": ("benchmarks.cells", "check a config and list its cells"),
    "data": ("benchmarks.data.command", "list, check and prepare data sets and pretrained weights"),
    "budget": ("benchmarks.budget.cli", "say what a config will cost, from recorded runs"),
    "run": ("benchmarks.run", "train one cell and write its record"),
    "measure": ("benchmarks.measure.known", "measure a known allocation by every method that this machine has"),
    "pretrain": ("benchmarks.pretrain", "train a model densely once, as the start of its cells"),
    "gpu-check": ("benchmarks.gpucheck.cli", "measure models of full size on one GPU, part by part"),
    "report": ("benchmarks.report.cli", "make tables, figures and the page of a run from its records"),
    "precision": (
        "benchmarks.report.precision",
        "compare precisions of residuals in a run of config/precision.yaml",
    ),
    "intervals": (
        "benchmarks.report.intervals",
        "how sure the metrics of a run are over its seeds, as JSON and as the table of README",
    ),
    "tell": ("benchmarks.report.tell", "find out from a run of config/tell.yaml which models can tell schemes apart"),
}
BAD_INPUT = 2


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the named command's module is imported, so that report needs no torch."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        subparser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
        if name == command:
            loaded = import_module(module)
            loaded.add_arguments(subparser)
            subparser.set_defaults(main=loaded.main)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; bad input ends it with one line on the error stream and exit status 2."""
    given = sys.argv[1:] if arguments is None else arguments
    args = build_parser(given[0] if given else None).parse_args(given)
    try:
        return int(args.main(args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
