"""Cells that ended badly: only what a training leaves that diverged is evidence of it, and no record covers it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.analysis.claims.claim import LedgerRow
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.analysis.load_run import load_run
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.claim_records import diverged, make

SEEDS = range(5)
SCHEMES = ("baseline", "none", "w+2d")
CONFIG = {"run": "x", "matrix": [{"model": "vgg-digits", "seed": [*SEEDS], "scheme": [*SCHEMES]}]}


def cell_of(scheme: str, seed: int = 1) -> Cell:
    return Cell(model="vgg-digits", scheme=scheme, seed=seed)


def path_of(folder: Path, cell: Cell, failed: bool = False) -> Path:
    return folder / f"cells/{cell.name}{'.failed' * failed}.json"


def filled(folder: Path, control: float = 0.0) -> Path:
    """A run in which all is kept; the control is better than it is by so many per cent."""
    (folder / "cells").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "run": folder.name}))
    for scheme in SCHEMES:
        for seed in SEEDS:
            cell = cell_of(scheme, seed)
            make(cell, worse=-control * (scheme == "none")).save(path_of(folder, cell))
    return folder


def accuracy(*folders: Path) -> LedgerRow:
    return next(one for one in ledger(*map(load_run, folders)) if one.id == "exp2-accuracy-vgg19")


def replaced(folder: Path, cell: Cell, text: str, failed: bool = True) -> None:
    path_of(folder, cell).unlink()
    path_of(folder, cell, failed).write_text(text)


def text_of(record: CellResult, **change: Any) -> str:
    return json.dumps(record.to_dict() | change)


PLANTED: list[tuple[Callable[[Cell], str], str]] = [
    (lambda cell: '{"status": "diverged", "reason": "loss is nan"}', "cannot be read: schema_version: None"),
    (lambda cell: text_of(diverged(cell), status="exploded"), "status: 'exploded' is not one of ok, oom"),
    (lambda cell: text_of(make(cell)), "status: 'ok' is not allowed here; allowed: oom, timeout"),
    (lambda cell: text_of(diverged(cell_of("w+2d", 9))), "it is of another cell, vgg-digits.topk.w+2d.kept.d0.01.s9"),
]


@pytest.mark.parametrize(("text", "reason"), PLANTED, ids=[reason for _, reason in PLANTED])
@pytest.mark.parametrize("scheme", ["none", "w+2d"])
def test_a_failed_record_must_be_one_of_its_cell(
    tmp_path: Path, scheme: str, text: Callable[[Cell], str], reason: str
) -> None:
    folder = filled(tmp_path / "x", control=6)
    assert accuracy(folder).status == "inconclusive", "the control is as good"
    for seed in SEEDS:
        replaced(folder, cell_of(scheme, seed), text(cell_of(scheme, seed)))
    one = accuracy(folder)
    assert one.status == "inconclusive" and "error" in one.reason and reason in one.reason


BARE: list[tuple[dict[str, Any], str]] = [
    ({"provenance": {}}, "provenance: its content, with the cell it was run for, is missing"),
    ({"provenance": {"content": {"cell": {"model": "vgg-digits"}}}}, "provenance: it was measured for vgg-digits.topk"),
    ({"per_rank": []}, "per_rank: needs 2 ranks, and one of them diverged"),
    ({"failure": {"step": 7}}, "failure: step: 7 is not the one after the 60 steps"),
    ({"steps": 600, "failure": {"step": 600}}, "steps: 600, its cell and recipe have 200"),
]


@pytest.mark.parametrize(("change", "reason"), BARE, ids=[reason for _, reason in BARE])
def test_a_divergence_without_a_training_decides_nothing(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    """Neither that the scheme lost its metric, nor that the control did."""
    folder = filled(tmp_path / "x")
    replaced(folder, cell_of("w+2d"), text_of(diverged(cell_of("w+2d")), **change))
    one = accuracy(folder)
    assert one.status == "inconclusive" and "; not shown: " in one.reason and reason in one.reason
    folder = filled(tmp_path / "y", control=6)
    for seed in SEEDS:
        replaced(folder, cell_of("none", seed), text_of(diverged(cell_of("none", seed)), **change))
    assert accuracy(folder).status == "inconclusive"


@pytest.mark.parametrize("failed", [True, False])
def test_a_training_that_diverged_decides(tmp_path: Path, failed: bool) -> None:
    folder = filled(tmp_path / "x")
    replaced(folder, cell_of("w+2d"), text_of(diverged(cell_of("w+2d"))), failed)
    assert accuracy(folder).status == "not reproduced"
    folder = filled(tmp_path / "y", control=6)
    for seed in SEEDS:
        replaced(folder, cell_of("none", seed), text_of(diverged(cell_of("none", seed))), failed)
    one = accuracy(folder)
    assert one.status == "reproduced" and "seed 0, 1, 2, 3, 4 of it diverged, where full residuals" in one.reason


@pytest.mark.parametrize("status", ["diverged", "oom", "timeout"])
def test_an_outcome_is_not_covered_by_another_record(tmp_path: Path, status: str) -> None:
    first, second = filled(tmp_path / "a"), filled(tmp_path / "b")
    for seed in SEEDS:
        replaced(first, cell_of("w+2d", seed), text_of(diverged(cell_of("w+2d", seed)), status=status), failed=False)
    for runs in ((first, second), (second, first)):
        one = accuracy(*runs)
        assert one.status == "inconclusive"
        assert f"vgg-digits.topk.w+2d.kept.d0.01.s0 ended as {status} in a: the loss was nan" in one.reason


def test_a_mishap_is_covered_by_another_record(tmp_path: Path) -> None:
    first, second = filled(tmp_path / "a"), filled(tmp_path / "b")
    replaced(first, cell_of("w+2d"), text_of(diverged(cell_of("w+2d")), status="node-fail"))
    assert accuracy(first).status == "inconclusive"
    assert accuracy(first, second).status == "reproduced"
