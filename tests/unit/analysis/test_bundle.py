"""What a bundle holds; one that was tampered with is found out, and none leaves its folder or fills the disk."""

import hashlib
import json
import stat
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.bundle import verify as unpack
from benchmarks.analysis.bundle.pack import pack
from benchmarks.analysis.bundle.verify import first_difference
from benchmarks.core.cell import Cell
from benchmarks.core.matrix import expand
from benchmarks.core.paths import ROOT
from benchmarks.core.provenance import provenance
from benchmarks.core.record import CellResult
from tests.records import make_result

CONFIG = {
    "run": "x",
    "matrix": [{"model": "vgg-digits", "scheme": ["baseline", "none", "w+2d"], "gradients": ["kept", "streamed"]}],
}
RUN = "results/runs/x"
CELL = f"{RUN}/cells/vgg-digits.topk.w+2d.kept.d0.01.s0.json"
TABLE = f"{RUN}/tables/memory.csv"
PAGE_FILE = f"{RUN}/report.html"
made: list[bytes] = []
"""The bundle that all tests tamper with, once it is made."""
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


def test_it_has_the_run_as_it_is_tables_made_again_and_what_they_rest_on(folder, tmp_path, capsys):
    (folder / "tables").mkdir()
    (folder / "tables/memory.csv").write_text("old")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    path = bundle(folder, tmp_path / "b.zip")
    assert "4 cells, 2 missing" in capsys.readouterr().out
    assert path.read_bytes() == bundle(folder, tmp_path / "a.zip").read_bytes()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    files = contents(path)
    manifest = json.loads(files["manifest.json"])
    for name, one in manifest["files"].items():
        assert (hashlib.sha256(files[name]).hexdigest(), len(files[name])) == (one["sha256"], one["bytes"])
    *names, last = files
    assert sorted(names) == names == sorted(manifest["files"]) and last == "manifest.json"
    for name in (
        *("README.md", "LICENSE", "CITATION.cff", "constraints.txt", "source/commit.txt", "containers/horovod.lock"),
        *(["source/changes.diff"] if (ROOT / ".git").exists() else []),
        *(f"{RUN}/config.json", f"{RUN}/report.html", f"{RUN}/tables/memory.csv", f"{RUN}/figures/memory.png"),
        *(f"{RUN}/cells/{OOM.name}.failed.json", f"{RUN}/logs/{OOM.name}.log"),
    ):
        assert name in names, name
    assert not any("specs" in name for name in names) and files[TABLE] != b"old"
    tables = [data.decode() for name, data in files.items() if "/tables/" in name]
    assert any(f"{RUN}/" in text for text in tables) and not any(str(tmp_path) in text for text in tables)
    assert b"4 records of finished cells and 1 of failed ones" in files["README.md"]


def test_what_cannot_be_bundled_is_one_line(folder, tmp_path, capsys):
    assert main(["bundle", "--run", str(tmp_path / "none")]) == 2
    assert main(["bundle", "--run", str(folder), "--output", str(tmp_path)]) == 2
    (folder / f"cells/{OOM.name}.json").write_text("{")
    assert main(["bundle", "--run", str(folder), "--output", str(tmp_path / "b.zip")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and "half written or not JSON" in lines[2] and not (tmp_path / "b.zip").exists()


@pytest.fixture
def good(folder, tmp_path, capsys):
    if not made:
        made.append(bundle(folder, tmp_path / "made.zip").read_bytes())
        capsys.readouterr()
    path = tmp_path / "good.zip"
    path.write_bytes(made[0])
    return path


@pytest.fixture
def verify(capsys):
    def run(path, status):
        assert main(["verify", str(path)]) == status
        return "".join(capsys.readouterr())

    return run


def contents(path):
    with ZipFile(path) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def forge(path, files):
    """A bundle with these files, whose manifest vouches for them."""
    head = json.loads(files["manifest.json"])
    kept = {name: data for name, data in files.items() if name != "manifest.json"}
    pack(kept, {name: head[name] for name in ("run", "date", "commit", "dirty")}, path)
    return path


def write(path, files):
    with ZipFile(path, "w", ZIP_DEFLATED) as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return path


PAGE = """<head>'sha256-abc='</head>
<div><svg><g><path d="M0"/></g></svg></div>
<p>not reproduced</p><div><svg><text x="1">one</text></svg></div>
<script id="vega">(() => {
draw("<b></b>")
})();</script>
<script>sort()</script>
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('d="M0"', 'd="M1"', None),
        ("<p>not reproduced</p>", "<svg></svg><p>reproduced</p><svg></svg>", "line 3"),
        ("draw(", "write(", "line 5"),
        ("sort()", "write()", "line 7"),
    ],
)
def test_only_pictures_of_a_page_may_differ(tmp_path, old, new, found):
    (tmp_path / "made.html").write_text(PAGE)
    (tmp_path / "bundle.html").write_text(PAGE.replace(old, new, 1))
    assert PAGE.replace(old, new, 1) != PAGE
    said = first_difference("report.html", tmp_path / "bundle.html", tmp_path / "made.html")
    assert said is None if found is None else found in said


def test_inputs_are_those_of_the_commit_that_both_are_of(good, tmp_path, verify, monkeypatch):
    here = {**provenance(), "commit": "a" * 40, "dirty": False}
    monkeypatch.setattr("benchmarks.analysis.bundle.verify.provenance", lambda: here)
    files = contents(good)
    head = json.loads(files["manifest.json"]) | {"commit": "a" * 40, "dirty": False}
    files["manifest.json"] = json.dumps(head).encode()
    assert "Verified: " in verify(forge(tmp_path / "same.zip", files), 0)
    claims = files["results/paper/claims.yaml"].replace(b"noise: 0.5", b"noise: 5.0")
    bad = {**files, "results/paper/claims.yaml": claims, "containers/new.lock": b"x"}
    del bad["results/paper/numbers.csv"]
    said = verify(forge(tmp_path / "bad.zip", bad), 1)
    names = ("results/paper/claims.yaml", "results/paper/numbers.csv", "containers/new.lock")
    assert all(f"DIFFERS: {name}: not that of commit aaa" in said for name in names)


def changed_record(files):
    record = json.loads(files[CELL])
    return json.dumps(record | {name: record[name] - 1000 for name in ("residuals_bytes", "total_bytes")}).encode()


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        (TABLE, lambda files: files[TABLE].replace(b"8400000", b"8300000", 1), "tables/memory.csv, line 2:"),
        (PAGE_FILE, lambda files: files[PAGE_FILE].replace(b"not run", b"reproduced"), "report.html, line "),
        (CELL, changed_record, "tables/memory.csv, line 6:"),
        (CELL, lambda files: b"[" * 900 + b"]" * 900, "cells/vgg-digits.topk.w+2d.kept"),
        (f"{RUN}/tables/mine.csv", lambda files: b"x\n", "tables/mine.csv: no table that this code makes"),
        (TABLE, lambda files: None, "tables/memory.csv: missing, this code makes it"),
    ],
)
def test_what_a_manifest_vouches_for_is_found_where_it_differs(good, tmp_path, verify, name, change, found):
    files = contents(good)
    files = {one: data for one, data in (files | {name: change(files)}).items() if data is not None}
    assert f"DIFFERS: {found}" in verify(forge(tmp_path / "bad.zip", files), 1)


def test_what_the_manifest_does_not_know_is_found(good, tmp_path, verify):
    assert "Verified: " in verify(good, 0)
    files = contents(good)
    del files[f"{RUN}/logs/{OOM.name}.log"]
    files |= {"LICENSE": files["LICENSE"] + b" ", f"{RUN}/cells/copy.json": files[CELL]}
    said = verify(write(tmp_path / "bad.zip", files), 1)
    assert "DIFFERS: LICENSE: changed" in said and "cells/copy.json: added, the manifest does not have it" in said
    assert f"{RUN}/logs/{OOM.name}.log: missing, though the manifest has it" in said
    assert "DIFFERS: cells/copy.json: the record is of another cell" in said


def test_a_path_that_leaves_the_bundle_writes_nothing_there_and_a_link_is_not_made(good, tmp_path, verify):
    link = ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    names = ("../out.txt", "/tmp/out.txt", "a/../../out.txt")
    with ZipFile(write(tmp_path / "bad.zip", contents(good) | dict.fromkeys(names, b"x")), "a") as zipped:
        zipped.writestr(link, "/etc")
    said = verify(tmp_path / "bad.zip", 1)
    assert said.count("out.txt: added, the manifest does not have it") == 3 and "link: added" in said
    assert not list(tmp_path.rglob("out.txt")) and not (tmp_path.parent / "out.txt").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_and_a_file_as_a_folder_are_found(good, tmp_path, verify):
    with ZipFile(write(tmp_path / "twice.zip", contents(good)), "a") as zipped:
        zipped.writestr("LICENSE", "x")
    assert "LICENSE: changed" in verify(tmp_path / "twice.zip", 1)
    assert "cannot be read" in verify(write(tmp_path / "both.zip", contents(good) | {"LICENSE/x": b""}), 1)


def test_too_many_bytes_are_not_unpacked(good, verify, monkeypatch):
    monkeypatch.setattr(unpack, "MOST_BYTES", 1000)
    assert "allowed are 1,000" in verify(good, 1)


def test_without_a_whole_zip_and_a_manifest_nothing_is_verified(good, tmp_path, verify):
    files, data, bad = contents(good), good.read_bytes(), tmp_path / "bad.zip"
    for text in (b'{"format": 1, "run": "../x", "files": {}}', b'{"format": 1, "run": "x"}', b"[]"):
        assert "cannot be read" in verify(write(bad, files | {"manifest.json": text}), 1)
    del files["manifest.json"]
    assert "cannot be read" in verify(write(bad, files), 1)
    for share in (0.0, 0.5, 0.99):
        bad.write_bytes(data[: int(len(data) * share)])
        assert "NOT verified" in verify(bad, 1)
