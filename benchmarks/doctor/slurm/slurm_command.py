"""`doctor --slurm`: examine the cluster, ask whether its partitions take a job, and propose or write the site file."""

import argparse
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.core.checks import seconds
from benchmarks.core.files import read_text, save_text, writable
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import Finding, failed, not_run, ok, one_line, warning
from benchmarks.doctor.slurm.slurm_cluster import (
    PROFILE,
    Ask,
    Partition,
    Shape,
    check_accounting,
    check_settings,
    look,
)
from benchmarks.launching.slurm.queue import ask as ask_slurm
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
    note: str
    """What it does not fit, or empty."""


def propose(usable: Sequence[Partition], chosen: Sequence[str], current: Site, tries: int) -> Proposal:
    """Return the values that the site file should have.

    Args:
        usable: those that take a job, at least one; each has a shape.
        chosen: partitions that the user named; the first has priority.
        current: the present values of the site file.
        tries: how often a job may be tried, each time with more memory.
    """

    def rank(one: Partition) -> tuple[int, bool, bool, int]:
        """The first partition named, else prefer one with GPUs, then Slurm's default, then the largest."""
        shape = _shape(one)
        order = -chosen.index(one.name) if one.name in chosen else -len(chosen)
        return order, shape.gpus > 0, one.is_default, shape.nodes * max(1, shape.gpus)

    main = max(usable, key=rank)
    shape = _shape(main)
    types = {kind for one in usable for kind in one.gpu_types}
    site = _site(shape, len(types) > 1, tries)
    longest = max(one.max_minutes for one in usable)
    if longest < current.longest_minutes:
        site |= {"longest_minutes": int(longest)}
    if longest < current.minutes:
        site |= {"minutes": int(longest)}
    others = [one.name for one in usable if _shape(one).gpus != shape.gpus]
    gpus = f"{shape.gpus} GPUs of a node" if shape.gpus else "no GPUs"
    note = f"; {', '.join(others)} differs: site has the {gpus} of {main.name}" if others else ""
    return Proposal({one.name: limits(one) for one in usable}, site, main.name, note)


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
    assert shape is not None, f"{partition.name}: has no node"
    return shape


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


# --- would it take a job? ---


def find_usable(
    partitions: Sequence[Partition], chosen: Sequence[str], account: str | None, ask: Ask
) -> tuple[list[Partition], list[Finding]]:
    """Return those of the partitions (or of the chosen ones) that take a job, and a finding on each.

    Nothing is submitted: sbatch says whether it would take a job on one node with all its GPUs.
    """
    usable, refused, found = list[Partition](), dict[str, str](), list[Finding]()
    for partition in partitions:
        name, shape = partition.name, partition.shape()
        if chosen and name not in chosen:
            continue
        if partition.state != "UP":
            found.append(not_run("job", f"partition {name}: its state is {partition.state}"))
            continue
        if shape is None:
            found.append(not_run("job", f"partition {name}: none of its {len(partition.nodes)} nodes can be used"))
            continue
        try:
            ask(command(name, shape, account))
        except ConfigError as error:
            refused[name] = str(error)
            continue
        usable.append(partition)
        gpus = f"{shape.gpus} GPUs" if shape.gpus else "no GPUs"
        with_account = f"account {account}" if account else "no account needed"
        found.append(ok("job", f"partition {name}: takes a job on a node with {gpus}, {with_account}"))
    found += [_refusal(name, error, name in chosen or not usable) for name, error in refused.items()]
    return usable, found


def command(partition: str, shape: Shape, account: str | None) -> list[str]:
    """Return the command that asks sbatch whether it would take a job on a node."""
    options = [f"--partition={partition}", "--nodes=1", "--time=1"]
    options += [f"--gres=gpu:{shape.gpu_type}{':' * bool(shape.gpu_type)}{shape.gpus}"] if shape.gpus else []
    options += [f"--account={account}"] if account else []
    return ["sbatch", "--test-only", *options, "--wrap=true"]


def _refusal(partition: str, error: str, is_needed: bool) -> Finding:
    """Judge a refusal of sbatch: a failure, unless others take jobs and nobody asked for this partition."""
    said = f"partition {partition}: {error}"
    if not is_needed:
        return not_run("job", one_line(f"{said}; it is left out", 300))
    if "account" in error.lower() or "association" in error.lower():
        cure = "set account in slurm/partitions.yaml to one of: sacctmgr show user $USER withassoc"
    elif "no answer" in error or "contact" in error.lower():
        cure = "scontrol ping says whether the controller is up; try again later"
    else:
        cure = f"see what it allows: scontrol show partition {partition}; or name others: --partition"
    return failed("job", one_line(said, 300), cure)


# --- the command ---

CONTROLLER = "on a login node of the cluster scontrol ping says whether the controller is up"


@dataclass
class Examination:
    """Everything that was found out."""

    findings: list[Finding] = field(default_factory=list)
    """The findings that `examine` has yielded, added by its caller."""
    proposal: Proposal | None = None
    written: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("on a login node of a Slurm cluster")
    group.add_argument("--slurm", action="store_true", help="examine the cluster instead; no job is started")
    text = "just this partition, and the site file's values from it; may be given several times"
    group.add_argument("--partition", metavar="NAME", action="append", default=[], help=text)
    group.add_argument("--write", metavar="FILE", type=Path, help=f"write the site file, {SITE_FILE} for example")


def refuse_options(args: argparse.Namespace) -> None:
    """Raise ConfigError, with one line, for options of one doctor given to the other."""
    only_slurm = {"partition": args.partition, "write": args.write}
    only_machine = {"only": args.only, "gpu": args.gpu}
    for name, value in (only_machine if args.slurm else only_slurm).items():
        if value:
            cure = "leave it out" if args.slurm else "add --slurm, or leave it out"
            raise ConfigError(f"{name}: --{name} is not allowed with{'' if args.slurm else 'out'} --slurm; {cure}")


def examine(args: argparse.Namespace, state: Examination) -> Iterator[list[Finding]]:
    """Yield findings as they come, and store the results in `state`. Raises ConfigError before any work."""
    ask = partial(ask_slurm, timeout_seconds=seconds("timeout", args.timeout))
    target = args.write or SITE_FILE
    source = target if target.exists() else site_file(ROOT)
    current, before = Site.load(source), yaml.safe_load(read_text(source))
    if args.write:
        writable("write", args.write)
    try:
        inventory = look(ask)
    except ConfigError as error:
        yield [failed("slurm", one_line(error), CONTROLLER)]
        return
    for name in args.partition:
        choose("partition", name, [partition.name for partition in inventory.partitions])
    yield [*check_settings(inventory), check_accounting(inventory, ask)]
    usable, found = find_usable(inventory.partitions, args.partition, current.account, ask)
    yield found
    if not usable:
        yield [not_run("site", f"nothing to write into {target}: no partition takes a job")]
        return
    state.proposal = propose(usable, args.partition, current, tries_of())
    yield _site_file(args, state, state.proposal, before)


def _site_file(
    args: argparse.Namespace, state: Examination, proposal: Proposal, before: Mapping[str, Any]
) -> list[Finding]:
    """Compare the site file with the proposal, and write it if requested."""
    target = args.write or SITE_FILE
    filled = fill(before, proposal)
    found = [ok("site", f"values of partition {proposal.main}{proposal.note}")]
    others = [str(name) for name in filled["partitions"] if name not in proposal.partitions]
    if others and not args.partition:
        said = f"{target} lists partitions that do not take a job: {', '.join(others)}"
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
