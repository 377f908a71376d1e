"""What a record says of the code that it was measured with: changed, or as committed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.analysis.bundle.pack import source_texts
from benchmarks.core import provenance
from benchmarks.core.paths import ROOT
from benchmarks.launching.containers.entry import LOCK
from benchmarks.launching.slurm.site import DEFAULT_FILE, SITE_FILE, Site, site_file


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a small project with this one's list of what is not tracked."""
    for name in (
        "resireduce/core.py",
        "benchmarks/launching/run.py",
        "benchmarks/config/smoke.yaml",
        "README.md",
        "Snakefile",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for name in (".gitignore", DEFAULT_FILE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*git, *arguments], check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    assert provenance.provenance()["dirty"] is False
    return tmp_path


@pytest.mark.parametrize("name", [str(LOCK), str(SITE_FILE), "my.yaml", "benchmarks/config/my.yaml", "README.md"])
def test_what_a_user_and_a_site_write_is_no_change_of_the_code(checkout: Path, name: str) -> None:
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text("y")
    assert provenance.provenance()["dirty"] is False


@pytest.mark.parametrize(
    "name", ["resireduce/core.py", "resireduce/new.py", "benchmarks/launching/run.py", "Snakefile"]
)
def test_a_change_of_the_code(checkout: Path, name: str) -> None:
    (checkout / name).write_text("y")
    assert provenance.provenance()["dirty"] is True


def test_a_user_s_settings_of_git_hide_no_change(checkout: Path) -> None:
    """Neither a new file, nor how the patch of a bundle is to be applied."""
    git = ["git", "-C", str(checkout)]
    for setting in (("status.showUntrackedFiles", "no"), ("diff.noprefix", "true")):
        subprocess.run([*git, "config", *setting], check=True)
    (checkout / "resireduce/new.py").write_text("y")
    assert provenance.provenance()["dirty"] is True
    (checkout / "Snakefile").write_bytes(b"y\0\xff")
    texts = source_texts()
    assert "?? resireduce/new.py" in texts["status.txt"]
    undo = [*git, "apply", "--reverse", "-p1", "-"]
    subprocess.run(undo, input=texts["changes.diff"].encode(), check=True)
    assert (checkout / "Snakefile").read_text() == "x"


def head_of(folder: Path) -> str:
    return subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize(("name", "value"), [("GIT_DIR", str(ROOT / ".git")), ("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")])
def test_the_commit_is_that_of_this_checkout_in_a_hook_and_for_another_owner(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    own = head_of(checkout).strip()
    monkeypatch.setenv(name, value)
    found = provenance.provenance()
    assert (found["commit"], found["dirty"]) == (own, False)


def test_code_that_lies_in_another_checkout_has_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".gitignore").write_text("inner")
    (checkout / "inner").mkdir()
    monkeypatch.setattr(provenance, "ROOT", checkout / "inner")
    found = provenance.provenance()
    assert found["commit"] is found["dirty"] is None


def test_the_default_site_holds_until_there_is_one(checkout: Path) -> None:
    assert site_file(checkout) == checkout / DEFAULT_FILE and Site.load(site_file(checkout)) == Site()
    (checkout / SITE_FILE).write_text("partitions: {}\nsite: {minutes: 7}")
    assert Site.load(site_file(checkout)).minutes == 7
