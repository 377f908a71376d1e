"""The doctor of a cluster: what it makes of Slurm's words, and the command with stand-ins for Slurm's programs."""

import json
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from snakemake_executor_plugin_slurm.partitions import read_partition_file

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.paths import ROOT
from benchmarks.doctor import slurm_checks as command
from benchmarks.doctor.machine_checks import FAILED, NOT_RUN, OK
from benchmarks.doctor.slurm_checks import Shape, gpus, look
from benchmarks.launching.slurm.site import Site
from benchmarks.launching.slurm.step import job_resources
from resireduce.errors import ConfigError
from tests.slurm_outputs import CPUS, MIXED, SMALL, shipped_site


def tried(output: str, *names: str) -> list[tuple[Any, Any]]:
    found = look(lambda command: output + "\n")
    return [(one, one.shape()) for one in found if one.name in names or not names]


# --- what sinfo says ---


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu", {"": 1}),
        ("gpu:a100:2(IDX:0,1),gpu:v100:1(S:0)", {"a100": 2, "v100": 1}),
        ("nvme:1,gpu:1g.10gb:7(S:0-1)", {"1g.10gb": 7}),
        ("gpu:h100:no_consume:8", {"h100": 8}),
        ("(null)", {}),
        ("gpumem:80", {}),
    ],
)
def test_gpus_of_a_node(gres, found):
    assert gpus(gres) == found


def test_partitions_nodes_and_limits_are_found():
    ((one, shape),) = tried(SMALL)
    assert (one.is_default, one.max_nodes, len(one.usable)) == (True, math.inf, 4)
    assert shape == Shape("a100", 2, 8, 32000, 4)
    assert {it.name: (it.is_up, it.max_minutes) for it, _ in tried(MIXED)} == {
        "gpu": (True, 1440), "cpu": (True, 7 * 1440), "old": (True, 120), "broken": (False, math.inf)
    }  # fmt: skip
    ((gpu, shape),) = tried(MIXED, "gpu")
    assert (gpu.is_default, gpu.max_nodes) == (False, 4)
    assert [node.name for node in gpu.usable] == ["g1", "g2", "g3", "g4"], "none that is down"
    assert shape == Shape("a100", 4, 126, 514000, 3, 2), "what most have counts, though one has more"
    assert len(tried(MIXED, "cpu")[0][0].usable) == 2, "sleeping ones too"


# --- the site file ---


@pytest.mark.parametrize(
    ("outputs", "names", "site"),
    [
        (SMALL, ["gpu"], {"gpus_per_node": 2, "gres": "gpu", "cpus_per_rank": 3, "memory_mb_per_rank": 3040}),
        (
            MIXED,
            ["gpu", "cpu", "old"],
            {"gpus_per_node": 4, "gres": "gpu:a100", "cpus_per_rank": 16, "memory_mb_per_rank": 24415},
        ),
        (CPUS, ["batch"], {"gpus_per_node": 0, "ranks_per_node": 4, "cpus_per_rank": 1, "longest_minutes": 30}),
    ],
)
def test_the_file_loads_and_a_cell_of_two_whole_nodes_fits_a_partition_at_every_try(tmp_path, outputs, names, site):
    main_partition, partitions, proposed = command.propose(tried(outputs, *names), [], Site())
    path = tmp_path / "partitions.yaml"
    path.write_text(command.fill(yaml.safe_load(shipped_site()), partitions, proposed), encoding="utf-8")
    loaded, known = Site.load(path), read_partition_file(path)
    assert {name: getattr(loaded, name) for name in site} == site
    assert [it.name for it in known] == names == list(partitions)
    assert main_partition == ("gpu" if "gpu" in names else "batch"), "GPUs come before Slurm's default"
    ranks = loaded.gpus_per_node or loaded.ranks_per_node
    for attempt in range(1, command.TRIES + 1):
        resources = job_resources(Cell(model="resnet-digits", world_size=2 * ranks), loaded, attempt)
        job = SimpleNamespace(resources=resources, threads=2, name="cell")
        assert any(it.score_job_fit(job) is not None for it in known), (attempt, resources)


def test_jobs_are_tried_as_often_as_the_profile_says():
    profile = yaml.safe_load((ROOT / "slurm/config.yaml").read_text(encoding="utf-8"))
    assert profile["retries"] + 1 == command.TRIES


# --- the command ---


@pytest.fixture
def doctor(monkeypatch, capsys) -> Callable[..., tuple[int, dict[str, list[str]], str]]:
    """Run the command on a cluster whose sbatch takes jobs of some partitions.

    Returns the exit status, the statuses of each check, and the lines, the command lines of sbatch first.
    """

    def run(output: str, taken: Sequence[str], *options: str) -> tuple[int, dict[str, list[str]], str]:
        def ask(line: Sequence[str], timeout_seconds: float) -> str:
            if line[0] == "sinfo":
                return output
            asked.append(" ".join(line))
            if not any(f"--partition={name}" in line for name in taken):
                raise ConfigError("sbatch: Invalid account")
            return ""

        asked, found = list[str](), dict[str, list[str]]()
        monkeypatch.setattr(command, "ask_slurm", ask)
        code = main(["doctor", "--slurm", "--json", *options])
        said = capsys.readouterr()
        for it in json.loads(said.out)["findings"]:
            found.setdefault(it["check"], []).append(it["status"])
        return code, found, "\n".join([*asked, said.err])

    return run


def test_the_file_is_written_only_where_that_is_asked_for_and_with_the_account_of_the_site(doctor, tmp_path):
    code, found, said = doctor(SMALL, ["gpu"])
    assert (code, found) == (0, {"slurm": [OK], "job": [OK], "site": [NOT_RUN]})
    assert said.startswith("sbatch --test-only --partition=gpu --nodes=1 --time=1 --gres=gpu:a100:2 --wrap=true\n")
    assert "takes a job on a node with 2 GPUs, account not needed" in said and "--write slurm/partitions.yaml" in said
    path = tmp_path / "site/partitions.yaml"
    assert doctor(SMALL, ["gpu"], "--write", str(path))[0] == 0 and Site.load(path).gpus_per_node == 2
    assert [it.name for it in path.parent.iterdir()] == ["partitions.yaml"]
    first = path.read_text(encoding="utf-8").replace("account: null", "account: physics")
    path.write_text(first + "# mine\n", encoding="utf-8")
    assert "--account=physics" in doctor(SMALL, ["gpu"], "--write", str(path))[2]
    assert path.read_text(encoding="utf-8") == first, "the same values, found again"
    assert path.with_suffix(".yaml.old").read_text(encoding="utf-8") == first + "# mine\n"


def test_a_partition_that_is_not_for_us_is_left_out_and_others_are_not(doctor, tmp_path):
    code, found, said = doctor(MIXED, ["gpu"], "--write", str(tmp_path / "partitions.yaml"))
    assert code == 0 and sorted(found["job"]) == [NOT_RUN, NOT_RUN, NOT_RUN, OK]
    assert "Invalid account" in said and "broken: it is not up" in said
    assert list(yaml.safe_load((tmp_path / "partitions.yaml").read_text())["partitions"]) == ["gpu"]
    code, found, said = doctor(MIXED, ["gpu"], "--partition", "old")
    assert code == 1 and found["job"] == [NOT_RUN] and found["site"] == [FAILED] and "sacctmgr show user" in said
    assert main(["doctor", "--slurm", "--partition", "gpus"]) == 2


def test_a_controller_that_is_silent_is_said(monkeypatch, tmp_path, capsys):
    (tmp_path / "sinfo").write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main(["doctor", "--slurm", "--timeout", "0.5"]) == 1
    assert "sinfo: no answer in 0.5 s -> on a login node scontrol ping" in capsys.readouterr().out
