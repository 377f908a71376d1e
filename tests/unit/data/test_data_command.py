"""`python -m benchmarks data`: what it lists, fetches, checks and prepares, and that nothing is ever half prepared."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.prepared import open_prepared
from benchmarks.core.registry import DATASETS
from benchmarks.data.dataset import Dataset, SourceFile
from benchmarks.data.squad import SQUAD
from resireduce.scheme import load
from tests.published import squad, unpublished, write

FILES = {"train-v1.1.json": squad(3), "dev-v1.1.json": squad(2)}


def published(name: str, algorithm: str = "sha256") -> SourceFile:
    content = FILES[name].encode()
    return SourceFile(name, len(content), f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}")


SMALL = replace(SQUAD, files=(published("train-v1.1.json"), published("dev-v1.1.json", "md5")))


@pytest.fixture
def small(monkeypatch, tmp_path):
    """SQuAD as a few questions; returns the root that is used."""
    monkeypatch.setattr("benchmarks.data.squad.SQUAD", SMALL)
    monkeypatch.setenv("RESIREDUCE_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


def data(*arguments: object) -> int:
    return main(["data", *map(str, arguments)])


def refused(capsys, *arguments: object) -> str:
    """The one line that the command ends with."""
    assert data(*arguments) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize("name", DATASETS)
def test_every_listed_data_set_is_complete_and_says_what_to_put_where(tmp_path, capsys, name):
    assert f"no files of '{name}' in" in refused(capsys, "prepare", name, "--root", tmp_path)
    dataset = load(DATASETS[name])
    assert isinstance(dataset, Dataset)
    assert dataset.address is None or (dataset.address.startswith("https://") and dataset.address.endswith("/"))
    assert all(need in DATASETS for need in dataset.needs)
    for file in dataset.files:
        algorithm, _, digits = (file.checksum or "sha256:" + 64 * "0").partition(":")
        assert len(bytes.fromhex(digits)) == hashlib.new(algorithm).digest_size
    assert "\n" not in dataset.title + dataset.terms


def test_list_says_what_is_prepared(small, tmp_path, capsys):
    def state() -> str:
        assert data("list") == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("squad "))
        return line.split()[1]

    assert state() == "no"
    assert data("prepare", "squad", "--from", write(tmp_path / "from", FILES)) == 0
    capsys.readouterr()
    assert state() == "yes"
    (small / "squad" / "dev-v1.1.json").unlink()
    assert state() == "damaged"


def test_without_files_it_says_what_to_put_where(small, capsys):
    assert data("prepare", "squad") == 2
    said = capsys.readouterr().err
    for file in SMALL.files:
        assert f"{file.name} ({file.size:,} bytes, {file.checksum.replace(':', ' ')})" in said
    assert str(small / "downloads" / "squad") in said
    assert SMALL.address in said
    assert said.splitlines()[-1].endswith("put them there, name their folder with --from or add --download")


def test_files_in_downloads_are_found_and_the_manifest_describes_them(small, capsys):
    write(small / "downloads" / "squad", FILES)
    assert data("prepare", "squad") == 0
    prepared = open_prepared("squad", small)
    assert prepared.manifest["files"] == {name: len(text.encode()) for name, text in FILES.items()}
    lines = [f"{hashlib.sha256(FILES[name].encode()).hexdigest()}  {name}\n" for name in sorted(FILES)]
    assert prepared.hash == hashlib.sha256("".join(lines).encode()).hexdigest(), "as sha256sum would print"
    assert (small / "squad").stat().st_mode & 0o777 == 0o755
    capsys.readouterr()
    before = (small / "squad" / "manifest.json").stat().st_mtime_ns
    assert data("prepare", "squad") == 0
    assert f"squad: is prepared in {small / 'squad'}" in capsys.readouterr().out
    assert (small / "squad" / "manifest.json").stat().st_mtime_ns == before


def damage_file(root: Path) -> str:
    (root / "squad" / "dev-v1.1.json").write_text(squad(2).replace("q1", "q2"))
    return "dev-v1.1.json is damaged: it has sha256 "


def damage_manifest(root: Path) -> str:
    path = root / "squad" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hash": "0" * 64}))
    return "its hash is not that of its files"


def remove(root: Path) -> str:
    (root / "squad").rename(root / "elsewhere")
    return "'squad' is not prepared in"


@pytest.mark.parametrize("do", [damage_file, damage_manifest, remove])
def test_check_finds_damage_and_prepare_mends_it(small, capsys, do):
    write(small / "downloads" / "squad", FILES)
    assert data("prepare", "squad") == 0
    assert data("check") == data("check", "squad") == 0
    capsys.readouterr()
    message = do(small)
    assert data("check", "squad") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("squad: ")
    assert message in line
    assert data("prepare", "squad") == 0
    assert data("check") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "squad: as it was prepared"


@pytest.mark.parametrize("change", [b"x", b""])
def test_other_files_than_the_published_ones_are_refused(small, tmp_path, capsys, change):
    source = write(tmp_path / "from", FILES)
    dev = source / "dev-v1.1.json"
    content = dev.read_bytes()
    dev.write_bytes(content[:-1] + change)
    said = refused(capsys, "prepare", "squad", "--from", source)
    expected = SMALL.files[1]
    if change:
        assert f"has md5 {hashlib.md5(dev.read_bytes()).hexdigest()}, published is {expected.checksum[4:]}" in said
    else:
        assert f"has {expected.size - 1} bytes, published are {expected.size}" in said
    assert not small.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("prepare", "sqaud"), "data: 'sqaud' is not known (did you mean 'squad'?)"),
        (("prepare", "squad", "--from", "no/such/folder"), "data: no/such/folder has no train-v1.1.json, which"),
        (("prepare", "squad", "cifar10", "--from", "x"), "from: one folder is of one data set"),
        (("prepare", "imagenet", "--download"), "download: 'imagenet' is not for free download"),
    ],
)
def test_bad_options_are_named_in_one_line(small, capsys, arguments, message):
    assert message in refused(capsys, *arguments)


def test_what_is_fetched_is_checked_and_what_is_right_is_not_fetched_again(small, tmp_path, capsys, monkeypatch):
    address = write(tmp_path / "é", FILES | {"dev-v1.1.json": squad(1)}).as_uri()
    monkeypatch.setattr("benchmarks.data.squad.SQUAD", replace(SMALL, address=f"{address}/"))
    said = refused(capsys, "prepare", "squad", "--download")
    assert f"download: {address}/dev-v1.1.json cannot be fetched: it has " in said
    assert [path.name for path in (small / "downloads" / "squad").iterdir()] == ["train-v1.1.json"]
    write(tmp_path / "é", FILES | {"train-v1.1.json": "half"})
    assert data("prepare", "squad", "--download") == data("check", "squad") == 0
    assert f"fetching {address}/dev-v1.1.json" in capsys.readouterr().out


# Nothing is half done


def test_an_error_leaves_what_was_there(small, tmp_path, capsys, monkeypatch):
    assert data("prepare", "squad", "--from", write(tmp_path / "good", FILES)) == 0
    hash_before = open_prepared("squad", small).hash
    monkeypatch.setattr("benchmarks.data.squad.SQUAD", unpublished(SMALL))
    bad = write(tmp_path / "bad", FILES | {"dev-v1.1.json": squad(1, answer_start=3)})
    assert "squad: question 'q0': the context does not have" in refused(capsys, "prepare", "squad", "--from", bad)
    assert open_prepared("squad", small).hash == hash_before
    assert [path.name for path in small.iterdir()] == ["squad"]
