"""The command line of the doctor. Loads no torch."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.core.checks import seconds
from benchmarks.core.devices import DEVICE_VARIABLE, wanted_device
from benchmarks.doctor import measure_links
from benchmarks.doctor.check_list import CHECKS, Setting, examine
from benchmarks.doctor.finding import FAILED, STATUSES, Finding
from benchmarks.doctor.slurm import slurm_command as slurm
from resireduce.errors import ConfigError, choose

RESULTS = Path("results/runs")
TIMEOUT_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--only", metavar="NAME[,NAME]", help=f"just these of: {', '.join(CHECKS)}")
    parser.add_argument("--gpu", action="store_true", help="a GPU is needed: that there is none is a failure")
    parser.add_argument("--json", action="store_true", help="print JSON; the lines go to the error stream")
    results = "where results will be written (default: %(default)s)"
    parser.add_argument("--results", metavar="DIR", type=Path, default=RESULTS, help=results)
    timeout = "how long each process that a check starts may take (default: %(default)g)"
    parser.add_argument("--timeout", metavar="SECONDS", default=TIMEOUT_SECONDS, help=timeout)
    slurm.add_arguments(parser)
    measure_links.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print one line for each finding as soon as it is known. Returns 0 if nothing failed, else 1."""
    slurm.refuse_options(args)
    measure_links.refuse_options(args)
    state, screen = slurm.Examination(), sys.stderr if args.json else sys.stdout
    begin = time.monotonic()
    for found in slurm.examine(args, state) if args.slurm else _examine_machine(args):
        state.findings += found
        for finding in found:
            print(line(finding), file=screen, flush=True)
    took, counts = time.monotonic() - begin, count(state.findings)
    if text := slurm.proposed(state):
        print(text, file=screen)
    print(summary(counts, took), file=screen)
    if args.json:
        values = {"findings": [asdict(it) for it in state.findings], "counts": counts, "seconds": round(took, 1)}
        print(json.dumps(values | (slurm.values(state) if args.slurm else {}), indent=1))
    return int(counts[FAILED] > 0)


def _examine_machine(args: argparse.Namespace) -> Iterator[list[Finding]]:
    if args.links is not None:
        return iter([measure_links.measure(args)])
    names = list(CHECKS) if args.only is None else chosen(args.only)
    return examine(make_setting(args.gpu, args.results, seconds("timeout", args.timeout)), names)


def chosen(text: str) -> list[str]:
    """Return the names in a comma-separated list, in the order in which checks run. Raises ConfigError."""
    names = [choose("only", name.strip(), CHECKS) for name in text.split(",")]
    return [name for name in CHECKS if name in names]


def make_setting(needs_gpu: bool, results: Path, timeout_seconds: float) -> Setting:
    """Return the settings, including RESIREDUCE_DEVICE. Raises ConfigError if that forbids a needed GPU."""
    device = wanted_device()
    if needs_gpu and device == "cpu":
        raise ConfigError(f"gpu: --gpu is not allowed with {DEVICE_VARIABLE}=cpu; leave out one of them")
    return Setting(needs_gpu or device == "cuda", device == "cpu", results, timeout_seconds)


def line(finding: Finding) -> str:
    """Return a finding for the screen."""
    cure = f" -> {finding.cure}" if finding.cure else ""
    return f"{finding.status:<8} {finding.check:<14} {finding.detail}{cure}"


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """Return how many findings have each status."""
    return {status: sum(finding.status == status for finding in findings) for status in STATUSES}


def summary(counts: dict[str, int], took_seconds: float) -> str:
    """Return the last line."""
    return f"{', '.join(f'{number} {status}' for status, number in counts.items())} ({took_seconds:.0f} s)"
