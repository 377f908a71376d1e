"""Command line of the experiments: one module for each command, imported only when it is called."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from resireduce.errors import ConfigError, in_one_line

MEASURES = {
    "allocation": (
        "benchmarks.training.measure.calibration",
        "a known allocation, by every method that this machine has",
    ),
    "beside": (
        "benchmarks.micro.beside_command",
        "memory and traffic beside other ways to train in parallel, on the CPU",
    ),
    "counts": ("benchmarks.micro.counts_command", "what compressors that fit a threshold send, against their density"),
    "gpu": ("benchmarks.doctor.gpu.gpu_command", "what only a GPU can show, stretch by stretch"),
    "links": ("benchmarks.micro.links_command", "steps of two nodes joined by a slow link, in every form; needs root"),
    "micro": ("benchmarks.micro.micro_command", "the compression of a gradient, beside plain torch and a copy"),
    "operations": (
        "benchmarks.micro.operations_command",
        "what the host does for a GPU in a step: operations and launches, counted without one",
    ),
    "pace": ("benchmarks.micro.pace", "steps of streamed gradients beside kept ones, in turn"),
    "saved-states": (
        "benchmarks.training.plan_of_cell",
        "by plan, the share of states saved on 64 ranks, as in Fig. 9",
    ),
    "states": ("benchmarks.analysis.states", "by plan, the states that claims compare with: results/paper/states.json"),
    "testbed": ("benchmarks.micro.testbed_command", "steps of nodes and their parts, for the simulator; needs root"),
}
"""What `measure` measures, or plans, each a module and a line about it."""
Commands = dict[str, tuple[str, str]]
GROUPS: dict[str, Commands] = {
    "Run": {
        "cells": ("benchmarks.analysis.budget", "check a config and list its cells; --budget: their cost"),
        "data": ("benchmarks.data.data_command", "list, check and prepare data sets and pretrained weights"),
        "run": ("benchmarks.launching.run", "train one cell and write its record"),
        "resume": ("benchmarks.workflow.resume", "go on with a run after whatever stopped it, on a cluster or here"),
        "measure": ("", "measure what cells do not: " + ", ".join(MEASURES)),
        "simulate": (
            "benchmarks.simulation.simulate_command",
            "compute how long a step would take on a cluster that is described; nothing is measured",
        ),
    },
    "Look": {
        "report": ("benchmarks.analysis.report_command", "make tables, figures and the page of a run from its records"),
        "summary": (
            "benchmarks.analysis.summaries",
            "sum a run up as JSON: intervals, tell, rivals, systems, rates, tuned or reach",
        ),
        "claims": (
            "benchmarks.analysis.claims.claims_command",
            "say what a run shows of each claim of the paper and of our own",
        ),
        "bundle": ("benchmarks.analysis.bundle.pack", "pack a run and all that it rests on into one zip"),
        "verify": ("benchmarks.analysis.bundle.verify", "check a bundle, and make its tables from its records again"),
    },
    "Maintain": {
        "doctor": ("benchmarks.doctor.doctor_command", "check this machine or image, and name a cure of what is wrong"),
        "image": (
            "benchmarks.images.image_command",
            "build container images, export them, run commands with an engine",
        ),
        "check": (
            "benchmarks.analysis.check_command",
            "compare a run with the committed measurements; with --accept, replace these by it",
        ),
        "pages": ("benchmarks.analysis.results_page", "make docs/results.md and its pictures from results/reference"),
    },
}
"""Commands in the groups in which `--help` shows them, each a module and a line about it."""
COMMANDS: Commands = {name: one for group in GROUPS.values() for name, one in group.items()}
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130


def _listed(commands: Commands) -> str:
    return "\n".join(f"  {name:<13} {said}" for name, (_, said) in commands.items())


def _add_commands(parser: argparse.ArgumentParser, commands: Commands, given: Sequence[str]) -> None:
    """Add the commands' parsers; only the module of the given one is imported, so that report needs no torch."""
    parsers = parser.add_subparsers(required=True, metavar="COMMAND", help="one of those below")
    for name, (module, said) in commands.items():
        one = parsers.add_parser(name, description=f"{said[0].upper()}{said[1:]}.")
        if given[:1] == [name] and not module:
            one.formatter_class, one.epilog = argparse.RawDescriptionHelpFormatter, _listed(MEASURES)
            _add_commands(one, MEASURES, given[1:])
        elif given[:1] == [name]:
            loaded = import_module(module)
            loaded.add_arguments(one)
            one.set_defaults(main=loaded.main)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; bad input ends it with one line on the error stream and exit status 2.

    A refusal by the system (a full disk, another user's files) ends it likewise with status 1, and Ctrl-C with 130.
    """
    given = sys.argv[1:] if arguments is None else arguments
    groups = "\n\n".join(f"{name}:\n{_listed(commands)}" for name, commands in GROUPS.items())
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks", formatter_class=raw, epilog=groups)
    try:
        _add_commands(parser, COMMANDS, given)
        args = parser.parse_args(given)
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


def _end(error: object, status: int) -> int:
    print(f"error: {in_one_line(error)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (who started this may close it)
    # A file name can contain bytes that are not valid text.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
