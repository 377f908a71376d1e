"""The doctor's command: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.doctor import doctor_command as checks
from benchmarks.doctor.doctor_command import CHECKS, Setting, examine
from benchmarks.doctor.machine_checks import FAILED, NOT_RUN, OK, WARNING, Facts, Finding, failed, not_run, ok, warning

FINDINGS = {
    "good": [ok("good", "all is well")],
    "bad": [failed("bad", "it is broken", "mend it"), ok("bad", "this is not")],
    "so-so": [warning("so-so", "it is slow", "wait")],
    "left-out": [not_run("left-out", "there is no GPU")],
}


def test_lines_json_and_the_choice_of_checks(monkeypatch, capsys):
    monkeypatch.delenv("RESIREDUCE_DEVICE", raising=False)
    for name in list(CHECKS)[::-1]:  # they come back in the opposite order
        monkeypatch.delitem(CHECKS, name)
    for name, found in FINDINGS.items():
        monkeypatch.setitem(CHECKS, name, lambda setting, found=found: found)
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[1] == "failed   bad            it is broken -> mend it"
    assert lines[-1] == "2 ok, 1 warning, 1 failed, 1 not run (0 s)"
    assert main(["doctor", "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["findings"][1] == {"check": "bad", "status": FAILED, "detail": "it is broken", "cure": "mend it"}
    assert values["counts"] == {OK: 2, WARNING: 1, FAILED: 1, NOT_RUN: 1}
    assert main(["doctor", "--only", "left-out, good, so-so"]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[:-1]] == ["well", "wait", "GPU"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "gpus"], "error: only: 'gpus' is not known (did you mean 'gpu'?); allowed: disk, folders, "),
        (["--timeout", "0"], "error: timeout: '0' is not allowed; give seconds"),
        (["--links", "mine.yaml", "--ranks", "1"], "error: ranks: 1 is not allowed"),
        (["--write", "x.yaml"], "error: slurm: --write and --partition are of no use without --slurm"),
    ],
)
def test_bad_options_are_named_in_one_line(monkeypatch, capsys, options, message):
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cpu")
    assert main(["doctor", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(message) and said.count("\n") == 1


def test_gpus_are_needed_where_cells_are_to_train_on_them(monkeypatch, capsys):
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cpu")
    assert main(["doctor", "--only", "gpu,nvml,nccl"]) == 0
    assert capsys.readouterr().out.count("not run  ") == 3
    facts = Facts(torch="2.13.0+cpu", nvml_error="NVML: library not found")
    monkeypatch.setattr(checks, "ask", lambda timeout, hide_gpus: facts)
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cuda")
    assert main(["doctor", "--only", "gpu,nccl"]) == 1
    assert capsys.readouterr().out.count("failed   ") == 2


def test_a_check_that_raises_has_failed_and_the_others_go_on():
    def raises(setting: Setting) -> list[Finding]:
        raise RuntimeError("no\nluck")

    setting = Setting(False, False, Path("results"), 1.0)
    (first,), (second,) = examine(setting, ["a", "b"], {"a": raises, "b": lambda setting: [ok("b", "well")]})
    assert (first.status, second.status) == (FAILED, OK)
    assert first.detail == "the check itself failed: RuntimeError: no luck" and first.cure


def test_every_check_is_in_the_page_of_the_docs():
    page = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text(encoding="utf-8")
    for table, known in (("one machine", list(CHECKS)), ("a cluster", ["slurm", "job", "site"])):
        rows = page.partition(f"\n### Checks of {table}")[2].partition("\n### ")[0]
        assert [line.split("|")[1].strip(" `") for line in rows.splitlines() if line.startswith("| `")] == known
