"""The command line of the doctor, and its checks in the order in which they run. Loads no torch."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.core.checks import seconds
from benchmarks.core.devices import DEVICE_VARIABLE, wanted_device
from benchmarks.core.paths import RUNS
from benchmarks.doctor import links
from benchmarks.doctor import machine_checks as machine
from benchmarks.doctor import slurm_checks as slurm
from benchmarks.doctor.machine_checks import FAILED, STATUSES, Facts, Finding, ask, failed, not_run, one_line
from resireduce.errors import ConfigError, choose

GPU_CHECKS = ("gpu", "nvml", "nccl")
"""Checks that concern only GPUs."""


@dataclass(frozen=True)
class Setting:
    """What the command line and the environment request."""

    needs_gpu: bool
    cpu_only: bool
    results: Path
    timeout_seconds: float

    @cached_property
    def facts(self) -> Facts:
        """What torch and NVML report; asked for by the first check that needs it."""
        return ask(self.timeout_seconds, hide_gpus=self.cpu_only)

    @property
    def gpus(self) -> int:
        """The number of GPUs that cells may use."""
        return 0 if self.cpu_only else len(self.facts.gpus)


Check = Callable[[Setting], list[Finding]]

CHECKS: dict[str, Check] = {
    "packages": lambda s: [machine.check_packages(s.facts)],
    "folders": lambda s: machine.check_folders(),
    "disk": lambda s: [machine.check_disk(s.results)],
    "memory": lambda s: [machine.check_memory()],
    "shared-memory": lambda s: [machine.check_shared_memory(s.gpus)],
    "gpu": lambda s: machine.check_gpu(s.facts, s.needs_gpu),
    "nvml": lambda s: machine.check_nvml(s.facts, s.needs_gpu),
    "nccl": lambda s: machine.check_nccl(s.facts, s.timeout_seconds, s.needs_gpu),
    "gloo": lambda s: machine.check_gloo(s.timeout_seconds),
    "horovod": lambda s: machine.check_horovod(s.timeout_seconds, s.gpus),
}


def examine(setting: Setting, names: Sequence[str], checks: dict[str, Check] = CHECKS) -> Iterator[list[Finding]]:
    """Yield the findings of each check as soon as it is done. Never raises: a check that raises has failed."""
    for name in names:
        if setting.cpu_only and name in GPU_CHECKS:
            yield [not_run(name, f"{DEVICE_VARIABLE}=cpu: cells are to train without a GPU")]
            continue
        try:
            yield checks[name](setting)
        except Exception as error:
            said = one_line(f"the check itself failed: {type(error).__name__}: {error}")
            yield [failed(name, said, "this is a bug: report this line")]


TIMEOUT_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", metavar="NAME[,NAME]", help=f"just these of: {', '.join(CHECKS)}")
    what.add_argument("--slurm", action="store_true", help="examine the cluster instead; no job is started")
    text = "measure the links between ranks instead, and write them as a cluster for simulate --cluster FILE"
    what.add_argument("--links", metavar="FILE", type=Path, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON; the lines go to the error stream")
    results = "where results will be written (default: %(default)s)"
    parser.add_argument("--results", metavar="DIR", type=Path, default=RUNS, help=results)
    timeout = "how long each process that a check starts may take (default: %(default)g)"
    parser.add_argument("--timeout", metavar="SECONDS", default=TIMEOUT_SECONDS, help=timeout)
    slurm.add_arguments(parser)
    links.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print one line for each finding as soon as it is known. Returns 0 if nothing failed, else 1."""
    if (args.write or args.partition) and not args.slurm:
        raise ConfigError("slurm: --write and --partition are of no use without --slurm; add it")
    findings, screen, begin = list[Finding](), sys.stderr if args.json else sys.stdout, time.monotonic()
    for found in slurm.examine(args) if args.slurm else _examine_machine(args):
        findings += found
        for finding in found:
            print(line(finding), file=screen, flush=True)
    took = time.monotonic() - begin
    counts = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    print(f"{', '.join(f'{number} {status}' for status, number in counts.items())} ({took:.0f} s)", file=screen)
    if args.json:
        values = {"findings": [asdict(it) for it in findings], "counts": counts, "seconds": round(took, 1)}
        print(json.dumps(values, indent=1))
    return int(counts[FAILED] > 0)


def _examine_machine(args: argparse.Namespace) -> Iterator[list[Finding]]:
    if args.links is not None:
        return iter([links.measure(args)])
    only = [choose("only", name.strip(), CHECKS) for name in args.only.split(",")] if args.only else CHECKS
    device = wanted_device()
    setting = Setting(device == "cuda", device == "cpu", args.results, seconds("timeout", args.timeout))
    return examine(setting, [name for name in CHECKS if name in only])


def line(finding: Finding) -> str:
    """Return a finding for the screen."""
    cure = f" -> {finding.cure}" if finding.cure else ""
    return f"{finding.status:<8} {finding.check:<14} {finding.detail}{cure}"
