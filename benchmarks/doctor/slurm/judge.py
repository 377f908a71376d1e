"""Turn the reports of a trial's job into findings. Each detail names its partition."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.core.files import try_json
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import Finding, explain, failed, last_words, not_run, ok, one_line, warning
from benchmarks.doctor.slurm.inside import PARTS
from benchmarks.doctor.slurm.trial import LOG, Submitted, Trial

Reports = Mapping[str, Any]
"""The report of each part of the job, by the names of PARTS."""
SHARED = f"the project, {ROOT}, and its .venv must be on a disk that all nodes see under this name"


def load(folder: Path) -> Reports:
    """Return the reports in a job's folder; a missing or truncated one is left out."""
    found = {part: try_json(folder / f"{part}.json") for part in PARTS}
    return {part: report for part, report in found.items() if report is not None}


def judge_rejected(trial: Trial, error: str, is_needed: bool) -> Finding:
    """Judge a job that sbatch refused: a failure, unless others were accepted and nobody asked for this partition."""
    said = f"partition {trial.partition}: {error}"
    if not is_needed:
        return not_run("job", one_line(f"{said}; it is left out", 300))
    if "account" in error.lower() or "association" in error.lower():
        cure = "set account in slurm/partitions.yaml to one of: sacctmgr show user $USER withassoc"
    elif "no answer" in error or "contact" in error.lower():
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
        found += _node(where, reports["node"])
    host = reports.get("node", {}).get("host", "a node")
    found += [
        Finding(it["check"], it["status"], f"{where}, {host}: {it['detail']}", it["cure"])
        for it in reports.get("doctor", ())
    ]
    for cell in reports.get("cells", ()):
        found += _cell(where, trial, cell)
    return found


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
    return ok("job", f"{where}: {asked} ran, {f'account {trial.account}' if trial.account else 'no account needed'}")


def _words(log: Path) -> str:
    try:
        return last_words(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return f"there is no {log}"


def _node(where: str, node: Mapping[str, Any]) -> Iterator[Finding]:
    if node["limit_error"]:
        yield warning(
            "time-limit",
            one_line(f"{where}: squeue does not answer on a node: {node['limit_error']}"),
            "squeue must work on the nodes: a cell that does not know its limit cannot save before it",
        )
    else:
        left = "no limit" if node["unlimited"] else f"{node['seconds_left'] or 0:.0f} s left"
        yield ok("time-limit", f"{where}: a job knows its time limit, by squeue: {left}")
    if node["locked"]:
        yield ok("locks", f"{where}: a lock (flock) that the doctor holds is held on {node['host']}")
    else:
        cure = "mount the disk with locks (Lustre: -o flock; NFS 4); or never start one run twice: make resume"
        yield warning("locks", f"{where}: a lock (flock) that the doctor holds is not seen on {node['host']}", cure)


def _cell(where: str, trial: Trial, cell: Mapping[str, Any]) -> Iterator[Finding]:
    name = "horovod" if cell["backend"] == "horovod" else "container" if cell["runtime"] != "none" else "cell"
    how = f"{cell['world_size']} ranks over {trial.nodes} node{'s' * (trial.nodes > 1)}"
    how += f", {cell['backend']}" + (f" in {cell['runtime']}" if cell["runtime"] != "none" else "")
    how += f", interface {trial.interface}" if trial.interface else ""
    if cell["status"] == "ok":
        group = cell["process_group"] or "its own Gloo or NCCL"
        yield ok(name, f"{where}: a cell of {how} trained ({group}, {cell['device']})")
        if name == "cell":
            yield from _places(where, trial, cell)
    elif name == "container" and (cell["reason"] or "").startswith("error: image:"):
        yield not_run(name, one_line(f"{where}: {cell['reason']}", 300))
    else:
        known = explain(cell["reason"] or "")
        cure = known.cure if known else "its log is beside the job's; which network joins the nodes: interface"
        yield failed(name, one_line(f"{where}: a cell of {how}: {cell['status']}: {cell['reason']}", 300), cure)


def _places(where: str, trial: Trial, cell: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge whether equally many ranks were on each node, and each saw all GPUs of its node."""
    each = cell["ranks_per_host"]
    shown = ", ".join(f"{number} on {host}" for host, number in each.items())
    if len(each) != trial.nodes or set(each.values()) != {trial.ranks_per_node}:
        cure = "ask for the settings of srun here: SelectType in slurm.conf, SLURM_* variables, cli_filter plugins"
        said = f"{where}: {cell['world_size']} ranks are not evenly on {trial.nodes} nodes: {shown}"
        yield failed("ranks", said, cure)
    else:
        yield ok("ranks", f"{where}: {cell['world_size']} ranks, {shown}")
    if not trial.gpus:
        yield not_run("gres", f"{where}: its nodes have no GPUs that Slurm knows of")
        return
    asked, seen = f"{where}: with --gres={trial.gres}:{trial.gpus}", cell["visible_gpus"]
    for rank, gpus in enumerate(seen):
        if len([gpu for gpu in (gpus or "").split(",") if gpu]) != trial.gpus:
            cure = "each rank must see all GPUs of its node: what does srun bind here by default? and gres.conf"
            yield failed("gres", f"{asked} rank {rank} has CUDA_VISIBLE_DEVICES={gpus}", cure)
            return
    yield ok("gres", f"{asked} each rank sees CUDA_VISIBLE_DEVICES={' or '.join(dict.fromkeys(seen))}")
