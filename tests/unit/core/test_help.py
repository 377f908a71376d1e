"""`python -m benchmarks`: its help has every command in its group, and what goes wrong is one line."""

import errno
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS, GROUPS, MEASURES, main
from tests.records import make_result, save_run


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_command_is_listed_once_below_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = dict(re.findall(r"^(Run|Look|Maintain):\n((?:  .+\n)+)", shown(capsys), re.MULTILINE))
    assert {name: re.findall(r"^  (\S+)", block, re.MULTILINE) for name, block in blocks.items()} == {
        name: list(commands) for name, commands in GROUPS.items()
    }
    assert len(COMMANDS) == sum(map(len, GROUPS.values())) <= 15
    assert re.findall(r"^  (\S+)", shown(capsys, "measure"), re.MULTILINE)[: len(MEASURES)] == list(MEASURES)


def test_a_misspelt_command_or_option_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert "error: command: 'chekc' is not known (did you mean 'check'?); allowed: bundle, " in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["claims", "--jsno"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "usage: python -m benchmarks claims [-h] [--run RUN]" in said
    assert "error: unrecognized arguments: --jsno (did you mean --json?)" in said


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--rounds=1.5", "argument --rounds: '1.5' is no whole number; give one in digits, such as 8"),
        ("--rounds=", "argument --rounds: '' is no whole number"),
        (f"--rounds={'9' * 5000}", f"argument --rounds: '{'9' * 59}... is no whole number"),
    ],
)
def test_what_is_no_number_is_told_what_is(capsys: pytest.CaptureFixture[str], option: str, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["measure", "pace", option])
    assert ended.value.code == 2 and said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["simulate", "--most-lost", "a little"])
    assert "argument --most-lost: 'a little' is no number; give one, such as 0.5" in capsys.readouterr().err


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
