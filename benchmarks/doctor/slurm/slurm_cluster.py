"""The cluster as Slurm's programs describe it, and what the profile in slurm/ needs of its settings."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.doctor.finding import Finding, failed, not_run, ok, one_line, warning
from benchmarks.launching.slurm.queue import seconds_left
from resireduce.errors import ConfigError

Ask = Callable[[Sequence[str]], str]
"""How checks run one of Slurm's programs: `queue.ask`, or a stand-in. Raises ConfigError if it does not answer."""

FIELD = re.compile(r"(\w+)=(.*?)(?=\s+\w+=|\s*$)")
"""NAME=value; a value may contain spaces, as that of OS does."""
SETTING = re.compile(r"^(\w+)\s+= ?(.*?)\s*$", re.MULTILINE)
GRES = re.compile(r"^gpu(?::(?P<type>[^:]+))??(?::no_consume)?(?::(?P<count>\d+))?$")


def records(text: str) -> list[dict[str, str]]:
    """Return the fields of each line of `scontrol --oneliner show ...`; the first one of a name counts."""
    return [dict(reversed(FIELD.findall(line))) for line in text.splitlines() if "=" in line]


def settings(text: str) -> dict[str, str]:
    """Return the output of `scontrol show config`, by name."""
    return dict(SETTING.findall(text))


def number(text: str | None) -> int | None:
    """Return the number that a text begins with, as in `300 sec`; None for UNLIMITED, N/A and the like."""
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def gpus(gres: str) -> dict[str, int]:
    """Return the number of GPUs of each type on a node, from its Gres; the type is an empty text where none is given.

    `gpu:a100:4(S:0-1),nvme:1` has four of type a100; the brackets list their sockets or devices.
    """
    found: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        if match := GRES.fullmatch(part.strip()):
            found[match["type"] or ""] += int(match["count"] or 1)
    return {kind: count for kind, count in found.items() if count}


# --- partitions and nodes, by scontrol ---


UNUSABLE = {
    *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "FUTURE", "UNKNOWN", "INVAL", "INVALID_REG"),
    *("MAINT", "NOT_RESPONDING", "POWERING_DOWN", "REBOOT", "REBOOT_ISSUED"),
}
"""Words in a node's state for which no job starts on it now. A node switched off to save power is switched on again."""


@dataclass(frozen=True)
class Node:
    """One node."""

    name: str
    cpus: int
    """CPUs available to jobs."""
    memory_mb: int
    gpus: Mapping[str, int]
    """Number of GPUs of each type; the type may be an empty text."""
    state: str
    reason: str
    """The administrator's reason why it is not used; empty otherwise."""
    threads_per_core: int = 1

    @property
    def is_usable(self) -> bool:
        """Whether jobs can start on it, now or once others have ended."""
        return not self.state.endswith("*") and not UNUSABLE & set(self.state.rstrip("~#!%$@^-").split("+"))


@dataclass(frozen=True)
class Shape:
    """What the nodes of a partition have in common: the most frequent kind, or of equally frequent ones the larger."""

    gpu_type: str
    gpus: int
    cpus: int
    memory_mb: int
    nodes: int
    """Number of usable nodes."""
    threads_per_core: int = 1


@dataclass(frozen=True)
class Partition:
    """One partition."""

    name: str
    is_default: bool
    state: str
    max_minutes: float
    """Infinite if there is no limit."""
    max_nodes: int | None
    max_memory_mb: int | None
    """Most memory that a job may use on one node."""
    nodes: tuple[Node, ...]

    @property
    def usable(self) -> tuple[Node, ...]:
        """Nodes on which jobs can start."""
        return tuple(node for node in self.nodes if node.is_usable)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types of GPUs on its nodes."""
        return tuple(sorted({kind for node in self.nodes for kind in node.gpus}))

    def shape(self) -> Shape | None:
        """Return the shape of its usable nodes; None if there are none. Nodes with GPUs take precedence."""
        counts = Counter(item for node in self.usable for item in node.gpus.items())
        (kind, gpu_count), _ = max(counts.items(), key=lambda it: (it[1], it[0][1]), default=(("", 0), 0))
        alike = [node for node in self.usable if node.gpus.get(kind, 0) == gpu_count]
        if not alike:
            return None
        memory = min(node.memory_mb for node in alike)
        memory = min(memory, self.max_memory_mb or memory)
        threads = max(node.threads_per_core for node in alike)
        return Shape(kind, gpu_count, min(node.cpus for node in alike), memory, len(alike), threads)


@dataclass(frozen=True)
class Inventory:
    """What scontrol says of the cluster."""

    settings: Mapping[str, str]
    """The settings of slurm.conf, by name."""
    partitions: tuple[Partition, ...]


def look(ask: Ask) -> Inventory:
    """Ask scontrol. Raises ConfigError if it does not answer."""
    config = settings(ask(["scontrol", "show", "config"]))
    nodes = records(ask(["scontrol", "--oneliner", "show", "node"]))
    known = [(_node(fields), fields.get("Partitions", "").split(",")) for fields in nodes]
    found = []
    for fields in records(ask(["scontrol", "--oneliner", "show", "partition"])):
        name = fields.get("PartitionName", "")
        found.append(_partition(fields, tuple(node for node, where in known if name in where)))
    return Inventory(config, tuple(found))


def _node(fields: Mapping[str, str]) -> Node:
    return Node(
        name=fields.get("NodeName", ""),
        # Since 22.05: without CPUs that Slurm reserves for itself.
        cpus=number(fields.get("CPUEfctv")) or number(fields.get("CPUTot")) or 1,
        memory_mb=(number(fields.get("RealMemory")) or 1) - (number(fields.get("MemSpecLimit")) or 0),
        gpus=gpus(fields.get("Gres", "")),
        state=fields.get("State", "UNKNOWN"),
        reason=fields.get("Reason", ""),
        threads_per_core=number(fields.get("ThreadsPerCore")) or 1,
    )


def _partition(fields: Mapping[str, str], nodes: tuple[Node, ...]) -> Partition:
    seconds = seconds_left(fields.get("MaxTime", "UNLIMITED"))
    return Partition(
        name=fields.get("PartitionName", ""),
        is_default=fields.get("Default") == "YES",
        state=fields.get("State", "UP"),
        max_minutes=seconds if math.isinf(seconds) else seconds // 60,
        max_nodes=number(fields.get("MaxNodes")),
        max_memory_mb=number(fields.get("MaxMemPerNode")),
        nodes=nodes,
    )


# --- settings ---


PROFILE = Path("slurm/config.yaml")
STATUS_KEY = "slurm-status-command"
INIT_KEY = "slurm-init-seconds-before-status-checks"
INIT_SECONDS = 40
"""Default of Snakemake's Slurm plugin where the profile gives no value."""
SHOWN = 4


def check_settings(inventory: Inventory, profile: Path = PROFILE) -> list[Finding]:
    """Return the findings on the controller, the profile, and each partition's nodes."""
    version, name = inventory.settings.get("SLURM_VERSION", "unknown"), inventory.settings.get("ClusterName")
    names = ", ".join(f"{it.name}{' (default)' if it.is_default else ''}" for it in inventory.partitions)
    if not names:
        return [failed("slurm", f"Slurm {version} shows no partition", "ask for access: scontrol show partition --all")]
    found = [ok("slurm", f"{version}, cluster {name}, partitions {names}"), check_profile(inventory, profile)]
    return found + [finding for partition in inventory.partitions if (finding := check_nodes(partition))]


def check_profile(inventory: Inventory, profile: Path = PROFILE) -> Finding:
    """Judge whether the controller remembers jobs long enough for the profile, which asks squeue."""
    try:
        values = yaml.safe_load(profile.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        cure = "start it in the project's folder, where slurm/config.yaml is"
        return failed("profile", one_line(f"{profile} cannot be read: {error}"), cure)
    age, initial = number(inventory.settings.get("MinJobAge")), values.get(INIT_KEY, INIT_SECONDS)
    if values.get(STATUS_KEY) != "squeue":
        return warning(
            "profile",
            f"{STATUS_KEY}: {values.get(STATUS_KEY)!r} waits for ever where accounting does not answer",
            f"{STATUS_KEY}: squeue in {profile}",
        )
    if age is None:
        return not_run("profile", "Slurm does not say MinJobAge, how long it remembers jobs that have ended")
    if age < 3 * initial:
        cure = f"{INIT_KEY}: {age // 3} in {profile}" if age >= 3 else "ask for MinJobAge=300 in slurm.conf"
        said = f"Slurm forgets jobs after {age} s (MinJobAge), less than 3 x {initial} s: sacct would be asked instead"
        return failed("profile", said, cure)
    return ok("profile", f"Slurm remembers jobs that have ended for {age} s, at least 3 x {initial} s ({INIT_KEY})")


def check_nodes(partition: Partition) -> Finding | None:
    """Return a warning about nodes that no job can start on; None if there are none."""
    lost = [node for node in partition.nodes if not node.is_usable]
    if not lost:
        return None
    shown = [f"{node.name} {node.state}{f' ({node.reason})' if node.reason else ''}" for node in lost[:SHOWN]]
    names = ", ".join(shown) + (f" and {len(lost) - SHOWN} more" if len(lost) > SHOWN else "")
    detail = f"partition {partition.name}: {len(lost)} of {len(partition.nodes)} cannot be used: {names}"
    return warning("nodes", one_line(detail, 300), "none is needed while enough others are there; or ask: sinfo -R")


def check_accounting(inventory: Inventory, ask: Ask) -> Finding:
    """Judge whether sacct answers; cells do not need it."""
    kind = inventory.settings.get("AccountingStorageType", "none").removeprefix("accounting_storage/")
    if kind in ("", "none", "(null)"):
        return ok("accounting", "off; not needed: the profile asks squeue")
    try:
        ask(["sacct", "--noheader", "--allocations", "--starttime=now-1hour", "--format=State"])
    except ConfigError as error:
        cure = f"none is needed while {PROFILE} has {STATUS_KEY}: squeue"
        return warning("accounting", one_line(f"{kind} does not answer: {error}"), cure)
    return ok("accounting", f"{kind} answers; the profile asks squeue all the same")
