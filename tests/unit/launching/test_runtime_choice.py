"""From options to a runtime: what is refused, and with which cure. The engine is a script."""

import os
import struct
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.core.cell import Cell
from benchmarks.core.stop_policy import content_of
from benchmarks.launching.containers import choose
from benchmarks.launching.containers.choose import asked_runtime
from benchmarks.launching.containers.entry import add_image
from benchmarks.workflow.image import Image
from resireduce.errors import ConfigError
from tests.stand_ins import HEAD
from tests.unit.launching.test_runtime import DIGEST, ENTRY

ENGINE = """
import sys
if "info" in sys.argv:
    print("{security}")
    sys.exit()
if "{says}":
    print("a warning", "{says}", sep="\\n", file=sys.stderr)
    sys.exit(1)
print("{digest}")
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(choose, "image_content", lambda name, base=None: ENTRY.content)
    monkeypatch.setattr(choose, "command", lambda name: [str(tmp_path / name)])
    monkeypatch.setattr(choose, "has_nvidia", lambda: False)
    ENTRY.save(tmp_path / "cpu.json")
    return tmp_path


def engine(folder: Path, name: str = "docker", says: str = "", digest: str = DIGEST, security: str = "") -> None:
    text = HEAD + ENGINE.format(says=says, digest=digest, security=security)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def ask(runtime: str = "docker", image: str | None = "cpu.json", network: str | None = None):
    return asked_runtime(Namespace(runtime=runtime, image=image, network=network))


def test_without_options_there_is_no_image():
    assert ask("none", None) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("dokcer",), "runtime: 'dokcer' is not known (did you mean 'docker'?)"),
        (("none", "cpu"), "image: 'cpu' is of no use with --runtime none; give --runtime docker, podman or apptainer"),
        (("docker", None), "image: missing with --runtime docker; give a name in containers/images.lock.json"),
        (
            ("docker", "nosuch"),
            "image: 'nosuch' is not in containers/images.lock.json; there are: none yet; build it: ",
        ),
        (
            ("apptainer",),
            "image: cpu.sif is not there, which apptainer needs; make it: python -m benchmarks image export cpu "
            "--entry cpu.json --sif ",
        ),
    ],
)
def test_options_that_cannot_be_used_are_named_with_the_cure(here, options, message):
    with pytest.raises(ConfigError) as caught:
        ask(*options)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            "Error: No such image: x",
            f"image: docker has no image cpu of {DIGEST[:19]}...; "
            "build it: python -m benchmarks image build cpu --entry cpu.json",
        ),
        ("Cannot connect to the daemon", "runtime: docker does not answer: Cannot connect to the daemon; start it"),
    ],
)
def test_an_engine_without_the_image_or_without_an_answer_is_told_apart(here, says, message):
    engine(here, says=says)
    with pytest.raises(ConfigError) as caught:
        ask()
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


def test_an_image_of_the_lock_is_found_by_its_name(here):
    engine(here, "podman")
    add_image(ENTRY)
    found = ask("podman", "cpu", "host")
    assert (found.name, found.image, found.network, found.sif) == ("podman", ENTRY, "host", None)
    assert found.keeps_id == (os.getuid() != 0)


@pytest.mark.parametrize(("security", "user"), [("[name=rootless]", "0:0"), ("[]", f"{os.getuid()}:{os.getgid()}")])
def test_an_engine_without_root_takes_the_caller_for_root(here, security, user):
    engine(here, security=security)
    assert ask().user == user


@pytest.mark.parametrize(
    ("cuda", "device", "gpus"), [("12.8", None, True), (None, None, False), ("12.8", "cpu", False)]
)
def test_gpus_are_asked_for_where_machine_image_and_user_have_them(here, monkeypatch, cuda, device, gpus):
    engine(here)
    monkeypatch.setattr(choose, "has_nvidia", lambda: True)
    monkeypatch.setenv("RESIREDUCE_DEVICE", device or "")
    replace(ENTRY, versions={"cuda": cuda}).save(here / "gpu.json")
    assert ask("docker", "gpu.json").gpus == gpus


def test_a_checkpoint_belongs_to_the_packages_of_the_image():
    cell = Cell(model="vgg-digits")
    host, inside = content_of(cell, None), content_of(cell, None, {"digest": DIGEST})
    assert [key for key in host if host[key] != inside[key]] == ["packages"]
    assert inside["packages"] == f"image {DIGEST}"


def known_image(**changes: object) -> Image:
    image = Image("cpu", "docker", "none", ENTRY.content, True)
    replace(ENTRY, **changes).save(Path(image.entry))
    return image


def test_the_workflow_says_that_an_image_is_gone_before_its_cells_fail(here):
    image = known_image()
    image.check_stored({"report"})
    image.check_stored({"cell", "image"})
    engine(here, says="Error: No such image: x")
    with pytest.raises(ConfigError, match=f"docker has no image cpu .*image build cpu --entry {image.entry}$"):
        image.check_stored({"cell", "report"})


@pytest.mark.parametrize("changes", [{"name": "cuda12"}, {"content": "ffffffffffff"}])
def test_the_workflow_refuses_what_is_known_of_another_image(here, changes):
    with pytest.raises(ConfigError, match="another image; delete that file"):
        known_image(**changes).check()


def test_a_sif_that_was_cut_off_is_told_before_anything_starts(here):
    sif = here / "cpu.sif"
    head = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0".ljust(112, b"\0") + struct.pack("<qq", 4096, 1000)
    sif.write_bytes(head.ljust(5096, b"x"))
    assert choose.is_whole(sif)
    for content in (b"", b"text" * 100, head.ljust(5095, b"x")):
        sif.write_bytes(content)
        with pytest.raises(ConfigError, match=r"cpu.sif is no whole SIF; .*image export cpu --entry cpu.json --sif "):
            ask("apptainer")
