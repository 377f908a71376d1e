"""From options to a runtime: what is refused, and with which cure. The engine is a script."""

import os
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.launching.containers import choose
from benchmarks.launching.containers.choose import asked_runtime
from benchmarks.launching.containers.entry import add_image
from benchmarks.workflow.where import Image
from resireduce.errors import ConfigError
from tests.stand_ins import HEAD
from tests.unit.launching.test_runtime import DIGEST, ENTRY

ENGINE = """
import sys
if "{says}":
    print("a warning", "{says}", sep="\\n", file=sys.stderr)
    sys.exit(1)
print("{digest}")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choose, "image_content", lambda name: ENTRY.content)
    monkeypatch.setattr(choose, "command", lambda name: [str(tmp_path / name)])
    monkeypatch.setattr(choose, "has_nvidia", lambda: False)
    ENTRY.save(tmp_path / "cpu.json")
    return tmp_path


def engine(folder: Path, name: str = "docker", says: str = "", digest: str = DIGEST) -> None:
    text = HEAD + ENGINE.format(says=says, digest=digest)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def ask(runtime: str = "docker", image: str | None = "cpu.json"):
    return asked_runtime(Namespace(runtime=runtime, image=image))


@pytest.mark.parametrize(
    ("options", "says", "message"),
    [
        (("dokcer",), "", "runtime: 'dokcer' is not known (did you mean 'docker'?)"),
        (("none", "cpu"), "", "image: 'cpu' is of no use without a runtime; give runtime docker or apptainer"),
        (("docker", None), "", "image: missing with --runtime docker; give a name in containers/images.lock.json"),
        (("docker", "nosuch"), "", "image: 'nosuch' is not in containers/images.lock.json; there are: none yet; build"),
        (
            ("apptainer",),
            "",
            "image: cpu.sif is not there, which apptainer needs; make it: python -m benchmarks image ",
        ),
        ((), "Error: No such image: x", "image: docker does not give cpu ("),
    ],
)
def test_options_that_cannot_be_used_are_named_with_the_cure(here, options, says, message):
    engine(here, says=says)
    with pytest.raises(ConfigError) as caught:
        ask(*options)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_an_image_of_other_code_is_refused_before_anything_starts(here, capsys):
    replace(ENTRY, content="ffffffffffff").save(here / "old.json")
    (here / "cell.json").write_text('{"model": "vgg-digits"}')
    line = ["run", "--cell", "cell.json", "--output", "out.json", "--runtime", "docker", "--image", "old.json"]
    assert main(line) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: image: cpu holds other code, or was built from other files (ffffffffffff), than ")
    assert (
        said.endswith("build it again: python -m benchmarks image build cpu --entry old.json\n")
        and said.count("\n") == 1
    )
    assert not (here / "out.json").exists()


def test_an_image_of_the_lock_is_found_by_its_name_and_files_belong_to_the_caller(here):
    assert ask("none", None) is None
    engine(here)
    add_image(ENTRY)
    found = ask("docker", "cpu")
    assert (found.name, found.image, found.sif) == ("docker", ENTRY, None)
    assert found.user == f"{os.getuid()}:{os.getgid()}"


def test_the_workflow_says_that_an_image_is_gone_or_another_before_its_cells_fail(here, monkeypatch):
    image = Image("cpu", "docker", ENTRY.content)
    ENTRY.save(Path(image.entry))
    monkeypatch.setattr("benchmarks.images.engine.engine", nullcontext)
    image.prepare({"report"})
    image.prepare({"cell", "image"})
    engine(here, says="Error: No such image: x")
    with pytest.raises(ConfigError, match=f"docker does not give cpu .*image build cpu --entry {image.entry}$"):
        image.prepare({"cell", "report"})
    replace(ENTRY, content="ffffffffffff").save(Path(image.entry))
    with pytest.raises(ConfigError, match="another image; delete that file"):
        image.check()
