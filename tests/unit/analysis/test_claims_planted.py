"""Wrong records planted in a folder: each changes the ledger exactly as it should, and none crashes it."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.claims import evidence
from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.labels import MINUS
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.report_command import screen_text, write_claims
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.record import CellResult
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


def failed(cell: Cell, status: str, reason: str) -> CellResult:
    return CellResult(cell=cell, status=status, reason=reason)


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
    path_of(folder, cell_of(seed=2)).unlink()
    one = found(folder)[ACCURACY]
    assert (one.status, one.seeds) == ("inconclusive", 1)
    assert one.reason.startswith("n = 1: seed 0 alone has no interval; worse by 0.45 points; seed 1, 2 of topk/w+2d/")
    path_of(folder, cell_of(seed=0)).unlink()
    one = found(folder)[ACCURACY]
    assert (one.status, one.scope, one.command) == ("not run", "none", "make run RUN=mini PART=table")


def test_seeds_that_the_config_no_longer_names_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that failed, and records of other settings."""
    assert main(["claims", "--run", str(folder)]) == 0
    assert "left out" not in capsys.readouterr().err
    make(Cell(model="gpt2-bytes", seed=7)).save(path_of(folder, Cell(model="gpt2-bytes", seed=7)))
    diverged(cell_of(seed=8)).save(folder / "cells" / f"{cell_of(seed=8).name}.failed.json")
    (folder / "config.json").write_text(json.dumps({**CONFIG, "defaults": {"seed": [0, 1]}}))
    first = f"{Cell(model='gpt2-bytes', seed=7).name}.json"
    told = f"left out: 6 files in cells, e.g. {first}: config.json does not name their cells"
    for command in ["claims"], ["report", "--show"]:
        assert main([command[0], "--run", str(folder), *command[1:]]) == 0
        said = capsys.readouterr()
        assert told in said.out + said.err


@pytest.mark.parametrize(
    "command", [["summary", "intervals", "--run", "RUN"], ["check", "--run", "RUN", "--reference", "RUN"]]
)
def test_figures_of_mixed_origin_are_told(folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A commit alone changes none, and a record that does not say differs from none."""
    record, arguments = make(cell_of()), [str(folder) if one == "RUN" else one for one in command]
    told = "Note: records of vgg-digits differ in data_hash, cpu: so may their figures, whatever their settings are"
    for change, is_told in (
        ({"commit": "c2"}, False),
        ({"cpu": None}, False),
        ({"cpu": "Other CPU", "data_hash": "d2"}, True),
    ):
        replace(record, provenance={**record.provenance, **change}).save(path_of(folder, cell_of()))
        main(arguments)
        said = capsys.readouterr()
        assert (told in said.out + said.err) == is_told and said.err.count(" differ in ") + said.out.count(
            " differ in "
        ) == is_told


def test_records_of_code_that_no_commit_has_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where they are all, so that no two of them differ."""
    for path in (folder / "cells").glob("*.json"):
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {"provenance": {**values["provenance"], "dirty": True}}))
    for command in (["claims", "--json"], ["report", "--show"], ["summary", "intervals"]):
        assert main([command[0], "--run", str(folder), *command[1:]]) == 0
        said = capsys.readouterr()
        assert "12 of 12 records are of code with changes that are not committed" in said.out + said.err


@pytest.mark.parametrize("name", ["config.json", f"cells/{cell_of().name}.json"])
def test_a_file_that_is_nested_deeply_ends_no_command(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("{", f'{{"deep": {"[" * 900}{"]" * 900}, ', 1))
    main(["summary", "intervals", "--run", str(folder)])
    for command in ["claims", "--json"], ["report", "--show"], ["check", "--reference", str(folder)]:
        main([command[0], "--run", str(folder), *command[1:]])
        said = capsys.readouterr()
        assert "it is nested too deeply" in said.out + said.err, command


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


def test_a_foreign_schema_version(folder: Path) -> None:
    for seed in range(3):
        path = path_of(folder, cell_of(seed=seed))
        path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    now = found(folder)
    reason = "vgg-digits.topk.w+2d.kept.d0.01.s0: broken, schema_version: 99 cannot be read; allowed: "
    assert now[ACCURACY].status == "inconclusive" and now[ACCURACY].reason.startswith(reason)
    assert now[SAVING].status == "inconclusive" and now[SAVING].reason.startswith(reason), "nothing stands in for them"


FACTS = [("commit", "c2"), ("cpu", "Other CPU"), ("packages", {"torch": "2.12"})]
FACTS += [("data_hash", "d2"), ("weights_hash", "w2"), ("dirty", True), ("deterministic", "no"), ("tf32", True)]
FACTS += [("process_group", "nccl"), ("cudnn", 91002)]


def test_other_settings_of_malloc_leave_times_open(folder: Path) -> None:
    record = make(cell_of())
    changed = {**record.provenance, "environment": {"MALLOC_MMAP_THRESHOLD_": "1"}}
    replace(record, provenance=changed).save(path_of(folder, cell_of()))
    now = found(folder)
    assert now[SPEED].status == "inconclusive" and now[SPEED].reason.count("the cells compared differ in environment")
    assert now[ACCURACY].status == now[SAME].status == "reproduced"


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


def test_a_record_under_the_name_of_another_cell_does_not_count(folder: Path) -> None:
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
        assert (
            " and another run have other values of vgg-digits.topk.w+2d.kept.d0.01.s2; give one of them" in one.reason
        )


def test_a_fullest_moment_that_differs_between_seeds_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = make(cell_of())
    fuller = {"in_flight_bytes": 8, "peak_states_bytes": int(one.peak_states_bytes or 0) + 8}
    ranks = [{**rank, **fuller} for rank in one.per_rank]
    for changed, is_told in ((one, False), (replace(one, per_rank=ranks, **fuller), True)):
        changed.save(path_of(folder, cell_of()))
        for command in (
            ["summary", "intervals"],
            ["claims"],
            ["report", "--show"],
            ["check", "--reference", str(folder)],
        ):
            main([command[0], "--run", str(folder), *command[1:]])
            said = capsys.readouterr()
            assert (f"differ in peak_states_bytes: {cell_of(seed=0).name} and " in said.out + said.err) == is_told


def test_claims_that_are_not_the_commit_s_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evidence, "git", lambda *arguments: " M results/paper/claims.yaml\n")
    told = "claims are judged by files that differ from the commit's: results/paper/claims.yaml"
    assert main(["claims", "--run", str(folder)]) == 0
    assert f"note: {told}" in capsys.readouterr().err
    assert f"Note: {told}" in screen_text(load_run(folder))


def test_the_report_writes_and_shows_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(folder)
    write_claims(run, ledger(run))
    plain = json.loads((folder / "claims.json").read_text())
    ends = [one.interval and [*one.interval] for one in ledger(run)]
    assert [one["status"] for one in plain] == [one.status for one in ledger(run)]
    assert any(ends) and [one["interval"] for one in plain] == ends
    rows = (folder / "tables/claims.csv").read_text().splitlines()
    table = csv.DictReader(rows)
    assert [[row["interval_low"], row["interval_high"]] for row in table] == [
        [*map(str, one or ("", ""))] for one in ends
    ]
    assert rows[0].startswith("id,status,scope,value,interval_low,") and len(rows) == len(plain) + 1
    assert (
        f"| `{ACCURACY}`: vgg-digits keeps its metric with w+2d | reproduced (small models) |"
        in (folder / "tables/claims.md").read_text()
    )
    assert main(["claims", "--run", str(folder)]) == 0
    text = capsys.readouterr().out.strip()
    assert text in screen_text(run)
    assert "On small models: what a laptop can show of each claim; published values themselves were not tested" in text
    assert f"+ {SAVING:<36} vgg-digits 16.40 %, at least 10 % and at most 18 %" in text


def test_one_seed_is_labelled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, "defaults": {"seed": 0}}))
    assert main(["claims", "--run", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "On small models, one seed: what a laptop can show of each claim" in text
    assert f"? {ACCURACY:<36} n = 1: seed 0 alone has no interval; worse by 0.45 points" in text
    assert f"+ {SAME:<36} equal in every digit at 4 evaluations, 1 seed" in text
