"""The list of checks, in the order in which they run, and their arguments."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.doctor import check_disk as disk
from benchmarks.doctor import check_driver as driver
from benchmarks.doctor import check_gloo as gloo
from benchmarks.doctor import check_gpu as gpu
from benchmarks.doctor import check_home as home
from benchmarks.doctor import check_horovod as horovod
from benchmarks.doctor import check_limits as limits
from benchmarks.doctor import check_malloc as malloc
from benchmarks.doctor import check_memory as memory
from benchmarks.doctor import check_nccl as nccl
from benchmarks.doctor import check_nvml as nvml
from benchmarks.doctor import check_packages as packages
from benchmarks.doctor import check_shared_memory as shared_memory
from benchmarks.doctor.finding import Finding, failed, not_run, one_line
from benchmarks.doctor.machine_facts import Facts, ask

GPU_CHECKS = ("gpu", "driver", "nvml", "nccl")
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
    "packages": lambda s: packages.check(s.facts),
    "home": lambda s: home.check(),
    "disk": lambda s: disk.check(disk.needs(s.results)),
    "memory": lambda s: memory.check(),
    "malloc": lambda s: malloc.check(s.timeout_seconds),
    "limits": lambda s: limits.check(s.gpus),
    "shared-memory": lambda s: shared_memory.check(s.gpus),
    "gpu": lambda s: gpu.check(s.facts, s.needs_gpu),
    "driver": lambda s: driver.check(s.facts, driver.look(), s.needs_gpu),
    "nvml": lambda s: nvml.check(s.facts, driver.look(), s.needs_gpu),
    "nccl": lambda s: nccl.check(s.facts, s.timeout_seconds, s.needs_gpu),
    "gloo": lambda s: gloo.check(s.timeout_seconds),
    "horovod": lambda s: horovod.check(s.timeout_seconds, s.gpus),
}


def examine(setting: Setting, names: Sequence[str], checks: dict[str, Check] = CHECKS) -> Iterator[list[Finding]]:
    """Yield the findings of each check as soon as it is done. Never raises: a check that raises has failed."""
    for name in names:
        if setting.cpu_only and name in GPU_CHECKS:
            yield [not_run(name, f"{DEVICE_VARIABLE}=cpu: cells are to train without a GPU")]
            continue
        try:
            yield checks[name](setting)
        except OSError as error:
            yield [failed(name, one_line(error), "see checks home and disk")]
        except Exception as error:
            said = one_line(f"the check itself failed: {type(error).__name__}: {error}")
            yield [failed(name, said, "this is a bug: report this line")]
