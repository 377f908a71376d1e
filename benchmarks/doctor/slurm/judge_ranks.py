"""Findings from the reports of the tasks in a trial's first step."""

from collections.abc import Mapping
from typing import Any

from benchmarks.doctor.finding import Finding, failed, not_run, ok, one_line, warning
from benchmarks.doctor.slurm.trial import Trial
from benchmarks.doctor.slurm.trial_rank import HELD, NOT_HELD

LATENCY_SECONDS = 60.0
"""Seconds that Snakemake waits for a file under the profile (latency-wait)."""
ONE_NODE = "one node, so that there is no other to compare with"


def judge_places(where: str, trial: Trial, report: Mapping[str, Any]) -> list[Finding]:
    """Judge whether all ranks came, in equal numbers per node, and see the GPUs of their node."""
    ranks, count = report["ranks"], report["count"]
    if len(ranks) < count:
        said = f"{where}: {len(ranks)} of {count} tasks of srun came to their end"
        cure = "the same by hand: srun -N2 --ntasks-per-node=2 --mpi=none hostname"
        return [failed("ranks", one_line(f"{said}: {report['error'] or 'srun said nothing'}", 300), cure)]
    hosts = [rank["host"] for rank in ranks]
    each = {host: hosts.count(host) for host in dict.fromkeys(hosts)}
    shown = ", ".join(f"{number} on {host}" for host, number in each.items())
    if len(each) != trial.nodes or set(each.values()) != {trial.tasks_per_node}:
        cure = "ask for the settings of srun here: SelectType in slurm.conf, SLURM_* variables, cli_filter plugins"
        return [failed("ranks", f"{where}: {count} ranks are not evenly on {trial.nodes} nodes: {shown}", cure)]
    return [ok("ranks", f"{where}: {count} ranks, {shown}"), *_gpus(where, trial, ranks)]


def _gpus(where: str, trial: Trial, ranks: list[Mapping[str, Any]]) -> list[Finding]:
    if not trial.gpus:
        return [not_run("gres", f"{where}: its nodes have no GPUs that Slurm knows of")]
    seen, asked = [rank["visible_gpus"] or "" for rank in ranks], f"{where}: with --gres={trial.gres}:{trial.gpus}"
    for rank, gpus in zip(ranks, seen, strict=True):
        if len([gpu for gpu in gpus.split(",") if gpu]) != trial.gpus:
            said = f"{asked} rank {rank['rank']} on {rank['host']} has CUDA_VISIBLE_DEVICES={rank['visible_gpus']}"
            cure = "each rank must see all GPUs of its node: what does srun bind here by default? and gres.conf"
            return [failed("gres", said, cure)]
    return [ok("gres", f"{asked} each rank sees CUDA_VISIBLE_DEVICES={' or '.join(dict.fromkeys(seen))}")]


def judge_folder(where: str, trial: Trial, report: Mapping[str, Any]) -> list[Finding]:
    """Judge whether all nodes have the same files, and see each other's new files in time."""
    ranks = report["ranks"]
    contents = {rank["host"]: rank["content"] for rank in ranks if "content" in rank}
    if len(set(contents.values())) > 1:
        shown = ", ".join(f"{host} {content}" for host, content in contents.items())
        cure = "the project must be one folder, on a disk that all nodes see; a copy for each node grows apart"
        return [failed("shared-folder", f"{where}: nodes have other code: {shown}", cure)]
    followers = [rank for rank in ranks if "seen" in rank]
    if not followers:
        same = [not_run("shared-folder", f"{where}: {ONE_NODE}")]
        return same if trial.nodes == 1 else []
    blind = [rank["host"] for rank in followers if not rank["seen"]]
    if blind:
        cure = "put the project on the network disk of the cluster, with a shorter cache of folders (NFS: acdirmax)"
        return [failed("shared-folder", f"{where}: files of other nodes are not seen on {', '.join(blind)}", cure)]
    slowest = max(rank["round_trip_seconds"] for rank in followers)
    said = f"{where}: all nodes have the same files; there and back a new one took {slowest:.1f} s"
    if slowest / 2 > LATENCY_SECONDS / 2:
        return [warning("shared-folder", said, "more than latency-wait: 60 in slurm/config.yaml")]
    return [ok("shared-folder", said)]


def judge_locks(where: str, trial: Trial, report: Mapping[str, Any]) -> list[Finding]:
    """Judge whether a lock on one node holds on the others; if not, only the scheduler keeps cells apart."""
    said = {rank["host"]: rank["lock"] for rank in report["ranks"] if "lock" in rank}
    if not said:
        return [not_run("locks", f"{where}: {ONE_NODE}")] if trial.nodes == 1 else []
    if set(said.values()) == {HELD}:
        return [ok("locks", f"{where}: a lock (flock) that one node holds is held on the others")]
    bad = {host: lock for host, lock in said.items() if lock != HELD}
    what = "is not seen" if NOT_HELD in bad.values() else "cannot be had"
    cure = "mount the disk with locks (Lustre: -o flock; NFS 4); or never start one run twice: make resume"
    return [warning("locks", f"{where}: a lock (flock) of another node {what} on {', '.join(bad)}", cure)]


def judge_network(where: str, trial: Trial, report: Mapping[str, Any]) -> list[Finding]:
    """Judge whether the network device that ranks choose by default leads to the first node."""
    if trial.nodes == 1:
        return [not_run("network", f"{where}: {ONE_NODE}")]
    followers = [rank for rank in report["ranks"] if "reached" in rank]
    if not followers:
        return []
    for rank in followers:
        if rank["route"] is None or not rank["reached"].get(rank["first_route"]):
            others = [name for name, reached in rank["reached"].items() if reached]
            cure = f"interface: {others[0]} in slurm/partitions.yaml" if others else "ask which network joins the nodes"
            why = rank.get("no_route") or f"{rank['first_route']} of the first node is not reached"
            return [warning("network", one_line(f"{where}, {rank['host']}: {why}", 300), cure)]
    routes = sorted({rank["route"] for rank in followers} | {rank["first_route"] for rank in followers})
    return [ok("network", f"{where}: nodes reach each other by {', '.join(routes)}, found by the route")]
