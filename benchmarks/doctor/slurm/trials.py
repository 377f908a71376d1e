"""Try out all partitions together: submit their jobs, wait, judge, and leave no job behind."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from benchmarks.core.files import save_json, save_text
from benchmarks.core.progress import to_stderr
from benchmarks.doctor.finding import FAILED, Finding
from benchmarks.doctor.slurm.inventory import Partition
from benchmarks.doctor.slurm.jobs import Rejected, Submitted, cancel, submit, wait
from benchmarks.doctor.slurm.judge_trials import judge, judge_rejected, load
from benchmarks.doctor.slurm.proposal import Tried
from benchmarks.doctor.slurm.slurm_programs import Ask
from benchmarks.doctor.slurm.trial import TRIAL, Trial, command, plan, script
from benchmarks.launching.slurm.site import Site

Planned = tuple[Partition, Trial]


def plans(partitions: Sequence[Partition], chosen: Sequence[str], site: Site) -> tuple[list[Planned], list[Finding]]:
    """Return the jobs for the partitions (or only the chosen ones), and findings on partitions without one."""
    found, untried = list[Planned](), list[Finding]()
    for partition in partitions:
        if chosen and partition.name not in chosen:
            continue
        trial = plan(partition)
        if isinstance(trial, Finding):
            untried.append(trial)
        else:
            own = replace(trial, runtime=site.runtime, image=site.image, interface=site.interface)
            found.append((partition, own))
    return found, untried


def try_out(
    trials: Sequence[Planned],
    chosen: Sequence[str],
    folder: Path,
    account: str | None,
    ask: Ask,
    limit_seconds: float,
    tried: list[Tried],
) -> Iterator[list[Finding]]:
    """Yield the findings on each partition; those that did not fail are added to `tried`.

    Args:
        trials: the jobs.
        chosen: partitions that the user named.
        folder: for the jobs, on a disk that all nodes see.
        account: that of the site file, tried if one is needed.
        ask: runs Slurm's programs.
        limit_seconds: for all jobs together; jobs that have not ended by then are cancelled.
        tried: receives the results.
    """
    jobs, rejected = list[tuple[Partition, Trial, Submitted]](), list[tuple[Trial, Rejected]]()
    with ExitStack() as stack:
        stack.callback(lambda: cancel([job for _, _, job in jobs], ask))
        for partition, trial in trials:
            place = folder / trial.partition
            save_json(asdict(trial), place / TRIAL)
            save_text(script(place), place / "job.sh")
            job = submit(partial(command, trial, place), trial.partition, ask, account)
            if isinstance(job, Rejected):
                rejected.append((trial, job))
            else:
                jobs.append((partition, trial, job))
        yield [judge_rejected(trial, said, trial.partition in chosen or not jobs) for trial, said in rejected]
        begin = time.monotonic()
        wait([job for _, _, job in jobs], ask, limit_seconds, lambda text: to_stderr(f"... {text}"))
        for partition, trial, job in jobs:
            yield _judge(partition, trial, job, folder / trial.partition, time.monotonic() - begin, tried)


def _judge(
    partition: Partition, trial: Trial, job: Submitted, place: Path, waited_seconds: float, tried: list[Tried]
) -> list[Finding]:
    reports = load(place)
    found = judge(trial, job, reports, place, waited_seconds)
    if all(finding.status != FAILED for finding in found):
        worked = [it for it in reports.get("cells", ()) if it["status"] == "ok" and it["backend"] == "torch"]
        tried.append(Tried(partition, job.account, worked[0]["interface"] if worked else None, bool(worked)))
    return found
