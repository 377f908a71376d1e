"""What a build takes and what it leaves, with an engine that stands in; tests/images has a real one."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound, NotFound

from benchmarks.__main__ import main
from benchmarks.images import image_command as build
from benchmarks.images.image_command import DEFAULT, Base, find_base, follow
from resireduce.errors import ConfigError
from tests.unit.launching.test_image_entry import ENTRY

ID = f"sha256:{'1' * 64}"
PINNED = f"sha256:{'2' * 64}"
STEPS = [{"stream": "Step 1/2 : FROM base"}, {"stream": "Step 2/2 : RUN something\nit went wrong here\n"}]


class Images:
    """Of an engine without a network; `known` are in its store."""

    def __init__(self, **known: Any):
        self.known = known

    def pull(self, repository: str, tag: str) -> None:
        raise NotFound("no such host")

    def get(self, name: str) -> Any:
        if name not in self.known:
            raise ImageNotFound(name)
        return self.known[name]


def client(**known: Any) -> Any:
    return SimpleNamespace(images=Images(**known))


def test_a_failed_step_ends_the_build_with_what_it_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"(?s)cpu could not be built.*it went wrong here.*returned 1"):
        follow("cpu", [*STEPS, {"error": "the command returned 1"}])
    assert capsys.readouterr().err.count("Step ") == 2


def test_a_base_from_a_registry_is_pinned_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = client(**{DEFAULT: SimpleNamespace(id=ID, attrs={"RepoDigests": [f"python@{PINNED}"]})})
    pulled = []
    monkeypatch.setattr(engine.images, "pull", lambda repository, tag: pulled.append((repository, tag)))
    found = Base(DEFAULT, f"python@{PINNED}", PINNED)
    assert find_base(engine) == found
    engine.images.known[f"python@{PINNED}"] = engine.images.known.pop(DEFAULT)
    assert find_base(engine, replace(ENTRY, base=DEFAULT, base_digest=PINNED)) == found
    assert pulled == [("python", "3.11-slim-bookworm"), ("python", PINNED)], "built again it is from the same"


def test_without_a_registry_the_base_is_made_from_packages() -> None:
    own = SimpleNamespace(id=ID, attrs={"RootFS": {"Layers": [PINNED]}})
    engine = client(**{build.OWN_TAG: own})  # made earlier
    assert find_base(engine) == Base("Debian bookworm from packages", ID, PINNED)
    engine.images.known[DEFAULT] = SimpleNamespace(id=ID, attrs={})
    assert find_base(engine) == Base(DEFAULT, ID, ID), "what the engine has comes first"


def test_an_image_that_is_not_built_is_named_with_a_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.images.image_command.read_images", dict)
    assert main(["image", "export", "cpu", "--sif", f"{tmp_path}/x.sif"]) == 2
    assert "image: 'cpu' is not built; build it: python -m benchmarks image build cpu" in capsys.readouterr().err
