"""The doctor's command: what it prints, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.doctor import doctor_command as checks
from benchmarks.doctor.doctor_command import CHECKS, Setting, examine
from benchmarks.doctor.finding import FAILED, NOT_RUN, OK, WARNING, Finding, failed, not_run, ok, warning
from benchmarks.doctor.gpu_checks import Facts

FINDINGS = {
    "good": [ok("good", "all is well")],
    "bad": [failed("bad", "it is broken", "mend it"), ok("bad", "this is not")],
    "so-so": [warning("so-so", "it is slow", "wait")],
    "left-out": [not_run("left-out", "there is no GPU")],
}


@pytest.fixture
def stand_ins(monkeypatch) -> Callable[..., None]:
    """Put checks with these findings in the place of all others."""

    def use(*names: str) -> None:
        monkeypatch.delenv("RESIREDUCE_DEVICE", raising=False)
        known = {name: (lambda setting, found=FINDINGS[name]: found) for name in names}
        for name in reversed(list(CHECKS)):  # they come back in the opposite order
            monkeypatch.delitem(CHECKS, name)
        for name, check in known.items():
            monkeypatch.setitem(CHECKS, name, check)

    return use


def test_every_finding_is_one_aligned_line_and_the_last_line_counts(stand_ins, capsys):
    stand_ins(*FINDINGS)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        "ok       good           all is well",
        "failed   bad            it is broken -> mend it",
        "ok       bad            this is not",
        "warning  so-so          it is slow -> wait",
        "not run  left-out       there is no GPU",
    ]
    assert lines[-1] == "2 ok, 1 warning, 1 failed, 1 not run (0 s)"


def test_json_is_all_that_is_on_the_standard_output(stand_ins, capsys):
    stand_ins(*FINDINGS)
    assert main(["doctor", "--json"]) == 1
    printed = capsys.readouterr()
    values = json.loads(printed.out)
    assert values["findings"][1] == {"check": "bad", "status": FAILED, "detail": "it is broken", "cure": "mend it"}
    assert values["counts"] == {OK: 2, WARNING: 1, FAILED: 1, NOT_RUN: 1}
    assert len(printed.err.splitlines()) == 6


def test_only_chooses_in_the_order_of_the_checks(stand_ins, capsys):
    stand_ins(*FINDINGS)
    assert main(["doctor", "--only", "left-out, good, so-so"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[:-1]] == ["well", "wait", "GPU"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "gpus"], "error: only: 'gpus' is not known (did you mean 'gpu'?); allowed: disk, driver, "),
        (["--timeout", "0"], "error: timeout: '0' is not allowed; give seconds"),
        (["--ranks", "4"], "error: ranks: --ranks is not allowed without --links"),
        (["--links", "mine.json"], "error: links: mine.json is not allowed; give a file that ends with .yaml"),
        (["--links", "mine.yaml", "--ranks", "1"], "error: ranks: 1 is not allowed"),
        (["--links", "mine.yaml", "--only", "gloo"], "error: only: --only is not allowed with --links; leave it out"),
        (["--links", "mine.yaml", "--slurm"], "error: slurm: --slurm is not allowed with --links; leave it out"),
        (["--write", "x.yaml"], "error: write: --write is not allowed without --slurm; add --slurm"),
        (["--slurm", "--only", "gpu"], "error: only: --only is not allowed with --slurm; leave it out"),
    ],
)
def test_bad_options_are_named_in_one_line(capsys, options, message):
    assert main(["doctor", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_a_device_that_is_not_known_or_forbidden_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("RESIREDUCE_DEVICE", "gpu")
    assert main(["doctor", "--only", "home"]) == 2
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cpu")
    assert main(["doctor", "--only", "home", "--gpu"]) == 2
    assert "--gpu is not allowed with RESIREDUCE_DEVICE=cpu" in capsys.readouterr().err


def test_cells_that_are_to_train_on_cpus_need_no_check_of_gpus(monkeypatch, capsys):
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cpu")
    assert main(["doctor", "--only", "gpu,driver,nvml,nccl"]) == 0
    assert capsys.readouterr().out.count("not run  ") == 4


@pytest.mark.parametrize("options", [["--gpu"], []])
def test_a_gpu_that_is_asked_for_is_needed(monkeypatch, capsys, options):
    monkeypatch.setattr(
        checks, "ask", lambda timeout, hide_gpus: Facts(torch="2.13.0+cpu", nvml_error="NVML: library not found")
    )
    if not options:
        monkeypatch.setenv("RESIREDUCE_DEVICE", "cuda")
    else:
        monkeypatch.delenv("RESIREDUCE_DEVICE", raising=False)
    assert main(["doctor", "--only", "gpu,nccl", *options]) == 1
    assert capsys.readouterr().out.count("failed   ") == 2


def test_a_check_that_raises_has_failed_and_the_others_go_on():
    def raises(setting: Setting) -> list[Finding]:
        raise RuntimeError("no\nluck")

    def refused(setting: Setting) -> list[Finding]:
        raise FileNotFoundError(2, "No usable temporary directory found")

    setting = Setting(False, False, Path("results"), 1.0)
    every = {"a": raises, "b": lambda setting: [ok("b", "well")], "c": refused}
    found = list(examine(setting, ["a", "b", "c"], every))
    assert [one.status for (one,) in found] == [FAILED, OK, FAILED]
    assert found[2][0].detail == "[Errno 2] No usable temporary directory found"
    assert found[0][0].detail == "the check itself failed: RuntimeError: no luck" and found[0][0].cure


def test_every_check_is_in_the_page_of_the_docs():
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
    table = page.partition("### Checks of one machine")[2].partition("\n### ")[0]
    rows = [line.split("|")[1].strip(" `") for line in table.splitlines() if line.startswith("| `")]
    assert rows == list(CHECKS)
