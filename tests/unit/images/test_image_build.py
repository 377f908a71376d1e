import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound, NotFound

from benchmarks.__main__ import main
from benchmarks.images import build_image as build
from benchmarks.images.build_image import (
    Base,
    BuildError,
    fetch_toolkit,
    find_base,
    follow,
)
from benchmarks.images.image_command import check_stored
from resireduce.errors import ConfigError
from tests.unit.launching.test_image_entry import ENTRY

ID = f"sha256:{'1' * 64}"
PINNED = f"sha256:{'2' * 64}"
STORED = replace(ENTRY, digest=ID)
STEPS = [
    {"stream": "Step 1/3 : FROM base"},
    {"stream": " ---> aaaaaaaaaaaa\n"},
    {"stream": "Step 2/3 : RUN true"},
    {"stream": " ---> Using cache\n"},
    {"stream": " ---> bbbbbbbbbbbb\n"},
    {"stream": "Step 3/3 : RUN something"},
    {"stream": "it went wrong here\n"},
    {"stream": " ---> cccccccccccc\n"},
]


class Images:
    """Of an engine without a network; `known` are in its store."""

    def __init__(self, **known: Any):
        self.known, self.removed = known, list[str]()

    def pull(self, repository: str, tag: str) -> None:
        raise NotFound("no such host")

    def get(self, name: str) -> Any:
        if name not in self.known:
            raise ImageNotFound(name)
        return self.known[name]

    def remove(self, image: str, noprune: bool) -> None:
        self.removed.append(image)


def client(**known: Any) -> Any:
    return SimpleNamespace(images=Images(**known), info=lambda: {"DockerRootDir": "/"})


def test_a_failed_step_ends_the_build_with_what_it_said_and_leaves_no_image() -> None:
    engine = client()
    with pytest.raises(BuildError, match=r"(?s)cpu could not be built.*it went wrong here.*returned 1"):
        follow(engine, "cpu", lambda: [*STEPS, {"error": "the command returned 1"}])
    assert engine.images.removed == ["cccccccccccc"]  # not the base, nor what an earlier build made


def test_ctrl_c_leaves_no_image_either_and_a_build_that_goes_well_keeps_its_layers() -> None:
    def interrupted() -> Iterator[dict[str, str]]:
        yield from STEPS
        raise KeyboardInterrupt

    engine = client()
    with pytest.raises(KeyboardInterrupt):
        follow(engine, "cpu", interrupted)
    assert engine.images.removed
    engine = client()
    follow(engine, "cpu", lambda: STEPS)
    assert engine.images.removed == []


def test_a_base_from_a_registry_is_pinned_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = client(**{"debian:12": SimpleNamespace(id=ID, attrs={"RepoDigests": [f"debian@{PINNED}"]})})
    pulled = []
    monkeypatch.setattr(engine.images, "pull", lambda repository, tag: pulled.append((repository, tag)))
    found = Base("debian:12", f"debian@{PINNED}", PINNED)
    assert find_base(engine, "debian:12") == found
    engine.images.known[f"debian@{PINNED}"] = engine.images.known.pop("debian:12")
    assert find_base(engine, "debian:12", replace(ENTRY, base="debian:12", base_digest=PINNED)) == found
    assert pulled == [("debian", "12"), ("debian", PINNED)], "what was built from it before is built from the same"


def test_without_a_registry_the_default_base_is_made_from_packages() -> None:
    own = SimpleNamespace(id=ID, attrs={"RootFS": {"Layers": [PINNED]}})
    engine = client(**{build.OWN_TAG: own})  # made earlier
    assert find_base(engine, None) == find_base(engine, "packages") == Base("Debian bookworm from packages", ID, PINNED)
    with pytest.raises(ConfigError, match=r"base: 'nosuch' cannot be had \(no such host\); give one .* 'packages'"):
        find_base(engine, "nosuch")


def test_the_toolkit_is_looked_for_in_the_components_that_its_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = []

    def apt_get(self: Any, action: str, *given: str, cwd: Path | None = None) -> None:
        if cwd is not None:
            sources.append((cwd / "sources.list").read_text(encoding="utf-8"))
            (cwd / "x.deb").write_bytes(b"deb")

    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr("benchmarks.rig.debian.Apt._call", apt_get)
    monkeypatch.setattr("benchmarks.rig.debian.archive", lambda: "http://archive/debian")
    monkeypatch.setattr("benchmarks.rig.debian.shutil.which", lambda name: name)
    pin = {"package": "x", "version": "1", "suite": "trixie", "components": "non-free"}
    lock = tmp_path / "toolkit.deb.json"
    lock.write_text(json.dumps(pin | {"sha256": hashlib.sha256(b"deb").hexdigest()}))
    assert (fetch_toolkit(lock) / "x.deb").read_bytes() == b"deb"
    assert sources[0].endswith("http://archive/debian trixie non-free\n")


def test_only_the_very_image_of_an_entry_is_exported() -> None:
    check_stored(client(**{STORED.tag: SimpleNamespace(id=ID)}), STORED)
    for engine in (client(), client(**{STORED.tag: SimpleNamespace(id=PINNED)})):
        with pytest.raises(ConfigError, match=f"image: {STORED.tag} of {ID[:19]}.*the engine's store.*image build cpu"):
            check_stored(engine, STORED)


def test_an_image_that_is_not_built_and_a_program_that_is_not_there_are_named_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.images.image_command.read_images", dict)
    assert main(["image", "export", "cpu", "--sif", f"{tmp_path}/x.sif"]) == 2
    assert "image: 'cpu' is not built; build it: python -m benchmarks image build cpu" in capsys.readouterr().err
    monkeypatch.setattr("benchmarks.images.image_command.engine", lambda: pytest.fail("an engine was started"))
    assert main(["image", "engine", "--", "no-such-program"]) == 2
    assert "command: 'no-such-program' is no program here; give one of PATH" in capsys.readouterr().err


def test_two_builds_of_an_image_at_once_make_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = list[str]()

    def make(tag: str, **_: Any) -> Iterator[dict[str, str]]:
        time.sleep(0.3)
        made.append(tag)
        yield from STEPS

    monkeypatch.setattr(build, "cache_folder", lambda: tmp_path / "not/made/yet")
    for name, result in (("check_disk", lambda *_: None), ("write_context", lambda *_: None)):
        monkeypatch.setattr(build, name, result)
    monkeypatch.setattr(build, "describe", lambda *_: made[-1])
    engine = client(**{"python:3": SimpleNamespace(attrs={}, id=ID)})
    engine.images.list, engine.api = (lambda filters: made), SimpleNamespace(build=make)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: build.build_image(engine, "cpu", "python:3"), range(2)))
    assert found == made * 2 and len(made) == 1 and made[0].startswith("resireduce/cpu:")
    assert capsys.readouterr().err.count("Waiting for another process that builds cpu ...\n") == 1
