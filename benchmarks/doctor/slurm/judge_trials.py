"""Turn the results of a trial's job into findings. Each detail names its partition."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.core.files import try_json
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import Finding, failed, not_run, ok, one_line, warning
from benchmarks.doctor.known_faults import explain, last_words
from benchmarks.doctor.slurm.inside import PARTS
from benchmarks.doctor.slurm.jobs import Rejected, Submitted
from benchmarks.doctor.slurm.judge_ranks import judge_folder, judge_locks, judge_network, judge_places
from benchmarks.doctor.slurm.trial import LOG, Trial

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
    for one in node["containers"]:
        said = f"{where}: {one['version']} on {node['host']}"
        if one["error"] and one["name"] == runtime:
            cure = "runtime: none in slurm/partitions.yaml, or another one"
            yield failed("container", one_line(f"{said}: {one['error']}", 300), cure)
        elif one["error"]:  # cells do not need it
            yield not_run("container", one_line(f"{said}: {one['error']}", 300))
        elif one["tried"] is None:
            yield not_run("container", f"{said}; no image was made yet to try it with: docs/images.md")
        else:
            yield ok("container", f"{said}: {one['tried']}")
    if runtime != "none" and runtime not in [one["name"] for one in node["containers"]]:
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
        how += f", on {cell['device']}" if cell["device"] else ""
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
    if any(other["device"] == "cpu" for other in later):
        cure = "gloo works, so it is the GPUs or NCCL: NCCL_DEBUG=INFO, and see the checks gpu and driver"
    return failed(name, one_line(f"{what}: {cell['status']}: {cell['reason']}", 300), cure)
