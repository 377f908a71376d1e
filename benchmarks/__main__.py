"""Command line of the experiments: one module for each command, imported only when it is called."""

import argparse
import os
import sys
from importlib import import_module

from resireduce.errors import ConfigError

COMMANDS = {
    "cells": ("benchmarks.cells", "check a config and list its cells"),
    "data": ("benchmarks.data.command", "list, check and prepare data sets and pretrained weights"),
    "budget": ("benchmarks.budget.cli", "say what a config will cost, from recorded runs"),
    "claims": ("benchmarks.claims.cli", "say what a run shows of each claim of the paper and of our own"),
    "run": ("benchmarks.run", "train one cell and write its record"),
    "resume": ("benchmarks.resume", "go on with a run after whatever stopped it, on a cluster or here"),
    "measure": ("benchmarks.measure.known", "measure a known allocation by every method that this machine has"),
    "beside": ("benchmarks.beside.cli", "measure this library beside other ways to train in parallel, on the CPU"),
    "pace": ("benchmarks.pace", "time streamed gradients beside kept ones, in turn"),
    "pretrain": ("benchmarks.pretrain", "train a model densely once, as the start of its cells"),
    "doctor": ("benchmarks.doctor.cli", "check this machine or image, and say the cure of what is wrong"),
    "gpu-check": ("benchmarks.gpucheck.cli", "measure what only a GPU can show, stretch by stretch"),
    "image": ("benchmarks.images.cli", "build container images, export them, run commands with an engine"),
    "report": ("benchmarks.report.cli", "make tables, figures and the page of a run from its records"),
    "check": ("benchmarks.regression.cli", "compare a run with committed measurements, or make it these"),
    "bundle": ("benchmarks.bundle.cli", "pack a run and all that it rests on into one zip"),
    "verify": ("benchmarks.bundle.verify", "check a bundle, and make its tables from its records again"),
    "precision": (
        "benchmarks.report.precision",
        "compare precisions of residuals in a run of config/precision.yaml",
    ),
    "intervals": (
        "benchmarks.report.intervals",
        "how sure the metrics of a run are over its seeds, as JSON and as the table of README",
    ),
    "readme": ("benchmarks.pages.cli", "write anew what README and docs say was measured, from results/reference"),
    "states": ("benchmarks.states", "write what plan says that models of the claims hold, for the ledger"),
    "tell": ("benchmarks.report.tell", "find out from a run of config/tell.yaml which models can tell schemes apart"),
}
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


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
    """Run one command; bad input ends it with one line on the error stream and exit status 2.

    So does what the system refuses (a full disk, files of others) with status 1, and Ctrl-C with 130.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        args = build_parser(given[0] if given else None).parse_args(given)
        return int(args.main(args))
    except ConfigError as error:
        return _end(error, BAD_INPUT)
    except KeyboardInterrupt:
        return _end("stopped by Ctrl-C", INTERRUPTED)
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _end(error, FAILED)


def _end(error: object, status: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    # A name of a file can have bytes that are no text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
