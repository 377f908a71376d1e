"""The tables and figures of the paper: all published values, whatever the run holds; and what is missing, and why."""

import re
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks.analysis.charts.look import PUBLISHED
from benchmarks.analysis.charts.rows_chart import bars_chart
from benchmarks.analysis.claims.claim import NUMBERS_FILE, load_published
from benchmarks.analysis.claims.sound import load_planned
from benchmarks.analysis.labels import ABSENT, MINUS, TIMES
from benchmarks.analysis.load_run import Hole, Run
from benchmarks.analysis.paper.make import CONFIG, paper_parts
from benchmarks.analysis.table import CELL_COLUMNS, Table, to_csv, to_latex, to_markdown
from benchmarks.analysis.tables.table_list import PAPER_TABLES, all_tables
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.run_config import get_cells
from tests.claim_records import make

NOT_IN_TABLES = ("sec", "fig7-")
"""Ids of what the paper states of its clusters and examples; nothing of it is measured."""
EMPTY = Run(Path("empty"), [], {}, {}, [])


STATUSES = ("not run", "oom", "timeout", "node-fail", "diverged", "unfinished")
COMMAND = ".venv/bin/snakemake --cores all --configfile results/runs/paper/config.json --nolock -- "


@pytest.fixture(scope="module")
def paper() -> Run:
    """A run of the paper's matrix, made by arithmetic, of which every 23rd cell is missing."""
    cells = [cell for cell in get_cells(read_config(CONFIG)).values() if cell.model in load_planned()]
    run = Run(Path("results/runs/paper"), cells, {}, {}, [])
    for place, cell in enumerate(cells):
        if place % 23 == 7:
            status = STATUSES[place // 23 % len(STATUSES)]
            run.holes[cell] = Hole(cell.name, status, "a reason | & 100 % of them_", f"{COMMAND}{cell.name}.json")
        else:
            run.results[cell] = make(cell)
    return run


def paper_rows(table: Table) -> list[dict[str, Any]]:
    return [record for record in table.records if record["kind"] == "paper"]


def line(table: Table, model: str, label: str, **more: Any) -> dict[str, Any]:
    wanted = {"model": model, "line": label, **more}
    (found,) = [one for one in table.records if all(one[name] == value for name, value in wanted.items())]
    return found


def test_every_published_value_is_in_a_table() -> None:
    shown: set[str] = set()
    text = ""
    for table_of in PAPER_TABLES.values():
        table = table_of(EMPTY)
        shown |= {record["published_id"] for record in table.records}
        text += "\n".join(table.notes)
    assert len(load_published()) == len(NUMBERS_FILE.read_text().splitlines()) - 1, "each has an id of its own"
    for name, one in load_published().items():
        if not name.startswith(NOT_IN_TABLES):
            assert name in shown or f"{one.value:g} {one.unit} ({one.source}" in text, name


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_without_results_every_row_says_how_to_fill_it(name: str) -> None:
    table = PAPER_TABLES[name](EMPTY)
    assert table.name == name and len(table.body) == len(table.records) > 0
    for row, record in zip(table.body, table.records, strict=True):
        assert len(row) == len(table.head)
        assert record["measured"] is None and record["missing"] == row[-1] == "not run"
        assert record["command"] == f"make run RUN=paper PART={record['part']}"
        assert record["part"] in paper_parts()
    assert "snakemake --profile slurm --config part=" in table.all_notes[-1]
    assert to_csv(table).count("not run") and "not run" in to_markdown(table, [])


def test_measured_stands_beside_published(paper: Run) -> None:
    for name in ("table2", "table3", "table4"):
        records = [one for one in paper_rows(PAPER_TABLES[name](paper)) if one["measured"] is not None]
        assert len(records) >= 8
        for record in records:
            results = paper.settings[Cell.from_dict({field: record[field] for field in CELL_COLUMNS})]
            assert record["measured"] == pytest.approx(mean(one.metric for one in results if one.metric is not None))
            assert record["unit"] == record["published_unit"] and record["published"] is not None
            assert record["measured_n"] == record["seeds"] == len(results)
            assert record["seeds_wanted"] == len(results) + len(record["missing_cells"])


def test_saving_is_the_arithmetic_of_the_bytes(paper: Run) -> None:
    table = PAPER_TABLES["fig9a"](paper)
    assert line(table, "vgg19", "ResiReduce-(w+2d)")["measured"] == pytest.approx(15.67, abs=0.01)
    assert line(table, "vgg19", "ResiReduce-w")["published"] is None
    assert line(table, "bert-large", "ResiReduce-(w+2d)")["published"] == 13.3
    share = line(PAPER_TABLES["fig2"](paper), "vgg19", "Baseline")
    assert (round(share["measured"], 2), share["published"]) == (25.0, 23.56)
    drawn = PAPER_TABLES["fig9b"](paper).drawn or []
    (rows,) = bars_chart(drawn)["datasets"].values()
    stated = [row["value"] for row in rows if row["series"] == PUBLISHED]
    assert stated and stated == [one["published"] for one in drawn if one["published"] is not None]


def test_holes_say_why_and_name_the_command(paper: Run) -> None:
    found = [record for make in PAPER_TABLES.values() for record in paper_rows(make(paper)) if record["missing"]]
    words = " ".join(record["missing"] for record in found)
    for word in ("not run", "oom", "timeout", "node lost", "diverged", "unfinished"):
        assert word in words
    for record in found:
        if record["missing_cells"]:
            assert record["command"].startswith((COMMAND, "make run RUN=paper PART="))
            assert all(one["reason"] and one["command"] for one in record["missing_cells"])


def test_throughput_loss_is_against_the_same_number_of_ranks(paper: Run) -> None:
    table = PAPER_TABLES["fig11"](paper)
    record = line(table, "bert-large", "ResiReduce", world_size=64)
    speeds = [
        paper.results[Cell(model="bert-large", scheme=scheme, world_size=64, steps=200)].steps_per_second or 0
        for scheme in ("w+2d", "baseline")
    ]
    assert record["measured"] == pytest.approx(100 * (1 - speeds[0] / speeds[1]))
    assert record["published"] == 0.48
    assert line(table, "bert-large", "ResiReduce", world_size=16)["published"] is None


def test_gain_is_paired_by_seed_and_turned_for_perplexity(paper: Run) -> None:
    table = PAPER_TABLES["fig6"](paper)
    record = line(table, "gpt2-medium", "L2: gain of largest over smallest")
    base: dict[str, Any] = {"model": "gpt2-medium", "scheme": "member", "world_size": 4}
    for seed, value in record["values"].items():
        largest, smallest = (
            paper.results[Cell(**base, seed=int(seed), options={"norm": 2, "smallest": small})].metric or 0
            for small in (False, True)
        )
        assert value == pytest.approx(100 * (smallest - largest) / smallest)
    assert record["measured"] > 0


@pytest.mark.parametrize("name", all_tables())
def test_latex_is_escaped_and_has_all_columns(name: str, paper: Run) -> None:
    table = all_tables()[name](paper)
    text = to_latex(table)
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == 1
    # What is left without comments, commands, escapes and mathematics may hold nothing special.
    plain = re.sub(r"(?m)^%.*$|\\[a-zA-Z]+(\{\})?|\\[&%#_{}$\\]|\$[^$]*\$|tab:\w+", "", text)
    assert plain.count("{") == plain.count("}") and not set(plain) & {*"%#_^~$<>|±→←↑↓≥", MINUS, TIMES, ABSENT}
    rows = [row for row in text.splitlines() if row.endswith(r" \\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(table.head) - 1}
