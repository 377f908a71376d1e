"""`python -m benchmarks`: its help has every command, and what goes wrong is one line."""

import errno
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS, MEASURES, main
from tests.records import make_result, save_run


@pytest.mark.parametrize(("given", "names"), [((), COMMANDS), (("measure",), MEASURES)])
def test_every_command_is_listed(given: tuple[str, ...], names: dict, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*given, "--help"])
    assert ended.value.code == 0
    assert re.findall(r"^    (\S+)", capsys.readouterr().out, re.MULTILINE) == list(names)
    assert len(COMMANDS) <= 15


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
