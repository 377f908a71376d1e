"""Command line of the experiments: one module for each command, imported only when it is called."""

import argparse
import os
import re
import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from benchmarks.core.option_types import named_path, number, whole_number
from resireduce.errors import ConfigError, check_given, choose, in_one_line

GROUPS = {
    "To run cells": {
        "cells": ("benchmarks.core.config_reader", "check a config and list its cells"),
        "budget": ("benchmarks.analysis.budget.budget_command", "estimate what a config will cost, from recorded runs"),
        "data": ("benchmarks.data.data_command", "list, check and prepare data sets and pretrained weights"),
        "pretrain": ("benchmarks.training.pretrain", "train a model densely once, as the start of its cells"),
        "run": ("benchmarks.launching.run", "train one cell and write its record"),
        "resume": ("benchmarks.workflow.resume", "go on with a run after whatever stopped it, on a cluster or here"),
    },
    "To read results": {
        "report": ("benchmarks.analysis.report_command", "make tables, figures and the page of a run from its records"),
        "claims": (
            "benchmarks.analysis.claims.claims_command",
            "say what a run shows of each claim of the paper and of our own",
        ),
        "intervals": (
            "benchmarks.analysis.tables.intervals",
            "write how sure the metrics of a run are over its seeds; prints the table of docs/results.md",
        ),
        "precision": (
            "benchmarks.analysis.tables.precision_table",
            "compare precisions of residuals in a run of config/precision.yaml",
        ),
        "rivals": (
            "benchmarks.analysis.rivals.rivals_command",
            "compare compressors in a run of config/rivals.yaml: metric lost, bytes sent and held, contraction",
        ),
        "systems": (
            "benchmarks.analysis.rivals.systems_command",
            "compare systems in a run of config/systems.yaml: metric lost, bytes sent and held, seconds of a step",
        ),
        "tell": (
            "benchmarks.analysis.tables.sensitivity",
            "find out from a run of config/tell.yaml which models can tell schemes apart",
        ),
        "bundle": ("benchmarks.analysis.bundle.bundle_command", "pack a run and all that it rests on into one zip"),
        "verify": ("benchmarks.analysis.bundle.verify", "check a bundle, and make its tables from its records again"),
    },
    "To measure and simulate": {
        "measure": (
            "benchmarks.training.measure.calibration",
            "measure a known allocation by every method that this machine has",
        ),
        "beside": (
            "benchmarks.micro.beside_command",
            "measure memory and traffic beside other ways to train in parallel, on the CPU",
        ),
        "micro": (
            "benchmarks.micro.micro_command",
            "time the compression of a gradient, beside plain torch and a copy",
        ),
        "counts": (
            "benchmarks.micro.counts_command",
            "count what compressors that fit a threshold send, for known distributions, against their density",
        ),
        "pace": ("benchmarks.micro.pace", "time steps of streamed gradients beside kept ones, in turn"),
        "links": (
            "benchmarks.micro.links_command",
            "time steps of two nodes on this machine, joined by a slow link, in every form; needs root",
        ),
        "testbed": (
            "benchmarks.micro.testbed_command",
            "time steps of nodes on this machine, and their parts, which the simulator needs to know; needs root",
        ),
        "saved-states": (
            "benchmarks.training.saved_states",
            "plan the share of the model states that is saved on the paper's models and 64 ranks, as in its Fig. 9",
        ),
        "gpu-check": ("benchmarks.doctor.gpu.gpu_command", "measure what only a GPU can show, stretch by stretch"),
        "simulate": (
            "benchmarks.simulation.simulate_command",
            "compute how long a step would take on a cluster that is described; nothing is measured",
        ),
    },
    "To maintain": {
        "doctor": ("benchmarks.doctor.doctor_command", "check this machine or image, and name a cure of what is wrong"),
        "image": (
            "benchmarks.images.image_command",
            "build container images, export them, run commands with an engine",
        ),
        "check": (
            "benchmarks.analysis.check.check_command",
            "compare a run with the committed measurements; with --accept, replace these by it",
        ),
        "pages": ("benchmarks.analysis.results_page", "make docs/results.md and its pictures from results/reference"),
        "states": (
            "benchmarks.analysis.states",
            "plan the model states that claims compare with; writes results/paper/states.json",
        ),
    },
}
"""Commands, each a module and a line about it, by what they are for: the order in which the help lists them."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the named command's module is imported, so that report needs no torch."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=_overview(), formatter_class=raw)
    # With a help of their own argparse would list the commands again, without groups.
    text = "one of those above"
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="command", help=text)
    for name, (module, said) in COMMANDS.items():
        subparser = commands.add_parser(name, description=f"{said[0].upper()}{said[1:]}.")
        if name == command:
            loaded = import_module(module)
            for kind, read in ((Path, named_path), (int, whole_number), (float, number)):
                subparser.register("type", kind, read)
            loaded.add_arguments(subparser)
            subparser.set_defaults(main=loaded.main, parser=subparser)
    return parser


def _overview() -> str:
    """Return the help's list of commands, group by group."""
    lines = []
    for group, commands in GROUPS.items():
        lines += [f"{group}:", *(f"  {name:<13} {text}" for name, (_, text) in commands.items()), ""]
    return "\n".join([*lines, "Options of a command: python -m benchmarks COMMAND --help"])


def main(arguments: list[str] | None = None) -> int:
    """Run one command; bad input ends it with one line on the error stream and exit status 2.

    A refusal by the system (a full disk, another user's files) ends it likewise with status 1, and Ctrl-C with 130.
    """
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and not given[0].startswith("-"):
            choose("command", given[0], COMMANDS)
        check_given(given)
        args, unknown = build_parser(given[0] if given else None).parse_known_args(given)
        if unknown:
            args.parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown[0], args.parser)}")
        return int(args.main(args))
    except ConfigError as error:
        return _end(error, BAD_INPUT)
    except KeyboardInterrupt:
        return _end("stopped by Ctrl-C", INTERRUPTED)
    except BrokenPipeError:  # the reader has closed the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return _end(error, FAILED)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("benchmarks", "resireduce"):
            raise
        return _end(f"{error}: {sys.executable} lacks a package; make sets up .venv/bin/python, which has all", FAILED)


def _meant(option: str, parser: argparse.ArgumentParser) -> str:
    """Return a hint at the option of a command that is written most like an unknown one; "" if none is."""
    close = get_close_matches(option.partition("=")[0], re.findall("--[a-z-]+", parser.format_usage()), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _end(error: object, status: int) -> int:
    print(f"error: {in_one_line(error)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (who started this may close it)
    # A file name can contain bytes that are not valid text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
