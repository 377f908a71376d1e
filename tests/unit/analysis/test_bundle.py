"""What a bundle holds, and that equal contents make equal zips."""

import hashlib
import json
from zipfile import ZipFile

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.paths import ROOT
from benchmarks.core.record import CellResult
from tests.records import make_result

CONFIG = {
    "run": "x",
    "matrix": [{"model": "vgg-digits", "scheme": ["baseline", "none", "w+2d"], "gradients": ["kept", "streamed"]}],
}
pytestmark = pytest.mark.usefixtures("no_figures")
OOM = Cell(model="vgg-digits", scheme="none", gradients="streamed")


@pytest.fixture
def folder(tmp_path):
    """A partial run: one cell failed, one was not run."""
    folder = tmp_path / "runs/x"
    (folder / "logs").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    cells = expand({"matrix": CONFIG["matrix"]})
    for cell in cells[:-1]:
        failed = CellResult(cell=cell, status="oom", reason="too large")
        name = f"{cell.name}.failed.json" if cell == OOM else f"{cell.name}.json"
        (failed if cell == OOM else make_result(cell)).save(folder / "cells" / name)
        (folder / f"logs/{cell.name}.log").write_text("said\n")
    (folder / "specs").mkdir()
    (folder / "specs/x.json").write_text("{}")
    return folder


def bundle(folder, output):
    assert main(["bundle", "--run", str(folder), "--output", str(output)]) == 0
    return output


def test_it_has_the_run_and_what_it_rests_on(folder, tmp_path, capsys):
    with ZipFile(bundle(folder, tmp_path / "b.zip")) as zipped:
        names = zipped.namelist()
        manifest = json.loads(zipped.read("manifest.json"))
        for name, one in manifest["files"].items():
            assert hashlib.sha256(zipped.read(name)).hexdigest() == one["sha256"]
            assert len(zipped.read(name)) == one["bytes"]
        readme = zipped.read("README.md").decode()
    assert sorted(names[:-1]) == names[:-1] == sorted(manifest["files"]) and names[-1] == "manifest.json"
    run = "results/runs/x"
    for name in (
        *("README.md", "LICENSE", "CITATION.cff", "constraints.txt", "ro-crate-metadata.json", "source/commit.txt"),
        *("containers/horovod.lock", *(["source/changes.diff"] if (ROOT / ".git").exists() else [])),
        *(f"{run}/config.json", f"{run}/report.html", f"{run}/tables/memory.csv", f"{run}/figures/memory.png"),
        *(f"{run}/cells/{OOM.name}.failed.json", f"{run}/logs/{OOM.name}.log"),
    ):
        assert name in names, name
    assert not any("specs" in name for name in names)
    assert "4 records of finished cells and 1 of failed ones" in readme
    assert "4 cells, 2 missing" in capsys.readouterr().out


def test_equal_contents_make_equal_zips(folder, tmp_path):
    assert bundle(folder, tmp_path / "a.zip").read_bytes() == bundle(folder, tmp_path / "b.zip").read_bytes()


def test_the_run_stays_as_it_is_and_stale_tables_are_told(folder, tmp_path, capsys):
    (folder / "tables").mkdir()
    (folder / "tables/memory.csv").write_text("old")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with ZipFile(bundle(folder, tmp_path / "b.zip")) as zipped:
        assert zipped.read("results/runs/x/tables/memory.csv") != b"old"
        tables = [zipped.read(name).decode() for name in zipped.namelist() if "/tables/" in name]
    assert any("results/runs/x/" in text for text in tables) and not any(str(tmp_path) in text for text in tables)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "1 tables of" in capsys.readouterr().out


def test_the_metadata_is_a_minimal_ro_crate(folder, tmp_path):
    with ZipFile(bundle(folder, tmp_path / "b.zip")) as zipped:
        crate, names = json.loads(zipped.read("ro-crate-metadata.json")), zipped.namelist()
    assert crate["@context"] == "https://w3id.org/ro/crate/1.1/context"
    graph = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(graph) == len(crate["@graph"])
    about = graph["ro-crate-metadata.json"]
    assert about["@type"] == "CreativeWork" and about["about"] == {"@id": "./"}
    assert about["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = graph["./"]
    assert root["@type"] == "Dataset" and root["license"]["@id"] in graph
    assert all(root[name] for name in ("name", "description", "datePublished"))
    parts = [part["@id"] for part in root["hasPart"]]
    assert all(part in graph for part in parts)
    assert {*parts, "ro-crate-metadata.json"} == set(names) and {graph[part]["@type"] for part in parts} == {"File"}


def test_a_run_without_results_has_a_bundle(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    path = bundle(folder, tmp_path / "b.zip")
    assert main(["verify", str(path)]) == 0


def test_what_cannot_be_bundled_is_one_line(folder, tmp_path, capsys):
    assert main(["bundle", "--run", str(tmp_path / "none")]) == 2
    assert main(["bundle", "--run", str(folder), "--output", str(tmp_path)]) == 2
    (folder / f"cells/{OOM.name}.json").write_text("{")
    assert main(["bundle", "--run", str(folder), "--output", str(tmp_path / "b.zip")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "half written or not JSON" in lines[2] and not (tmp_path / "b.zip").exists()
