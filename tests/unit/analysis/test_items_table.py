"""The table of tensors explains every saving of the memory table, to the byte."""

import csv
import io
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.analysis.charts.draw import draw_all
from benchmarks.analysis.charts.states_chart import items_chart
from benchmarks.analysis.labels import MINUS, TIMES
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.tables.items_table import ROWS, fold, view
from benchmarks.analysis.tables.table_list import TABLES
from benchmarks.analysis.write import to_csv, to_markdown
from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import pack
from benchmarks.core.record import CellResult
from resireduce.plan import plan
from resireduce.planning.item import STATES, Item, sums
from tests.records import make_result, save_run
from tests.worlds import Net

CONFIG = {
    "run": "x",
    "defaults": {"model": ["gpt2-bytes", "vgg-digits"]},
    "matrix": [
        {"scheme": ["baseline", "w", "w+2d"], "gradients": ["kept", "streamed"], "seed": [0, 1]},
        {"scheme": "w+2d", "density": 0.05},
        {"scheme": "baseline", "residual_dtype": "int8"},
        {"compressor": "none", "scheme": "none"},
    ],
}
BLOCKS = {"gpt2-bytes": 4, "vgg-digits": 3}
"""The models' tensors are those of Net, with so many blocks."""


@cache
def tensors(model: str, compressor: str, scheme: str, gradients: str, residual_dtype: str | None) -> tuple[Item, ...]:
    options = {"compressor": compressor, "gradients": gradients, "residual_dtype": residual_dtype, "scheme": scheme}
    found = plan(lambda: Net(blocks=BLOCKS[model]), itemised=True, **options)  # type: ignore[arg-type]
    return tuple(found["items"])


def itemised(cell: Cell) -> CellResult:
    listed = tensors(cell.model, cell.compressor, cell.scheme, cell.gradients, cell.residual_dtype)
    totals = sums(list(listed))
    result = make_result(replace(cell, residual_dtype=None, scheme="none" if cell.scheme == "none" else "w"))
    states = {f"{state}_bytes": held for state, held in totals.items()}
    return replace(result, cell=cell, **states, total_bytes=sum(totals.values()), items={"rank": 0, **pack(listed)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "x", CONFIG, itemised)


@pytest.fixture
def run(folder: Path) -> Run:
    return load_run(folder)


def total(records: list[dict[str, str]], column: str) -> int:
    return sum(int(record[column]) for record in records)


def test_every_saving_is_the_sum_over_its_tensors(run: Run) -> None:
    memory = {tuple(r[c] for c in ("model", "scheme", "gradients", "compressor", "residual_dtype", "density")): r
              for r in TABLES["memory"](run).records}  # fmt: skip
    found: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for record in TABLES["items"](run).records:
        key = tuple(record[c] for c in ("model", "scheme", "gradients", "compressor", "residual_dtype", "density"))
        found.setdefault(key, []).append(record)
    assert len(found) == 2 * 7, "5 but the baseline itself, int8, no compression; another density is the same"
    for key, records in found.items():
        totals = memory[key]
        assert sum(r["saved_bytes"] for r in records) == totals["baseline_total_bytes"] - totals["total_bytes"]  # type: ignore[misc]
        for state in STATES:
            assert sum(r[f"{state}_bytes"] for r in records) == totals[f"{state}_bytes"]  # type: ignore[misc]


def test_the_csv_has_every_tensor_with_what_its_residual_is_made_of(run: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLES["items"](run)))))
    rows = [r for r in rows if (r["model"], r["scheme"], r["gradients"]) == ("gpt2-bytes", "w+2d", "kept")]
    listed = {item.name for item in tensors("gpt2-bytes", "topk", "w+2d", "kept", None)}
    assert len(rows) == len(listed) and {row["tensor"] for row in rows} == listed
    by_name = {row["tensor"]: row for row in rows}
    first = by_name["first.weight"]
    assert first["residual"] == (
        "rows_columns 36 x 300 float32; rows_columns.rows 36 int32; rows_columns.columns 300 int32"
    )
    assert int(first["residuals_bytes"]) == 4 * (36 * 300 + 36 + 300)
    assert int(first["saved_bytes"]) == 4 * 72 * 600 - int(first["residuals_bytes"])
    assert by_name["blocks.0.up.weight"]["residual"] == "weighted 144 x 72 float32 shared by 4"
    assert by_name["blocks.1.up.weight"]["residual"] == "" and by_name["blocks.1.up.weight"]["saved_bytes"] == "41472"
    assert by_name["blocks.1.up.weight"]["baseline_residual"] == "full 144 x 72 float32"


def test_people_see_runs_of_layers_by_what_they_save_and_the_sum(run: Run) -> None:
    table = TABLES["items"](run)
    first = table.body[: table.group_starts[1]]
    assert first[0][0] == "gpt2-bytes: baseline, kept → w+2d, streamed"
    expected = {"first.weight, 72 600", "blocks.0-3.up.weight, 4 144 72", "blocks.0-3.down.weight, 4 72 144"}
    assert {row[1].replace(f" {TIMES}", "") for row in first[:3]} == expected
    assert len(first) <= ROWS + 2 and first[-1][1].startswith("sum (") and first[-2][1].startswith("other (")
    numbers = [[int(cell.replace(",", "")) for cell in row[2:]] for row in first]
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
    savings = [row[-1] for row in numbers[:-2]]
    assert savings == sorted(savings, reverse=True)
    usual = [r for r in TABLES["memory"](run).records if r["density"] == 0.01 and r["residual_dtype"] is None]
    memory = {(r["model"], r["scheme"], r["gradients"]): r for r in usual}
    shown = memory["gpt2-bytes", "w+2d", "streamed"]
    assert numbers[-1][-1] == shown["baseline_total_bytes"] - shown["total_bytes"]
    assert numbers[-1][2:4] == [memory["gpt2-bytes", "baseline", "kept"]["residuals_bytes"], shown["residuals_bytes"]]
    assert any(note.endswith("of their scheme: 2.") for note in table.notes)


def test_people_see_no_more_rows_than_they_can_read_and_all_others_in_one() -> None:
    """First what changes most, be it less or more."""
    bytes_of = {"baseline_gradients_bytes": 40, "gradients_bytes": 30}
    bytes_of |= {"baseline_residuals_bytes": 20, "residuals_bytes": 5}
    tensors = [{"alike": f"layer{i}", "shape": [i], "saved_bytes": 1000 - i, **bytes_of} for i in range(ROWS + 5)]
    tensors[ROWS + 4]["saved_bytes"] = -2000
    rows = view(tensors)
    titles = [f"layer{i}, {i}" for i in (ROWS + 4, *range(ROWS - 1))]
    assert [row[1] for row in rows] == [*titles, "other (5 tensors)", f"sum ({ROWS + 5} tensors)"]
    assert rows[1][2:] == ["40", "30", "20", "5", "15", "1,000"] and rows[0][-1] == f"{MINUS}2,000"


def test_records_from_before_are_said_and_left_out(run: Run) -> None:
    def older(cells: list[Cell]) -> Run:
        return replace(run, results={c: replace(r, items={}) if c in cells else r for c, r in run.results.items()})

    table = TABLES["items"](older(run.cells))
    assert not table.records and not table.body
    assert any("from before tensors were listed" in note for note in table.notes)
    assert "from before" in to_markdown(table, []) and draw_all([table])["items"].png.startswith(b"\x89PNG")
    mixed = TABLES["items"](older([cell for cell in run.cells if cell.model == "vgg-digits"]))
    assert {record["model"] for record in mixed.records} == {"gpt2-bytes"}
    empty = TABLES["items"](replace(run, results={}))
    assert not empty.records and not empty.notes


def test_a_figure_of_the_tensors_is_drawn(run: Run) -> None:
    shown = [one for one in TABLES["items"](run).records if one["shown"]]
    (rows,) = items_chart(shown)["datasets"].values()
    for when, column in (("before", "baseline_residuals_bytes"), ("after", "residuals_bytes")):
        drawn = [row["share"] for row in rows if row["when"] == when and row.get("part") == "R residuals"]
        held = sum(one[column] for one in shown) / 2**20
        assert 0.9 * held <= sum(drawn) <= held, "all but the smallest"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["h.0.w", "h.2.w", "h.3.w"], {"h.0,2-3.w": 3}),
        (["a.0.ln_1.w", "a.0.ln_2.w", "a.1.ln_1.w", "a.1.ln_2.w"], {"a.0-1.ln_1-2.w": 4}),
        (["a.0.1.w", "a.1.1.w", "a.2.1.w", "a.0.2.w"], {"a.0-2.1.w": 3, "a.0.2.w": 1}),
        (["conv1.w", "conv2.w"], {"conv1.w": 1, "conv2.w": 1}),
    ],
)
def test_numbered_layers_are_folded_and_nothing_that_is_not_there(names: list[str], expected: dict[str, int]) -> None:
    folded = fold(dict.fromkeys(names, (3, 4)))
    assert {title: len(members) for title, members in folded.items()} == expected
    assert sorted(name for members in folded.values() for name in members) == sorted(names)
