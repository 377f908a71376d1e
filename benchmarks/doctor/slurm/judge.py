"""Turn the reports of a trial's job into findings. Each detail names its partition."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.core.files import try_json
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import Finding, explain, failed, last_words, not_run, ok, one_line, warning
from benchmarks.doctor.slurm.inside import PARTS
from benchmarks.doctor.slurm.trial import LOG, Rejected, Submitted, Trial
from benchmarks.doctor.slurm.trial_rank import HELD, NOT_HELD

# --- the tasks in the first step ---


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


# --- the whole job ---


Reports = Mapping[str, Any]
"""The report of each part of the job, by the names of PARTS."""
SHARED = f"the project, {ROOT}, and its .venv must be on a disk that all nodes see under this name"


def load(folder: Path) -> Reports:
    """Return the reports in a job's folder; a missing or truncated one is left out."""
    found = {part: try_json(folder / f"{part}.json") for part in PARTS}
    return {part: report for part, report in found.items() if report is not None}


def judge_rejected(trial: Trial, rejected: Rejected, is_needed: bool) -> Finding:
    """Judge a job that sbatch refused: a failure, unless others were accepted and nobody asked for this partition."""
    tried = f"; accounts tried: {', '.join(rejected.tried)}" if rejected.tried else ""
    said = f"partition {trial.partition}: {rejected.error}{tried}"
    if not is_needed:
        return not_run("job", one_line(f"{said}; it is left out", 300))
    if "account" in rejected.error.lower() or "association" in rejected.error.lower():
        cure = "set account in slurm/partitions.yaml to one of: sacctmgr show user $USER withassoc"
    elif "no answer" in rejected.error or "contact" in rejected.error.lower():
        cure = "scontrol ping says whether the controller is up; try again later"
    else:
        cure = f"see what it allows: scontrol show partition {trial.partition}; or name others: --partition"
    return failed("job", one_line(said, 300), cure)


def judge(trial: Trial, job: Submitted, reports: Reports, folder: Path, waited_seconds: float) -> list[Finding]:
    """Judge a submitted job and its reports."""
    where = f"partition {trial.partition}"
    found = _banner(where, job.banner)
    if job.is_stuck:
        said = f"{where}: job {job.number} would never start: {job.reason}; cancelled"
        cure = f"see what it allows: scontrol show partition {trial.partition}; or name others: --partition"
        return [*found, failed("job", said, cure)]
    if job.state == "PENDING":
        said = f"{where}: job {job.number} still pending ({job.reason}) after {waited_seconds:.0f} s, cancelled"
        return [*found, not_run("job", f"{said}; --seconds waits longer")]
    found += [_job(trial, job, reports, folder, waited_seconds)]
    if "node" in reports:
        found += _node(where, reports["node"], trial.runtime)
    if "ranks" in reports:
        ranks = reports["ranks"]
        for part in (judge_places, judge_folder, judge_locks, judge_network):
            found += part(where, trial, ranks)
    host = reports.get("node", {}).get("host", "a node")
    found += [
        Finding(it["check"], it["status"], f"{where}, {host}: {it['detail']}", it["cure"])
        for it in reports.get("doctor", ())
    ]
    return found + list(_cells(where, trial, reports.get("cells", ())))


def _banner(where: str, banner: str) -> list[Finding]:
    """Judge what sbatch printed beside the job's number: Snakemake's plugin finds the number only if it is the only
    one in the output."""
    if not re.search(r"\d", banner):
        return []
    said = f"{where}: sbatch --parsable prints more numbers than that of the job: {banner!r}"
    cure = "Snakemake's Slurm plugin cannot run here: have the site print its banner to standard error"
    return [failed("job", one_line(said, 300), cure)]


def _job(trial: Trial, job: Submitted, reports: Reports, folder: Path, waited_seconds: float) -> Finding:
    where, asked = f"partition {trial.partition}", f"{trial.nodes} node{'s' * (trial.nodes > 1)}"
    asked += f" with --gres={trial.gres}:{trial.gpus}" if trial.gpus else " without GPUs"
    missing = [part for part in PARTS if part not in reports]
    if not job.has_ended:
        said = f"{where}: job {job.number} was not done after {waited_seconds:.0f} s, cancelled"
        return failed("job", f"{said}; {folder / LOG} says how far it came", "--seconds waits longer")
    if missing:
        words = _words(folder / LOG)
        said = f"{where}: job {job.number} ended as {job.state}{f' ({job.reason})' if job.reason else ''}"
        cure = SHARED if len(missing) == len(PARTS) else f"see {folder / LOG}"
        return failed("job", one_line(f"{said} without a report of {', '.join(missing)}: {words}", 300), cure)
    account = f", account {job.account}, which is needed" if job.account else ", no account needed"
    return ok("job", f"{where}: {asked} ran{account}")


def _words(log: Path) -> str:
    try:
        return last_words(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return f"there is no {log}"


def _node(where: str, node: Mapping[str, Any], runtime: str) -> Iterator[Finding]:
    if node["limit_error"]:
        yield warning(
            "time-limit",
            one_line(f"{where}: squeue does not answer on a node: {node['limit_error']}"),
            "squeue must work on the nodes: a cell that does not know its limit cannot save before it",
        )
    else:
        left = "no limit" if node["unlimited"] else f"{node['seconds_left'] or 0:.0f} s left"
        yield ok("time-limit", f"{where}: a job knows its time limit, by squeue: {left}")
    for name, version in node["containers"].items():
        if name != runtime:  # cells do not need it
            yield not_run("container", one_line(f"{where}: {version} on {node['host']}", 300))
    if runtime != "none" and runtime not in node["containers"]:
        said = f"{where}: {runtime}, the site's runtime, is not on PATH of {node['host']}"
        yield failed("container", said, "modules in slurm/partitions.yaml, runtime: none, or another one")
    elif not node["containers"]:
        yield not_run("container", f"{where}: neither docker, podman nor apptainer is on PATH of {node['host']}")


def _cells(where: str, trial: Trial, cells: list[Mapping[str, Any]]) -> Iterator[Finding]:
    for cell in cells:
        name = "horovod" if cell["backend"] == "horovod" else "container" if cell["runtime"] != "none" else "cell"
        how = f"{cell['world_size']} ranks over {trial.nodes} node{'s' * (trial.nodes > 1)}"
        how += f", {cell['backend']}" + (f" in {cell['runtime']}" if cell["runtime"] != "none" else "")
        how += f", interface {cell['interface']}" if cell["interface"] else ""
        if cell["status"] == "ok":
            group = cell.get("process_group") or "its own Gloo or NCCL"
            yield ok(name, f"{where}: a cell of {how} trained ({group}, {cell['device_name']})")
        elif name == "container" and (cell["reason"] or "").startswith("error: image:"):
            yield not_run(name, one_line(f"{where}: {cell['reason']}", 300))
        else:
            yield _failed_cell(name, f"{where}: a cell of {how}", cell, cells)


def _failed_cell(name: str, what: str, cell: Mapping[str, Any], cells: list[Mapping[str, Any]]) -> Finding:
    """Return the failure of a cell, with the cure that the cells after it suggest."""
    known = explain(cell["reason"] or "")
    cure = known.cure if known else "its log is beside the job's"
    later = [other for other in cells if other["status"] == "ok" and other["backend"] == cell["backend"] == "torch"]
    if any(other["interface"] != cell["interface"] for other in later):
        cure = f"interface: {later[-1]['interface'] or 'null'} in slurm/partitions.yaml"
        return warning(name, one_line(f"{what}: {cell['status']}: {cell['reason']}", 300), cure)
    return failed(name, one_line(f"{what}: {cell['status']}: {cell['reason']}", 300), cure)
