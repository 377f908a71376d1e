"""Wrong records planted in a folder: each changes the ledger exactly as it should, and none crashes it."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.report_command import screen_text, write_claims
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from tests.claim_records import diverged, make
from tests.records import path_of

CONFIG = {
    "run": "x",
    "defaults": {"seed": [0, 1, 2]},
    "matrix": [
        {"model": "vgg-digits", "scheme": ["baseline", "none", "w+2d"]},
        {"model": "vgg-digits", "scheme": "w+2d", "gradients": "streamed"},
    ],
}
ACCURACY, SAVING, SAME, SPEED = "exp2-accuracy-vgg19", "exp1-local-vgg19", "ours-identical-w2d-vgg19", "exp2-time-vgg19"
WHERE = ". On vgg-digits; the "
KEPT = f"loss 0.30 [{MINUS}0.02, 0.62] points, margin 1.27"


def cell_of(scheme: str = "w+2d", seed: int = 1, **fields: Any) -> Cell:
    return Cell(model="vgg-digits", scheme=scheme, seed=seed, **fields)


def test_a_record_that_the_ledger_does_not_count_is_named_beside_the_tables(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--run", str(folder), "--show"]) == 0
    assert "the ledger does not count it" not in capsys.readouterr().out
    made = make(cell_of())
    content = {"cell": cell_of("baseline").to_dict()}
    replace(made, provenance={**made.provenance, "content": content}).save(path_of(folder, cell_of()))
    assert main(["report", "--run", str(folder), "--show"]) == 0
    said = (
        "it was measured for vgg-digits.topk.baseline.kept.d0.01.s1, and is called vgg-digits.topk.w+2d.kept.d0.01.s1"
    )
    assert f"provenance: {said}. Tables show it, the ledger does not count it." in capsys.readouterr().out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for cell in expand({key: CONFIG[key] for key in ("defaults", "matrix")}):
        make(cell).save(path_of(tmp_path, cell))
    return tmp_path


def found(folder: Path, *more: Path) -> dict[str, LedgerRow]:
    return {one.id: one for one in ledger(*(load_run(path) for path in (folder, *more)))}


def said(one: LedgerRow) -> tuple[str, str]:
    """Status, and what was said before where it was measured."""
    assert one.scope != "small models" or WHERE in one.reason or not one.cells
    return one.status, one.reason.partition(WHERE)[0]


def test_true_records(folder: Path) -> None:
    before = found(folder)
    assert said(before[SAVING]) == ("reproduced", "vgg-digits 16.40 %, at least 10 % and at most 18 %")
    status, reason = said(before[ACCURACY])
    assert status == "reproduced" and reason.startswith(KEPT) and "; control: without residuals the loss is" in reason
    assert said(before[SAME]) == ("reproduced", "equal in every digit at 4 evaluations, 3 seeds")
    assert said(before[SPEED]) == ("reproduced", f"longer by 0.00 [{MINUS}0.01, 0.01] %, margin 10.00; over 3 seeds")
    assert before[ACCURACY].seeds == 3 and before[ACCURACY].hardware == "Example CPU, 2 ranks"


def test_a_missing_seed(folder: Path) -> None:
    """What is missing counts as failed: it may have been left out because it did."""
    path_of(folder, cell_of()).unlink()
    now = found(folder)
    one = now[ACCURACY]
    assert (one.status, one.seeds) == ("inconclusive", 2)
    assert "; seed 1 of topk/w+2d/kept is missing (not run: not run yet)" in one.reason
    assert now[SAME].status == now[SAVING].status == now[SPEED].status == "inconclusive"
    for seed in (0, 2):
        path_of(folder, cell_of(seed=seed)).unlink()
    one = found(folder)[ACCURACY]
    assert (one.status, one.scope, one.command) == ("not run", "none", "make run RUN=mini PART=table")


def test_seeds_that_the_config_no_longer_names_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that failed, and records of other settings."""
    other = Cell(model="gpt2-bytes", seed=7)
    make(other).save(path_of(folder, other))
    diverged(cell_of(seed=8)).save(folder / "cells" / f"{cell_of(seed=8).name}.failed.json")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "defaults": {"seed": [0, 1]}}))
    told = "seeds left out: 2, 8 of 4 settings, e.g. vgg-digits.topk.baseline.kept.d0.01.s0: cells has records of them"
    assert main(["claims", "--run", str(folder)]) == 0
    err = capsys.readouterr().err
    assert told in err and f"left out: 1 more in cells, e.g. {other.name}: config.json does not name it." in err
    assert main(["report", "--run", str(folder), "--show"]) == 0
    assert f"Note: {told}" in capsys.readouterr().out


def test_figures_of_mixed_origin_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit alone changes none, and a record that does not say differs from none."""
    record = make(cell_of())
    told = "Note: records of vgg-digits differ in data_hash, cpu: so may their figures, whatever their settings are"
    for change, is_told in (
        ({"commit": "c2", "cpu": None}, False),
        ({"cpu": "Other CPU", "data_hash": "d2"}, True),
    ):
        replace(record, provenance={**record.provenance, **change}).save(path_of(folder, cell_of()))
        for command in (["summary", "intervals"], ["check", "--reference", str(folder)]):
            main([*command, "--run", str(folder)])
            said = "".join(capsys.readouterr())
            assert (told in said) == is_told and said.count(" differ in ") == is_told


def test_a_diverged_cell_of_the_scheme_refutes_it(folder: Path) -> None:
    diverged(cell_of(), "loss is NaN at step 7").save(path_of(folder, cell_of()))
    one = found(folder)[ACCURACY]
    assert said(one) == (
        "not reproduced",
        "seed 1 of vgg-digits.topk.w+2d.kept.d0.01.s1 diverged (loss is NaN at step 7), "
        "that of vgg-digits.topk.baseline.kept.d0.01.s1 finished; "
        "seed 1 of topk/w+2d/kept is missing (diverged: loss is NaN at step 7)",
    )
    diverged(cell_of("baseline"), "loss is NaN at step 9").save(path_of(folder, cell_of("baseline")))
    one = found(folder)[ACCURACY]
    assert (one.status, one.seeds) == ("inconclusive", 2)
    assert "seed 1 of topk/baseline/kept is missing (diverged: loss is NaN at step 9)" in one.reason


FACTS = [("commit", "c2"), ("cpu", "Other CPU"), ("packages", {"torch": "2.12"}), ("data_hash", "d2"), ("dirty", True)]
FACTS += [("tf32", True), ("process_group", "nccl")]


@pytest.mark.parametrize(("fact", "value"), FACTS)
def test_mixed_provenance(folder: Path, fact: str, value: Any) -> None:
    """Other inputs, code or machine of one side are named, and leave open what they can change."""
    record = make(cell_of())
    replace(record, provenance={**record.provenance, fact: value}).save(path_of(folder, cell_of()))
    now = found(folder)
    open_for = "reproduced" if fact == "commit" else "inconclusive"
    expected = {ACCURACY: open_for, SAVING: "reproduced", SAME: open_for, SPEED: "inconclusive"}
    for name, status in expected.items():
        assert now[name].status == status
        is_named = said(now[name])[1].endswith(f"; the cells compared differ in {fact}")
        assert is_named or (name == SAVING and fact == "process_group"), "which no byte depends on"
    # Digits that differ refute nothing then.
    other = make(cell_of(), worse=0.3)
    replace(other, provenance={**record.provenance, fact: value}).save(path_of(folder, cell_of()))
    assert found(folder)[SAME].status == "inconclusive"


def test_duplicates_of_a_cell(folder: Path) -> None:
    copy = folder / "cells" / "copy.json"
    make(cell_of()).save(copy)
    assert found(folder)[ACCURACY].status == "reproduced", "an equal copy says nothing else"
    make(cell_of(), worse=9).save(copy)
    now = found(folder)
    for name in (ACCURACY, SAVING, SAME, SPEED):
        assert now[name].status == "inconclusive"
        reason = "; copy.json holds another record of vgg-digits.topk.w+2d.kept.d0.01.s1; delete the wrong one"
        assert said(now[name])[1].endswith(reason)
    copy.rename(path_of(folder, cell_of()))
    make(cell_of(seed=2)).save(path_of(folder, cell_of()))
    assert "broken: the record is of another cell" in found(folder)[ACCURACY].reason


def test_runs_that_are_put_together(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "y"
    (other / "cells").mkdir(parents=True)
    (other / "config.json").write_text(json.dumps({**CONFIG, "run": "y"}))
    path_of(folder, cell_of()).rename(path_of(other, cell_of()))
    assert found(folder, other)[ACCURACY].seeds == 3 and "missing" not in found(folder, other)[ACCURACY].reason
    make(cell_of(seed=2), worse=9).save(path_of(other, cell_of(seed=2)))
    for runs in ((folder, other), (other, folder)):
        one = found(*runs)[ACCURACY]
        assert one.status == "inconclusive", "whatever their order"
        assert "and y have other values of vgg-digits.topk.w+2d.kept.d0.01.s2; give one of them" in one.reason


def test_the_report_writes_and_shows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(folder)
    rows = ledger(run)
    write_claims(run, rows)
    plain = json.loads((folder / "claims.json").read_text())
    table = [*csv.DictReader((folder / "tables/claims.csv").read_text().splitlines())]
    ends = [one.interval for one in rows]
    assert any(ends) and [one["interval"] for one in plain] == [one and [*one] for one in ends]
    assert [(row["interval_low"], row["interval_high"]) for row in table] == [
        (str(one[0]), str(one[1])) if one else ("", "") for one in ends
    ]
    assert [one["status"] for one in plain] == [one["status"] for one in table] == [one.status for one in rows]
    assert main(["claims", "--run", str(folder)]) == 0
    text = capsys.readouterr().out.strip()
    assert text in screen_text(run)
    assert f"+ {SAVING:<36} vgg-digits 16.40 %, at least 10 % and at most 18 %" in text
