"""`doctor --slurm`: examine the cluster, try its partitions, and propose or write the site file."""

import argparse
import fcntl
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.checks import seconds
from benchmarks.core.files import read_text, save_json, save_text, writable
from benchmarks.core.paths import ROOT
from benchmarks.core.progress import to_stderr
from benchmarks.doctor.finding import FAILED, Finding, failed, not_run, ok, warning
from benchmarks.doctor.slurm.judge import judge, judge_rejected, load
from benchmarks.doctor.slurm.slurm_cluster import (
    PROFILE,
    Ask,
    Partition,
    Shape,
    Unanswered,
    asking,
    check_accounting,
    check_settings,
    look,
)
from benchmarks.doctor.slurm.trial import LOCK, TRIAL, Submitted, Trial, cancel, plan, script, submit, wait
from benchmarks.launching.slurm.site import DEFAULT_FILE, SITE_FILE, Site, site_file
from resireduce.errors import ConfigError, choose

# --- the values to propose ---


SHARE = 0.95
"""Share of a node's memory that a job requests; the rest is for Snakemake, on its first node, and the system."""
LEAST_MB = 1000
"""Memory per rank where a node has it, even if the last tries then request more than there is."""
MOST_CPUS = 16
"""Per rank."""
RETRIES = 4
"""Used if the profile cannot be read."""


@dataclass(frozen=True)
class Proposal:
    """Values for the site file; everything else in it stays unchanged."""

    partitions: Mapping[str, Mapping[str, Any]]
    site: Mapping[str, Any]
    main: str
    """The partition whose nodes `site` describes."""
    notes: Sequence[str] = field(default_factory=tuple)


def propose(tried: Sequence[Partition], chosen: Sequence[str], current: Site, tries: int) -> Proposal:
    """Return the values that the site file should have.

    Args:
        tried: those whose job did not fail, at least one; each has a shape.
        chosen: partitions that the user named; the first has priority.
        current: the present values of the site file.
        tries: how often a job may be tried, each time with more memory.
    """
    main = _main(tried, chosen)
    shape = _shape(main)
    types = {kind for one in tried for kind in one.gpu_types}
    site = _site(shape, len(types) > 1, tries)
    longest = max(one.max_minutes for one in tried)
    if longest < current.longest_minutes:
        site |= {"longest_minutes": int(longest)}
    if longest < current.minutes:
        site |= {"minutes": int(longest)}
    others = [one.name for one in tried if _shape(one).gpus != shape.gpus]
    gpus = f"{shape.gpus} GPUs of a node" if shape.gpus else "no GPUs"
    notes = [f"{', '.join(others)} differs: site has the {gpus} of {main.name}"] if others else []
    return Proposal({one.name: limits(one) for one in tried}, site, main.name, notes)


def limits(partition: Partition) -> dict[str, Any]:
    """Return a partition's limits under the names of Snakemake's Slurm plugin."""
    usable, found = partition.usable, dict[str, Any]()
    if math.isfinite(partition.max_minutes):
        found["max_runtime"] = int(partition.max_minutes)
    found["max_nodes"] = min(len(usable), partition.max_nodes or len(usable))
    if gpus := max((count for node in usable for count in node.gpus.values()), default=0):
        found["max_gpu"] = gpus
    if kinds := [kind for kind in partition.gpu_types if kind]:
        found["available_gpu_models"] = kinds
    memory = max(node.memory_mb for node in usable)
    found["max_mem_mb"] = min(memory, partition.max_memory_mb or memory)
    return found


def tries_of(profile: Path = PROFILE) -> int:
    """Return how many times the profile tries a job."""
    try:
        return 1 + int((yaml.safe_load(profile.read_text(encoding="utf-8")) or {}).get("retries", 0))
    except (OSError, yaml.YAMLError, ValueError, TypeError):
        return 1 + RETRIES


def _shape(partition: Partition) -> Shape:
    shape = partition.shape()
    assert shape is not None, f"{partition.name}: tried without a node"
    return shape


def _main(tried: Sequence[Partition], chosen: Sequence[str]) -> Partition:
    """Return the first partition named, else prefer one with GPUs, then Slurm's default, then the largest."""

    def rank(one: Partition) -> tuple[int, bool, bool, int]:
        shape = _shape(one)
        order = -chosen.index(one.name) if one.name in chosen else -len(chosen)
        return order, shape.gpus > 0, one.is_default, shape.nodes * max(1, shape.gpus)

    return max(tried, key=rank)


def _site(shape: Shape, several_types: bool, tries: int) -> dict[str, Any]:
    """Return the values that follow from a node: its ranks must fit with the memory of the last try."""
    found: dict[str, Any] = {"gpus_per_node": shape.gpus}
    if shape.gpus:
        ranks = shape.gpus
        found["gres"] = f"gpu:{shape.gpu_type}" if several_types and shape.gpu_type else "gpu"
    else:
        ranks = found["ranks_per_node"] = max(1, min(8, shape.cpus // 2))
    # Multiples of whole cores, as Slurm gives only these. One CPU is left for the process that starts the ranks.
    cpus = (shape.cpus - 1) // ranks // shape.threads_per_core * shape.threads_per_core
    found["cpus_per_rank"] = max(1, min(MOST_CPUS, cpus))
    once = int(shape.memory_mb * SHARE) // ranks
    found["memory_mb_per_rank"] = max(once // tries, min(once, LEAST_MB))
    return found


HEAD = f"""# Written by: python -m benchmarks doctor --slurm --write FILE
# {DEFAULT_FILE} explains each line. The file that was here before has .old behind its name.
"""


def fill(before: Mapping[str, Any], proposal: Proposal) -> dict[str, Any]:
    """Return the values of a site file with those that are proposed; all others stay as they are."""
    old = before.get("partitions") or {}
    new = {name: {**old.get(name, {}), **values} for name, values in proposal.partitions.items()}
    return {**before, "partitions": {**old, **new}, "site": {**(before.get("site") or {}), **proposal.site}}


def text_of(values: Mapping[str, Any]) -> str:
    """Return values as they stand in the file."""
    return yaml.safe_dump(dict(values), sort_keys=False, width=120)


# --- the jobs ---

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
            named = {name: getattr(site, name) for name in ("runtime", "image", "interface", "account")}
            found.append((partition, replace(trial, **named)))
    return found, untried


def try_out(
    trials: Sequence[Planned],
    chosen: Sequence[str],
    folder: Path,
    ask: Ask,
    limit_seconds: float,
    tried: list[Partition],
) -> Iterator[list[Finding]]:
    """Yield the findings on each partition; those that did not fail are added to `tried`.

    Args:
        trials: the jobs.
        chosen: partitions that the user named.
        folder: for the jobs, on a disk that all nodes see.
        ask: runs Slurm's programs.
        limit_seconds: for all jobs together; jobs that have not ended by then are cancelled.
        tried: receives the results.
    """
    jobs, rejected = list[tuple[Partition, Trial, Submitted]](), list[tuple[Trial, str]]()
    with ExitStack() as stack:
        stack.callback(lambda: cancel([job for _, _, job in jobs], ask))
        for partition, trial in trials:
            place = folder / trial.partition
            save_json(asdict(trial), place / TRIAL)
            save_text(script(place), place / "job.sh")
            lock = stack.enter_context((place / LOCK).open("w"))
            with suppress(OSError):  # a disk without locks, of which the job tells
                fcntl.flock(lock, fcntl.LOCK_EX)
            job = submit(trial, place, ask)
            if isinstance(job, str):
                rejected.append((trial, job))
            else:
                jobs.append((partition, trial, job))
        yield [judge_rejected(trial, said, trial.partition in chosen or not jobs) for trial, said in rejected]
        begin = time.monotonic()
        wait([job for _, _, job in jobs], ask, limit_seconds, lambda text: to_stderr(f"... {text}"))
        for partition, trial, job in jobs:
            place = folder / trial.partition
            found = judge(trial, job, load(place), place, time.monotonic() - begin)
            if all(finding.status != FAILED for finding in found):
                tried.append(partition)
            yield found


# --- the command ---

SECONDS = 600.0
FOLDER = ROOT / "results/cache/doctor"
"""Folder for files of jobs: on the project's disk, as for runs."""
CONTROLLER = "on a login node of the cluster scontrol ping says whether the controller is up"


@dataclass
class Examination:
    """Everything that was found out."""

    findings: list[Finding] = field(default_factory=list)
    """The findings that `examine` has yielded, added by its caller."""
    tried: list[Partition] = field(default_factory=list)
    proposal: Proposal | None = None
    written: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("on a login node of a Slurm cluster")
    group.add_argument("--slurm", action="store_true", help="try the cluster instead, with a job for each partition")
    text = "just this partition, and the site file's values from it; may be given several times"
    group.add_argument("--partition", metavar="NAME", action="append", default=[], help=text)
    group.add_argument("--write", metavar="FILE", type=Path, help=f"write the site file, {SITE_FILE} for example")
    text = f"how long to wait for all jobs, which are then cancelled (default: {SECONDS:g})"
    group.add_argument("--seconds", metavar="SECONDS", help=text)


def refuse_options(args: argparse.Namespace) -> None:
    """Raise ConfigError, with one line, for options of one doctor given to the other."""
    only_slurm = {"partition": args.partition, "write": args.write, "seconds": args.seconds}
    only_machine = {"only": args.only, "gpu": args.gpu}
    for name, value in (only_machine if args.slurm else only_slurm).items():
        if value:
            cure = "leave it out" if args.slurm else "add --slurm, or leave it out"
            raise ConfigError(f"{name}: --{name} is not allowed with{'' if args.slurm else 'out'} --slurm; {cure}")


def examine(args: argparse.Namespace, state: Examination) -> Iterator[list[Finding]]:
    """Yield findings as they come, and store the results in `state`. Raises ConfigError before any work."""
    ask, limit = asking(seconds("timeout", args.timeout)), seconds("seconds", args.seconds or SECONDS)
    target = args.write or SITE_FILE
    source = target if target.exists() else site_file(ROOT)
    current, before = Site.load(source), yaml.safe_load(read_text(source))
    if args.write:
        writable("write", args.write)
    try:
        inventory = look(ask)
    except Unanswered as error:
        yield [failed("slurm", str(error), CONTROLLER)]
        return
    for name in args.partition:
        choose("partition", name, [partition.name for partition in inventory.partitions])
    yield [*check_settings(inventory), check_accounting(inventory, ask)]
    with _folder(state) as folder:
        trials, untried = plans(inventory.partitions, args.partition, current)
        yield untried
        yield from try_out(trials, args.partition, folder, ask, limit, state.tried)
    yield _site_file(args, state, before, current)


def _site_file(args: argparse.Namespace, state: Examination, before: Mapping[str, Any], current: Site) -> list[Finding]:
    """Propose the site file, and write it if requested."""
    target = args.write or SITE_FILE
    if not state.tried:
        return [not_run("site", f"nothing to write into {target}: no partition was found to work")]
    proposal = state.proposal = propose(state.tried, args.partition, current, tries_of())
    filled = fill(before, proposal)
    found = [ok("site", f"values of partition {proposal.main}{''.join(f'; {note}' for note in proposal.notes)}")]
    others = [str(name) for name in filled["partitions"] if name not in proposal.partitions]
    if others and not args.partition:
        said = f"{target} lists partitions that were not found to work: {', '.join(others)}"
        found.append(warning("site", said, "take them out of the file, or see what is said of them above"))
    if not args.write:
        line = f"python -m benchmarks doctor --slurm --write {SITE_FILE}"
        return [*found, not_run("site", f"nothing was written; to write it: {line}")]
    if args.write.exists():
        shutil.copy(args.write, f"{args.write}.old")
    save_text(HEAD + text_of(filled), args.write)
    state.written = str(args.write)
    own = args.write.resolve() == (ROOT / SITE_FILE).resolve()
    options = "" if own else f" --config site={args.write}"
    return [*found, ok("site", f"{args.write} is written; next: snakemake -n --profile slurm{options}")]


@contextmanager
def _folder(state: Examination) -> Iterator[Path]:
    """Yield a folder for this examination; it is kept for its logs if something failed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=FOLDER))
    yield folder
    if not any(finding.status == FAILED for finding in state.findings):
        shutil.rmtree(folder, ignore_errors=True)


def values(state: Examination) -> dict[str, Any]:
    """Return what --json adds to the findings."""
    proposal = state.proposal
    return {
        "partitions": dict(proposal.partitions) if proposal else {},
        "site": dict(proposal.site) if proposal else {},
        "written": state.written,
    }


def proposed(state: Examination) -> str | None:
    """Return the text that would be written; None if it was written, or nothing was found."""
    if state.proposal is None or state.written:
        return None
    return text_of({"partitions": state.proposal.partitions, "site": state.proposal.site}).rstrip()
