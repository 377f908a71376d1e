"""Bundles that were tampered with: each is found out, and none leaves its folder or fills the disk."""

import json
import stat
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import pytest

from benchmarks.__main__ import main
from benchmarks.analysis.bundle import verify as unpack
from benchmarks.analysis.bundle.pack import Manifest, first_difference, pack
from benchmarks.core.provenance import provenance
from tests.unit.analysis.test_bundle import OOM, bundle, folder, pytestmark  # noqa: F401

RUN = "results/runs/x"
CELL = f"{RUN}/cells/vgg-digits.topk.w+2d.kept.d0.01.s0.json"
TABLE = f"{RUN}/tables/memory.csv"


made: list[bytes] = []
"""The bundle that all tests tamper with, once it is made."""


@pytest.fixture
def good(folder, tmp_path, capsys):  # noqa: F811
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
    pack(kept, Manifest(head["run"], head["date"], head["commit"], head["dirty"], {}), path)
    return path


def write(path, files):
    with ZipFile(path, "w", ZIP_DEFLATED) as zipped:
        for name, data in files.items():
            zipped.writestr(name, data)
    return path


def test_a_page_that_says_something_else_is_found_out(good, verify, tmp_path):
    files = contents(good)
    page = files[f"{RUN}/report.html"].decode()
    assert "not run" in page
    bad = forge(tmp_path / "bad.zip", files | {f"{RUN}/report.html": page.replace("not run", "reproduced").encode()})
    assert "DIFFERS: report.html, line " in verify(bad, 1)


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
        (">one<", ">two<", None),
        ("<p>not reproduced</p>", "<svg></svg><p>reproduced</p><svg></svg>", "line 3"),
        ("<div><svg><g>", "<div><svg></svg><svg><g>", "line 2"),
        ("<p>not reproduced</p><div>", "<p>not reproduced</p><svg><g/></svg><h1>reproduced</h1><div>", "line 3"),
        ("<svg><text", "<svg></svg><h1>reproduced</h1><svg><text", "line 3"),
        ("draw(", "write(", "line 5"),
        ("sha256-abc=", "sha256-def=", "line 1"),
        ("sort()", "write()", "line 7"),
    ],
)
def test_only_pictures_of_a_page_may_differ(tmp_path, old, new, found):
    (tmp_path / "made.html").write_text(PAGE)
    (tmp_path / "bundle.html").write_text(PAGE.replace(old, new, 1))
    assert PAGE.replace(old, new, 1) != PAGE
    said = first_difference("report.html", tmp_path / "bundle.html", tmp_path / "made.html")
    assert said is None if found is None else found in said


def of_one_commit(monkeypatch, dirty):
    """The bundle, whose manifest says so, and this checkout are of one commit."""
    here = {**provenance(), "commit": "a" * 40, "dirty": dirty}
    monkeypatch.setattr("benchmarks.analysis.bundle.verify.provenance", lambda: here)
    return {"commit": "a" * 40, "dirty": False}


def of(files, head):
    """The files of a bundle whose manifest says something else of their origin."""
    return files | {"manifest.json": json.dumps(json.loads(files["manifest.json"]) | head).encode()}


@pytest.mark.parametrize("dirty", [False, True])
def test_inputs_are_those_of_the_commit_that_both_are_of(good, tmp_path, verify, monkeypatch, dirty):
    files = of(contents(good), of_one_commit(monkeypatch, dirty))
    same = forge(tmp_path / "same.zip", files)
    assert "Verified: " in verify(same, 0)
    claims = files["results/paper/claims.yaml"].replace(b"noise: 0.5", b"noise: 5.0")
    bad = {**files, "results/paper/claims.yaml": claims, "containers/new.lock": b"x"}
    del bad["results/paper/numbers.csv"]
    said = verify(forge(tmp_path / "bad.zip", bad), 0 if dirty else 1)
    names = ("results/paper/claims.yaml", "results/paper/numbers.csv", "containers/new.lock")
    assert dirty or all(f"DIFFERS: {name}: not that of commit aaa" in said for name in names)


def test_what_tables_do_not_vouch_for_is_a_note(good, tmp_path, verify, monkeypatch):
    here = {**provenance(), "dirty": True}
    monkeypatch.setattr("benchmarks.analysis.bundle.verify.provenance", lambda: here)
    assert "Note: " not in verify(good, 0).replace("Note: the bundle or this checkout has changes", "")
    files = contents(good)
    changed = dict.fromkeys(("results/reference/memory-cpu.json", "constraints.txt", "containers/new.lock"), b"{}")
    files |= changed
    said = verify(forge(tmp_path / "other.zip", of(files, {"commit": "f" * 40})), 0)
    assert all(f"Note: {name} is not " in said for name in changed), said
    assert "Note: the bundle was made by commit ffff" in said


def test_a_changed_number_in_a_table_is_found_by_file_and_line(good, tmp_path, verify):
    files = contents(good)
    files[TABLE] = files[TABLE].replace(b"8400000", b"8300000", 1)
    said = verify(forge(tmp_path / "bad.zip", files), 1)
    assert "DIFFERS: tables/memory.csv, line 2:" in said and "8300000" in said and "8400000" in said


def test_a_changed_record_is_found_by_the_tables(good, tmp_path, verify):
    files = contents(good)
    record = json.loads(files[CELL])
    record |= {name: record[name] - 1000 for name in ("residuals_bytes", "total_bytes")}
    files[CELL] = json.dumps(record).encode()
    said = verify(forge(tmp_path / "bad.zip", files), 1)
    assert "DIFFERS: tables/memory.csv, line 6:" in said


def test_what_the_manifest_does_not_know_is_found(good, tmp_path, verify):
    assert "Verified: " in verify(good, 0)
    files = contents(good)
    del files[f"{RUN}/logs/{OOM.name}.log"]
    files |= {"LICENSE": files["LICENSE"] + b" ", f"{RUN}/cells/copy.json": files[CELL]}
    said = verify(write(tmp_path / "bad.zip", files), 1)
    assert "DIFFERS: LICENSE: changed" in said and "cells/copy.json: added, the manifest does not have it" in said
    assert f"{RUN}/logs/{OOM.name}.log: missing, though the manifest has it" in said
    assert "DIFFERS: cells/copy.json: the record is of another cell" in said


def test_a_table_left_out_and_one_invented_are_found(good, tmp_path, verify):
    files = contents(good)
    del files[TABLE]
    said = verify(forge(tmp_path / "bad.zip", files | {f"{RUN}/tables/mine.csv": b"x\n"}), 1)
    assert "tables/memory.csv: missing, this code makes it" in said
    assert "tables/mine.csv: no table that this code makes" in said


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 900 + b"]" * 900, None])
def test_a_record_that_is_none_is_found(good, tmp_path, verify, text):
    files = contents(good)
    files[CELL] = json.dumps(json.loads(files[CELL]) | {"status": "fine"}).encode() if text is None else text
    assert "DIFFERS: cells/vgg-digits.topk.w+2d.kept" in verify(forge(tmp_path / "bad.zip", files), 1)


def test_a_path_that_leaves_the_bundle_writes_nothing_there_and_a_link_is_not_made(good, tmp_path, verify):
    names = ("../out.txt", "/tmp/out.txt", "a/../../out.txt")
    write(tmp_path / "bad.zip", contents(good) | dict.fromkeys(names, b"x"))
    link = ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with ZipFile(tmp_path / "bad.zip", "a") as zipped:
        zipped.writestr(link, "/etc")
    said = verify(tmp_path / "bad.zip", 1)
    assert "out.txt: added, the manifest does not have it" in said and "link: added" in said
    assert not list(tmp_path.rglob("out.txt")) and not (tmp_path.parent / "out.txt").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_and_a_file_as_a_folder_are_found(good, tmp_path, verify):
    with ZipFile(write(tmp_path / "twice.zip", contents(good)), "a") as zipped:
        zipped.writestr("LICENSE", "x")
    assert "LICENSE: changed" in verify(tmp_path / "twice.zip", 1)
    assert "is damaged" in verify(write(tmp_path / "both.zip", contents(good) | {"LICENSE/x": b""}), 1)


def test_too_many_bytes_are_not_unpacked(good, verify, monkeypatch):
    monkeypatch.setattr(unpack, "MOST_BYTES", 1000)
    assert "allowed are 1,000" in verify(good, 1)


@pytest.mark.parametrize(
    "text",
    [None, b"{", b"{}", b'{"format": 9}', b'{"format": 1, "run": "x", "date": {}}'],
)
def test_without_a_manifest_nothing_is_verified(good, tmp_path, verify, text):
    files = contents(good)
    files = files | {"manifest.json": text} if text else {k: v for k, v in files.items() if k != "manifest.json"}
    assert "manifest.json" in verify(write(tmp_path / "bad.zip", files), 1)


def test_every_place_where_a_download_may_end_is_found(good, tmp_path, verify):
    data = good.read_bytes()
    for share in (0.0, 0.1, 0.5, 0.99):
        (tmp_path / "bad.zip").write_bytes(data[: int(len(data) * share)])
        assert "NOT verified" in verify(tmp_path / "bad.zip", 1)
    middle = len(data) // 3
    (tmp_path / "bad.zip").write_bytes(data[:middle] + bytes(64) + data[middle + 64 :])
    assert "NOT verified" in verify(tmp_path / "bad.zip", 1)


def test_nothing_in_a_bundle_moves_the_cursor(good, tmp_path, verify):
    files = contents(good)
    head = json.loads(files["manifest.json"]) | {"commit": "\x1b[2Jx"}
    assert verify(tmp_path, 2).count("\n") == 1
    said = verify(write(tmp_path / "a.zip", files | {"manifest.json": json.dumps(head).encode(), "a\x1b[2J": b""}), 1)
    assert "\x1b" not in said
    assert "commit \\x1b[2Jx" in said and "a\\x1b[2J: added" in said
