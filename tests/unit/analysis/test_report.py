"""Reports of runs: tables against the arithmetic of records, holes with reasons, and figures against tables."""

import csv
import io
import json
import re
from dataclasses import replace

import pytest

from benchmarks.analysis.charts.draw import draw_all, library
from benchmarks.analysis.charts.rows_chart import BOUNDARY, memory_chart
from benchmarks.analysis.load_run import Run, load_run
from benchmarks.analysis.report_command import screen_text, write_report
from benchmarks.analysis.statistics import t_quantile
from benchmarks.analysis.table import to_csv
from benchmarks.analysis.tables.run_tables import accuracy, memory
from benchmarks.analysis.tables.table_list import TABLES, TRADE_OFF
from benchmarks.core.cell import Cell
from tests.records import make_result, path_of, save_run

MODELS = ["vgg-digits", "gpt2-bytes"]
CONFIG = {
    "run": "x",
    "defaults": {"density": 0.01},
    "matrix": [
        {"model": MODELS, "compressor": "none", "scheme": "none", "gradients": ["kept", "streamed"]},
        {"model": MODELS, "scheme": ["baseline", "none", "w+2d"], "seed": [0, 1, 2]},
        {"model": MODELS, "scheme": "baseline", "gradients": "streamed"},
    ],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "x/logs").mkdir(parents=True)
    return save_run(tmp_path / "x", CONFIG)


def rows(table):
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def test_memory_is_the_arithmetic_of_the_records(folder):
    table = TABLES["memory"](load_run(folder))
    assert len(table.records) == 2 * 6
    parts = ("parameters_bytes", "gradients_bytes", "residuals_bytes", "optimizer_states_bytes")
    for row in rows(table):
        setting = {name: row[name] for name in ("model", "compressor", "scheme", "gradients")}
        raw, base = make_result(Cell(**setting)).to_dict(), make_result(Cell(model=row["model"])).to_dict()
        total, whole = (sum(one[part] for part in parts) for one in (raw, base))
        assert int(row["total_bytes"]) == total and float(row["normalised"]) == total / whole
        assert int(row["peak_states_bytes"]) == total + raw["in_flight_bytes"]
        assert float(row["peak_normalised"]) == (total + raw["in_flight_bytes"]) / whole
        assert row["seeds"] == ("3" if row["compressor"] == "topk" and row["gradients"] == "kept" else "1")


def test_accuracy_is_mean_and_half_of_its_interval_over_seeds(folder):
    table = TABLES["accuracy"](load_run(folder))
    by_scheme = {(row["model"], row["compressor"], row["scheme"], row["gradients"]): row for row in rows(table)}
    values = [4.2 * (1.05 + 0.01 * seed) for seed in range(3)]
    average = sum(values) / 3
    error = (sum((value - average) ** 2 for value in values) / 2 / 3) ** 0.5
    row = by_scheme["gpt2-bytes", "topk", "none", "kept"]
    assert float(row["metric_mean"]) == pytest.approx(average)
    assert float(row["metric_half_width"]) == pytest.approx(t_quantile(0.975, 2) * error)
    assert float(row["difference_mean"]) == pytest.approx(4.2 * 0.05)
    assert by_scheme["gpt2-bytes", "none", "none", "kept"]["metric_half_width"] == ""
    speeds = rows(TABLES["throughput"](load_run(folder)))
    assert float(speeds[0]["ratio_to_baseline"]) == pytest.approx(21.5 / 20)


def test_every_kind_of_hole_has_its_reason_and_command(folder, no_figures):
    cells = [Cell(model="gpt2-bytes", scheme="w+2d", seed=seed) for seed in range(3)]
    cells += [Cell(model="gpt2-bytes", compressor="none", scheme="none", gradients=one) for one in ("kept", "streamed")]
    broken, error, oom, absent, unfinished = (path_of(folder, cell) for cell in cells)
    broken.write_text(broken.read_text()[:500])
    for path in (error, absent, unfinished):
        path.unlink()
    killed = replace(make_result(cells[1]), status="error", reason="rank 1 was killed")
    killed.save(error.with_name(f"{cells[1].name}.failed.json"))
    replace(make_result(cells[2]), status="oom", reason="8 GiB asked, 2 GiB free").save(oom)
    (folder / "logs" / f"{cells[4].name}.log").write_text("")
    run = load_run(folder)
    holes = [run.holes[cell] for cell in cells]
    assert [hole.status for hole in holes] == ["broken", "error", "oom", "not run", "unfinished"]
    for hole, reason in zip(holes, ("half written", "rank 1 was killed", "8 GiB asked, 2 GiB free"), strict=False):
        assert reason in hole.reason
    text, page = screen_text(run), write_report(run).read_text()
    for cell, hole in zip(cells, holes, strict=True):
        assert hole.command.endswith(f"cells/{cell.name}.json") and hole.command in text
        assert (" --force " in hole.command) == (hole.status in ("broken", "oom")), "if a record is in the way"
    assert f"5 of {len(run.cells)} cells have no measurement" in page and "rank 1 was killed" in page


@pytest.mark.parametrize("config", [None, "{", json.dumps({**CONFIG, "matrix": [{"model": "gone"}]})])
def test_a_folder_with_a_broken_config_shows_its_records(folder, config, no_figures):
    (folder / "config.json").unlink() if config is None else (folder / "config.json").write_text(config)
    run = load_run(folder)
    assert len(run.results) == len(list(folder.glob("cells/*.json")))
    assert "config.json cannot be read" in run.notes[0]
    assert "config.json cannot be read" in write_report(run).read_text()


def test_the_page_needs_nothing_but_itself(folder, monkeypatch):
    monkeypatch.setattr("benchmarks.analysis.tables.table_list.PAPER_TABLES", {})
    page = write_report(load_run(folder)).read_text()
    ours = page.replace(library(), "")
    assert all(link.startswith("#") for link in re.findall(r'\b(?:href|src)="(.*?)"', ours))
    assert len(ours) < len(page) and not re.search(r"https?://|@import|url\((?!#)|unsafe-eval", ours)
    for name in (*TABLES, TRADE_OFF):
        for form, start in (("png", b"\x89PNG"), ("svg", b"<svg "), ("pdf", b"%PDF")):
            assert (folder / f"figures/{name}.{form}").read_bytes().startswith(start)
    for name in TABLES:
        assert all((folder / f"tables/{name}.{form}").exists() for form in ("csv", "md", "tex"))


@pytest.fixture
def run(tmp_path):
    cells = [Cell(model="gpt2-bytes", scheme=scheme, seed=seed) for scheme in ("baseline", "w+2d") for seed in (0, 1)]
    cells += [Cell(model="gpt2-bytes", scheme="w+2d", gradients="streamed")]
    return Run(tmp_path, cells, {cell: make_result(cell) for cell in cells}, {}, [])


def rows_of(specification):
    """What a figure's marks are drawn from."""
    (rows,) = specification["datasets"].values()
    return rows


def test_bars_are_the_shares_of_the_baseline(run):
    table = memory(run)
    rows = rows_of(memory_chart(table.records))
    for place, record in enumerate(table.records):
        mine = [row for row in rows if row["row"] == place and row["view"] == BOUNDARY]
        assert sum(row.get("share", 0) for row in mine) == pytest.approx(100 * record["normalised"], abs=0.001)
        assert mine[-1]["at"] == pytest.approx(100 * record["peak_normalised"], abs=0.001)
        assert all(f"{record['residuals_bytes'] / 2**20:.2f} MiB" in row["tip"] for row in mine)
    assert {row["letter"] for row in rows if row.get("share", 0) > 10} == set("PGRO"), "told apart without colours"
    assert memory_chart([record | {"normalised": None} for record in table.records]) is None


def test_exact_values_are_in_the_picture_and_its_bytes_are_the_same_each_time(run):
    tables = [memory(run), accuracy(run)]
    first, second = draw_all(tables), draw_all(tables)
    assert {name: one.svg for name, one in first.items()} == {name: one.svg for name, one in second.items()}
    assert {name: one.png for name, one in first.items()} == {name: one.png for name, one in second.items()}
    for name, rows in ((name, rows_of(one.specification)) for name, one in first.items()):
        shown = [row["tip"] for row in rows if "tip" in row and row.get("view") in (None, BOUNDARY, "metric")]
        assert shown and all(tip.split("\n")[-1] in first[name].svg for tip in shown)
