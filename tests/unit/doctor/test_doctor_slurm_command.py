"""The doctor of a cluster as a command, with stand-ins for Slurm's programs."""

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.paths import ROOT
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK
from benchmarks.launching.slurm.site import Site
from tests.slurm_outputs import MIXED, SMALL

INVALID_ACCOUNT = "allocation failure: Invalid account or account/partition combination specified"


class Programs:
    """Stand-ins for Slurm's programs; each writes what it was called with to a log."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name in ("sbatch", "sacct", "sacctmgr"):
            self.set(name, "true")
        self.set("scontrol", 'for last; do :; done; cat "$HERE/$last.txt"')
        self.cluster(SMALL)

    def set(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\nHERE={self.folder}\necho "$*" >> "$HERE/{name}.log"\n{body}\n', encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def cluster(self, outputs: dict[str, str]) -> None:
        for name, text in outputs.items():
            (self.folder / f"{name}.txt").write_text(text + "\n", encoding="utf-8")

    def refuse(self, unless: str) -> None:
        """Sbatch takes a job only if a condition on its options holds."""
        self.set("sbatch", f'if {unless}; then true; else echo "{INVALID_ACCOUNT}" >&2; exit 1; fi')

    def called(self, name: str) -> list[str]:
        log = self.folder / f"{name}.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
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


def test_a_cluster_where_all_works(programs, doctor):
    code, values, said = doctor()
    assert code == 0 and values["counts"][FAILED] == 0
    for check in ("slurm", "profile", "job", "accounting"):
        assert statuses(values, check) == [OK], check
    assert values["site"]["gpus_per_node"] == 2 and list(values["partitions"]) == ["gpu"] and values["written"] is None
    assert "takes a job on a node with 2 GPUs, no account needed" in said and "gpus_per_node: 2" in said
    assert programs.called("sbatch") == [
        "--test-only --partition=gpu --nodes=1 --time=1 --gres=gpu:a100:2 --wrap=true",
    ]
    assert values["findings"][-1]["status"] == NOT_RUN and "--write slurm/partitions.yaml" in said


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
    programs.refuse(unless='[[ "$*" == *--partition=gpu* ]]')
    code, values, said = doctor("--write", str(tmp_path / "partitions.yaml"))
    assert code == 0 and sorted(statuses(values, "job")) == [NOT_RUN, NOT_RUN, NOT_RUN, OK]
    assert list(values["partitions"]) == ["gpu"] and "it is left out" in said and "its state is DOWN" in said
    code, values, _ = doctor("--partition", "old")
    assert code == 1 and statuses(values, "job") == [FAILED]
    assert main(["doctor", "--slurm", "--partition", "gpus"]) == 2
    _, values, _ = doctor("--partition", "gpu")
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    page = page.partition("### Checks of a cluster")[2].partition("\n### ")[0]
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {it["check"] for it in values["findings"]} == {
        name for one in first for name in re.findall(r"`([\w-]+)`", one)
    }


def test_a_controller_that_is_silent_is_said_and_not_waited_for(programs, doctor):
    programs.set("scontrol", "exec sleep 60")
    code, values, said = doctor("--timeout", "0.5")
    assert code == 1 and statuses(values, "slurm") == [FAILED]
    assert "scontrol: no answer in 0.5 s" in said and "scontrol ping" in said
    assert programs.called("sbatch") == []


def test_a_refusal_is_quoted_and_the_account_of_the_site_is_used(programs, doctor, tmp_path):
    programs.refuse(unless="false")
    code, values, said = doctor()
    assert code == 1 and statuses(values, "job") == [FAILED] and statuses(values, "site") == [NOT_RUN]
    assert "Invalid account or account/partition combination" in said and "sacctmgr show user" in said
    site = tmp_path / "site.yaml"
    site.write_text("partitions: {}\nsite: {account: physics}\n")
    doctor("--write", str(site))
    assert ["--account=physics" in line for line in programs.called("sbatch")] == [False, True]
