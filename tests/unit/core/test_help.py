"""`python -m benchmarks`: its help has every command, and what goes wrong is one line."""

import errno
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS, GROUPS, MEASURES, main
from tests.records import make_result, save_run


def test_every_command_is_listed_once_below_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*given: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*given, "--help"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    blocks = dict(re.findall(r"^(Run|Look|Maintain):\n((?:  .+\n)+)", shown(), re.MULTILINE))
    assert {name: re.findall(r"^  (\S+)", block, re.MULTILINE) for name, block in blocks.items()} == {
        name: list(commands) for name, commands in GROUPS.items()
    }
    assert len(COMMANDS) <= 15
    assert [*MEASURES] == re.findall(r"^  (\S+) ", shown("measure"), re.MULTILINE)[-len(MEASURES) :]


def test_a_misspelt_command_or_option_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for line, said in ((["chekc"], "invalid choice: 'chekc'"), (["claims", "--jsno"], "arguments: --jsno")):
        with pytest.raises(SystemExit) as ended:
            main(line)
        assert ended.value.code == 2 and said in capsys.readouterr().err


def test_a_full_disk_is_told_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = save_run(tmp_path / "x", {"matrix": [{"model": "vgg-digits"}]}, make_result)
    monkeypatch.setattr("benchmarks.core.files.os.fsync", full)
    file = tmp_path / "intervals.json"
    assert main(["summary", "intervals", "--run", str(run), "--output", str(file)]) == 1
    assert capsys.readouterr().err == f"error: [Errno 28] No space left on device: '{file}'\n"
    assert [*tmp_path.iterdir()] == [tmp_path / "x"]
