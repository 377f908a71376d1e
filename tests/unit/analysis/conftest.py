"""Fixtures of tests of the regression check: a run, its reference, and the command on both."""

import pytest

from benchmarks.__main__ import main
from tests.checked_runs import CONFIG, make


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "x", CONFIG)


@pytest.fixture
def reference(folder, tmp_path, capsys):
    path = tmp_path / "reference.json"
    assert main(["check", "--run", str(folder), "--reference", str(path), "--accept", "first"]) == 0
    capsys.readouterr()
    return path


@pytest.fixture
def check(folder, reference, capsys):
    def run(*more, status):
        code = main(["check", "--run", str(folder), "--reference", str(reference), *more])
        said = capsys.readouterr()
        assert code == status, said.out + said.err
        return said.out + said.err

    return run
