import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.charts.draw import library
from benchmarks.analysis.labels import TIMES, short_labels
from benchmarks.analysis.load_run import load_run
from benchmarks.analysis.origin import provenance_rows
from benchmarks.analysis.report_command import screen_text, write_report
from benchmarks.analysis.statistics import t_quantile
from benchmarks.analysis.tables import accuracy as accuracy_module
from benchmarks.analysis.tables.accuracy import load_tells
from benchmarks.analysis.tables.table_list import TABLES, TRADE_OFF
from benchmarks.analysis.write import to_csv, to_markdown
from benchmarks.core.cell import Cell
from resireduce.errors import ConfigError
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


@pytest.mark.parametrize("name", ["tables", "figures", "report.html", "claims.json"])
def test_what_is_in_the_way_of_a_report_is_named_before_any_work(folder, capsys, name):
    path = folder / name
    path.mkdir() if "." in name else path.write_text("x")
    before = sorted(folder.rglob("*"))
    assert main(["report", "--run", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"error: run: {path} is " in said and "move it away" in said and said.count("\n") == 1
    assert sorted(folder.rglob("*")) == before


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
    assert "n = 3" in to_markdown(table, [])


def test_throughput_is_compared_with_the_baseline(folder):
    run = load_run(folder)
    table = TABLES["throughput"](run)
    row = rows(table)[0]
    assert float(row["ratio_to_baseline"]) == pytest.approx(21.5 / 20)
    assert float(row["units_per_second"]) == 688 and row["unit"] == "images"
    assert f"20.00 (1.00 {TIMES}), 640 tokens/s" in to_markdown(table, [])
    results = {cell: replace(one, units_per_second=None, unit=None) for cell, one in run.results.items()}
    assert f"20.00 (1.00 {TIMES}) |" in to_markdown(TABLES["throughput"](replace(run, results=results)), [])


def test_a_table_needs_one_line_in_the_registry(folder, monkeypatch):
    monkeypatch.setattr("benchmarks.analysis.tables.table_list.PAPER_TABLES", {})
    steps = replace(TABLES["throughput"](load_run(folder)), name="steps")
    monkeypatch.setitem(TABLES, "steps", lambda run: steps)
    page = write_report(load_run(folder)).read_text()
    assert '<section id="steps">' in page
    assert '<figure class="chart scroll" id="figure-steps"' in page
    forms = ("tables/steps.csv", "tables/steps.md", "figures/steps.png", "figures/steps.svg", "figures/steps.pdf")
    assert all((folder / path).exists() for path in forms)


def test_models_that_cannot_tell_are_marked(folder, tmp_path, monkeypatch):
    tells = tmp_path / "tell.json"
    tells.write_text(json.dumps({"models": {"vgg-digits": {"tells": False}, "gpt2-bytes": {"tells": True}}}))
    monkeypatch.setattr(accuracy_module, "load_tells", lambda: load_tells(tells))
    table = TABLES["accuracy"](load_run(folder))
    assert [heading for heading in table.head if "*" in heading] == ["vgg-digits *, accuracy ↑"]
    assert any(note.startswith("* vgg-digits cannot tell") for note in table.notes)
    assert not any("not been measured" in note for note in table.notes)
    assert load_tells(tmp_path / "no.json") == {}


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


def test_without_a_baseline_nothing_is_normalised(folder, no_figures):
    for seed in range(3):
        path_of(folder, Cell(model="gpt2-bytes", seed=seed)).unlink()
    run = load_run(folder)
    records = [record for record in TABLES["memory"](run).records if record["model"] == "gpt2-bytes"]
    assert {record["normalised"] for record in records} == {None}
    write_report(run)


@pytest.mark.parametrize("config", [None, "{", "[]", json.dumps({**CONFIG, "matrix": [{"model": "gone"}]})])
def test_a_folder_with_a_broken_config_shows_its_records(folder, config, no_figures):
    (folder / "config.json").unlink() if config is None else (folder / "config.json").write_text(config)
    run = load_run(folder)
    assert len(run.results) == len(list(folder.glob("cells/*.json")))
    assert "config.json cannot be read" in run.notes[0]
    assert "config.json cannot be read" in write_report(run).read_text()


def test_an_empty_run_has_a_report(tmp_path, no_figures):
    for reason in ("is not a folder", "holds no run"):
        with pytest.raises(ConfigError, match=reason):
            load_run(tmp_path / "run")
        (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run/config.json").write_text(json.dumps(CONFIG))
    run = load_run(tmp_path / "run")
    assert len(run.holes) == len(run.cells) and write_report(run).exists()


class Collector(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids, self.open = [], set(), []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.links += [values[name] for name in ("href", "src") if name in values]
        self.ids.add(values.get("id"))
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_nothing_but_itself(folder, monkeypatch):
    monkeypatch.setattr("benchmarks.analysis.tables.table_list.PAPER_TABLES", {})
    page = write_report(load_run(folder)).read_text()
    parser = Collector()
    parser.feed(page)
    assert not parser.open
    assert all(link.startswith("#") for link in parser.links)
    assert {link[1:] for link in parser.links} <= parser.ids
    ours = page.replace(library(), "")
    assert len(ours) < len(page) and not re.search(r"https?://|@import|url\((?!#)|unsafe-eval", ours)
    assert set(re.findall("<script.*?>", ours)) == {
        "<script>",
        '<script id="vega">',
        '<script type="application/json">',
    }
    assert ours.count("<script>") == ours.count('<script id="vega">') == 1
    for name in (*TABLES, TRADE_OFF):
        for form, start in (("png", b"\x89PNG"), ("svg", b"<svg "), ("pdf", b"%PDF")):
            assert (folder / f"figures/{name}.{form}").read_bytes().startswith(start)
    for name in TABLES:
        assert all((folder / f"tables/{name}.{form}").exists() for form in ("csv", "md", "tex"))


def test_provenance_shows_each_fact_once(folder):
    facts = dict(provenance_rows(load_run(folder).results.values()))
    assert facts["Packages"] == ["torch 2.13.0+cpu, numpy 2.4.6"]
    assert facts["Uncommitted changes"] == ["no"]
    assert facts["Measured"] == ["2026-01-01T12:00:00+00:00 to 2026-01-03T12:00:00+00:00"]
    assert [value.split(":")[0] for value in facts["Data (SHA-256)"]] == MODELS


def test_labels_name_the_rarer_fields_only_where_they_differ_and_mean_something():
    cells = [
        Cell(model="vgg-digits", compressor="none", scheme="none"),
        Cell(model="vgg-digits", residual_dtype="bfloat16"),
        Cell(model="vgg-digits", compressor="fp16"),
        Cell(model="vgg-digits", compressor="randomk", density=0.05),
    ]
    assert short_labels(cells[:2]) == ["no compression, kept", "baseline, kept, residual dtype bfloat16"]
    assert short_labels([cells[0], cells[2]]) == ["no compression, kept", "baseline, kept"]
    assert short_labels(cells[2:]) == ["baseline, kept, fp16", "baseline, kept, randomk"]
    assert short_labels([Cell(model="vgg-digits"), cells[3]])[1] == "baseline, kept, randomk, density 0.05"
