"""`python -m benchmarks --help`: every command, in its group."""

import re

import pytest

from benchmarks.__main__ import COMMANDS, GROUPS, main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_every_command_is_listed_once_below_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = dict(re.findall(r"^(To .+):\n((?:  .+\n)+)", shown(capsys), re.MULTILINE))
    assert {name: re.findall(r"^  (\S+)", block, re.MULTILINE) for name, block in blocks.items()} == {
        name: list(commands) for name, commands in GROUPS.items()
    }
    assert len(COMMANDS) == sum(map(len, GROUPS.values()))


def test_the_help_of_a_command_keeps_names_as_they_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Measure what only a GPU can show" in shown(capsys, "gpu-check")
    assert "of README and docs" in shown(capsys, "readme")


def test_a_misspelt_command_or_option_is_told_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert "error: command: 'chekc' is not known (did you mean 'check'?); allowed: beside, " in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["claims", "--jsno"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "usage: python -m benchmarks claims [-h] [--run RUN]" in said
    assert "error: unrecognized arguments: --jsno (did you mean --json?)" in said
