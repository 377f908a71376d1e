"""Check the cluster's settings against what the profile in slurm/ needs, before any job."""

from pathlib import Path

import yaml

from benchmarks.doctor.finding import Finding, failed, not_run, ok, one_line, warning
from benchmarks.doctor.slurm.inventory import Inventory, Partition
from benchmarks.doctor.slurm.slurm_programs import Ask, number

PROFILE = Path("slurm/config.yaml")
STATUS_KEY = "slurm-status-command"
INIT_KEY = "slurm-init-seconds-before-status-checks"
INIT_SECONDS = 40
"""Default of Snakemake's Slurm plugin where the profile gives no value."""
SHOWN = 4


def check(inventory: Inventory, profile: Path = PROFILE) -> list[Finding]:
    """Return the findings on the controller, the profile, and each partition's nodes."""
    version, name = inventory.setting("SLURM_VERSION") or "unknown", inventory.setting("ClusterName")
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
    age, initial = number(inventory.setting("MinJobAge")), values.get(INIT_KEY, INIT_SECONDS)
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
    kind = inventory.setting("AccountingStorageType").removeprefix("accounting_storage/") or "none"
    if kind in ("none", "(null)"):
        return ok("accounting", "off; not needed: the profile asks squeue")
    answer = ask(["sacct", "--noheader", "--allocations", "--starttime=now-1hour", "--format=State"])
    if answer.error:
        cure = f"none is needed while {PROFILE} has {STATUS_KEY}: squeue"
        return warning("accounting", f"{kind} does not answer: {answer.error}", cure)
    return ok("accounting", f"{kind} answers; the profile asks squeue all the same")
