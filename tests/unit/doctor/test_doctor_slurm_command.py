"""The doctor of a cluster as a command, with stand-ins for Slurm's programs; and how it judges what jobs leave."""

import fcntl
import json
import re
import stat
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.paths import ROOT
from benchmarks.doctor.child import Ended
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK, WARNING
from benchmarks.doctor.slurm import inside
from benchmarks.doctor.slurm import slurm_command as command
from benchmarks.doctor.slurm import trial as jobs
from benchmarks.doctor.slurm.judge import judge
from benchmarks.doctor.slurm.slurm_cluster import asking, check_accounting
from benchmarks.doctor.slurm.slurm_cluster import look as look_at
from benchmarks.doctor.slurm.trial import Submitted, Trial
from benchmarks.launching.slurm.site import Site
from tests.slurm_outputs import CPUS, MIXED, SMALL, answering

TRIAL = Trial("gpu", 2, 2, 2, "gpu", 4000, 10)
CELL = {"backend": "torch", "runtime": "none", "world_size": 4, "status": "ok", "reason": None}
PLACED = {"process_group": "gloo", "device": "cpu", "ranks_per_host": {"node1": 2, "node2": 2}}
TRAINED = CELL | PLACED | {"visible_gpus": ["0,1"] * 4}
INVALID_ACCOUNT = (
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
)
OF_NODE = {"check": "home", "status": OK, "detail": "HOME can be written", "cure": None}


def reports(*cells: dict[str, Any], **node: Any) -> dict[str, Any]:
    """What a job on two nodes leaves where all is well; `locked=False` changes what its first node says."""
    first = {"host": "node1", "locked": True, "seconds_left": 600.0, "unlimited": False, "limit_error": None} | node
    return deepcopy({"node": first, "doctor": [OF_NODE], "cells": list(cells) or [TRAINED]})


class Programs:
    """Stand-ins for Slurm's programs; each writes what it was called with to a log."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("scontrol", "sbatch", "squeue", "scancel", "sacct", "sacctmgr"):
            self.set(name, "true")
        self.set("scontrol", 'for last; do :; done; cat "$HERE/$last.txt"')
        self.cluster(SMALL)
        self.leave(reports())

    def set(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\nHERE={self.folder}\necho "$*" >> "$HERE/{name}.log"\n{body}\n', encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def cluster(self, outputs: dict[str, str]) -> None:
        for name, text in outputs.items():
            (self.folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")

    def leave(self, values: dict[str, Any], state: str = "COMPLETED", when: str = "true") -> None:
        """Jobs end in this state and leave these reports, when a condition on the options of sbatch holds."""
        for name, value in values.items():
            (self.folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
        copy = "for part in node doctor cells; do [ ! -e $HERE/$part.json ] || cp $HERE/$part.json ${last%/*}; done"
        otherwise = f'echo "{INVALID_ACCOUNT}" >&2; exit 1'
        self.set("sbatch", f"for last; do :; done; if {when}; then {copy}; echo 7; else {otherwise}; fi")
        self.set("squeue", f'echo "7|{state}|None|node[1-2]"')

    def called(self, name: str) -> list[str]:
        log = self.folder / f"{name}.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(command, "FOLDER", tmp_path / "jobs")
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.05)
    return Programs(folder)


@pytest.fixture
def doctor(capsys) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run the command: exit status, JSON and the lines."""

    def run(*options: str) -> tuple[int, dict[str, Any], str]:
        code = main(["doctor", "--slurm", "--json", *options])
        said = capsys.readouterr()
        return code, json.loads(said.out), said.err

    return run


def statuses(values: dict[str, Any], check: str) -> list[str]:
    return [it["status"] for it in values["findings"] if it["check"] == check]


def test_a_cluster_where_all_works(programs, doctor, tmp_path):
    code, values, said = doctor()
    assert code == 0 and values["counts"][FAILED] == 0
    for check in ("slurm", "profile", "job", "ranks", "gres", "locks", "cell", "home"):
        assert OK in statuses(values, check), check
    assert values["site"]["gpus_per_node"] == 2 and list(values["partitions"]) == ["gpu"] and values["written"] is None
    assert "... job 7 in gpu: completed on node[1-2]" in said and "gpus_per_node: 2" in said
    assert programs.called("scancel") == [] and list((tmp_path / "jobs").iterdir()) == []
    assert values["findings"][-1]["status"] == NOT_RUN and "--write slurm/partitions.yaml" in said


def test_every_check_is_in_the_page_of_the_docs(programs, doctor):
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    page = page.partition("### Checks of a cluster")[2].partition("\n### ")[0]
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    rows = {name for names in first for name in re.findall(r"`([\w-]+)`", names)}
    horovod, container = TRAINED | {"backend": "horovod"}, TRAINED | {"runtime": "podman"}
    programs.cluster(MIXED)
    programs.leave(reports(TRAINED, horovod, container))
    _, values, _ = doctor("--partition", "gpu")
    assert {it["check"] for it in values["findings"]} - {"home"} == rows


def test_the_file_is_written_only_where_that_is_asked_for(programs, doctor, tmp_path):
    path = tmp_path / "site/partitions.yaml"
    code, values, _ = doctor("--write", str(path))
    assert code == 0 and values["written"] == str(path)
    assert Site.load(path).gpus_per_node == 2
    assert [it.name for it in path.parent.iterdir()] == ["partitions.yaml"]
    first = path.read_text(encoding="utf-8")
    path.write_text(first + "# mine\n", encoding="utf-8")
    doctor("--write", str(path))
    assert path.read_text(encoding="utf-8") == first, "the same values, found again"
    assert path.with_suffix(".yaml.old").read_text(encoding="utf-8") == first + "# mine\n"


def test_a_partition_that_is_not_for_us_is_left_out_and_others_are_not(programs, doctor, tmp_path):
    programs.cluster(MIXED)
    of_four = TRAINED | {"ranks_per_host": {"g1": 4, "g2": 4}, "visible_gpus": ["0,1,2,3"] * 8}
    programs.leave(reports(of_four), when='[[ "$*" == *--partition=gpu* ]]')
    code, values, said = doctor("--write", str(tmp_path / "partitions.yaml"))
    assert code == 0 and sorted(statuses(values, "job")) == [NOT_RUN, NOT_RUN, NOT_RUN, OK]
    assert list(values["partitions"]) == ["gpu"] and "it is left out" in said
    code, values, _ = doctor("--partition", "old")
    assert code == 1 and statuses(values, "job") == [FAILED]


def test_a_banner_beside_the_job_number_is_not_taken_for_it(programs, doctor):
    programs.set("squeue", 'echo "7|PENDING|Resources|"')
    programs.set("sbatch", 'echo "Welcome to cluster 3"; echo "7;main"; echo "Your quota is 80% used"')
    code, values, said = doctor("--seconds", "0.5")
    assert programs.called("scancel") == ["7"] and "job 7 in gpu: pending" in said
    assert code == 1 and statuses(values, "job") == [FAILED, NOT_RUN]
    assert "Slurm plugin cannot run here: have the site print its banner to standard error" in said
    programs.set("sbatch", "echo no number")
    assert "sbatch --parsable printed no job number: 'no number'" in doctor()[2]


def test_a_job_that_stays_pending_is_cancelled_and_not_run(programs, doctor):
    programs.set("squeue", 'echo "7|PENDING|Resources|"')
    begin = time.monotonic()
    code, values, said = doctor("--seconds", "0.5")
    assert time.monotonic() - begin < 10 and code == 0
    assert statuses(values, "job") == [NOT_RUN] and "still pending (Resources)" in said
    assert programs.called("scancel") == ["7"]
    assert said.count("job 7 in gpu: pending") == 1


def test_a_job_that_would_never_start_is_not_waited_for(programs, doctor):
    programs.set("squeue", 'echo "7|PENDING|PartitionTimeLimit|"')
    code, _values, said = doctor()
    assert code == 1 and "would never start: PartitionTimeLimit" in said and programs.called("scancel") == ["7"]


def test_a_job_that_hangs_is_cancelled_and_has_failed(programs, doctor, tmp_path):
    programs.set("squeue", 'echo "7|RUNNING|None|node[1-2]"')
    code, values, _said = doctor("--seconds", "0.5")
    assert code == 1 and FAILED in statuses(values, "job") and programs.called("scancel") == ["7"]
    assert list((tmp_path / "jobs").iterdir()), "its log stays"


def test_a_folder_that_nodes_do_not_see_is_what_a_job_without_a_word_means(programs, doctor):
    programs.set("sbatch", "echo 7")
    programs.set("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    code, _values, said = doctor()
    assert code == 1 and "must be on a disk that all nodes see" in said


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'echo "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)" >&2; exit 1',
            "contact",
        ),
        ("exec sleep 60", "scontrol: no answer in 0.5 s"),
    ],
)
def test_a_controller_that_is_down_or_silent(programs, doctor, body, words):
    programs.set("scontrol", body)
    code, values, said = doctor("--timeout", "0.5")
    assert code == 1 and statuses(values, "slurm") == [FAILED] and words in said and "scontrol ping" in said
    assert programs.called("sbatch") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--write", "x.yaml"], "error: write: --write is not allowed without --slurm; add --slurm"),
        (["--slurm", "--only", "gpu"], "error: only: --only is not allowed with --slurm; leave it out"),
        (["--slurm", "--partition", "gpus"], "error: partition: 'gpus' is not known (did you mean 'gpu'?)"),
    ],
)
def test_options_that_are_not_allowed(programs, capsys, options, message):
    assert main(["doctor", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1
    assert programs.called("sbatch") == []


# --- what comes back from a job ---


def judged(values: dict[str, Any], check: str, trial: Trial = TRIAL) -> list[tuple[str, str, str]]:
    job = Submitted("7", trial.partition, state="COMPLETED")
    found = judge(trial, job, values, Path("/nowhere"), 3.0)
    return [(it.status, it.detail, it.cure or "") for it in found if it.check == check]


@pytest.mark.parametrize(
    ("values", "check", "status", "words"),
    [
        (reports(TRAINED | {"ranks_per_host": {"node1": 3, "node2": 1}}), "ranks", FAILED, "3 on node1, 1 on node2"),
        (
            reports(TRAINED | {"visible_gpus": ["0,1", "1", "0", "0"]}),
            "gres",
            FAILED,
            "rank 1 has CUDA_VISIBLE_DEVICES=1",
        ),
        (reports(TRAINED | {"visible_gpus": [None] * 4}), "gres", FAILED, "CUDA_VISIBLE_DEVICES=None"),
        (reports(locked=False), "locks", WARNING, "is not seen on node1"),
        (reports(limit_error="squeue: no answer"), "time-limit", WARNING, "squeue: no answer"),
        (reports(CELL | {"status": "error", "reason": "ranks did not meet"}), "cell", FAILED, "ranks did not meet"),
    ],
)
def test_what_a_job_says_is_judged(values, check, status, words):
    ((found, detail, cure),) = judged(values, check)
    assert found == status and words in f"{detail} -> {cure}"


def test_a_refusal_is_quoted_and_the_account_of_the_site_is_used(programs, doctor, monkeypatch, tmp_path):
    programs.leave(reports(), when="false")
    code, values, said = doctor()
    assert code == 1 and statuses(values, "job") == [FAILED] and statuses(values, "site") == [NOT_RUN]
    assert "Invalid account or account/partition combination" in said and "sacctmgr show user" in said
    site = tmp_path / "site.yaml"
    site.write_text("partitions: {}\nsite: {account: physics}\n")
    doctor("--write", str(site))
    assert ["--account=physics" in line for line in programs.called("sbatch")] == [False, True]


def test_a_cell_is_started_as_cells_are_and_its_words_are_kept(tmp_path, monkeypatch):
    def run(line: list[str], seconds: float) -> Ended:
        if "podman" in line:
            return Ended(1, "error: ranks did not meet\n")
        record = {"status": "ok", "reason": None, "provenance": PLACED}
        Path(line[line.index("--output") + 1]).write_text(json.dumps(record))
        return Ended(0, "")

    monkeypatch.setattr(inside, "run", run)
    monkeypatch.setattr(inside, "find_spec", lambda name: None)
    found = list(inside.train_cells(tmp_path, replace(TRIAL, runtime="podman", interface="ib0")))
    assert [(it["runtime"], it["status"]) for it in found] == [("none", "ok"), ("podman", "error")]
    assert found[1]["reason"] == "error: ranks did not meet" and found[0]["ranks_per_host"] == PLACED["ranks_per_host"]
    cell = json.loads((tmp_path / "torch-none/cell.json").read_text())
    assert (cell["world_size"], cell["nodes"]) == (4, 2)
    assert json.loads((tmp_path / "torch-none/site.yaml").read_text())["site"]["interface"] == "ib0"


def test_a_lock_of_another_process_is_seen(tmp_path):
    path = tmp_path / "lock"
    assert not inside.is_locked(path)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert inside.is_locked(path)


def test_the_doctor_of_a_node_is_passed_on_and_an_image_that_is_not_there_is_not_run():
    assert judged(reports(), "home") == [(OK, "partition gpu, node1: HOME can be written", "")]
    absent = TRAINED | {"runtime": "apptainer", "status": "error", "reason": "error: image: x.sif is not there"}
    assert judged(reports(TRAINED, absent), "container")[-1][0] == NOT_RUN


def test_accounting_that_does_not_answer_is_a_warning(programs):
    off, on = look_at(answering(CPUS)), look_at(answering(MIXED))
    assert check_accounting(off, asking(5)).status == OK
    assert check_accounting(on, asking(5)).status == OK
    programs.set("sacct", "exec sleep 60")
    broken = check_accounting(on, asking(0.3))
    assert broken.status == WARNING and "no answer" in broken.detail
