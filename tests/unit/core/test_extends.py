"""A config that extends another: its cells are those of both files, and mistakes are named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.core.config_reader import read_config
from benchmarks.core.matrix import expand_parts
from benchmarks.core.run_config import get_cells, get_config
from resireduce.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "benchmarks/config"

BASE = """
run: base
defaults: {density: 0.05, seed: [0, 1]}
matrix: [{model: vgg-digits}]
parts:
  one: {title: One, defaults: {scheme: w}, matrix: [{model: gpt2-bytes, seed: 3}]}
"""
OWN = """
extends: base.yaml
run: own
defaults: {gradients: streamed}
parts:
  two: {defaults: {density: 0.1}, matrix: [{model: gpt2-bytes}]}
"""
MISTAKES = [
    ("extends: none.yaml\nrun: own", "none.yaml: No such file"),
    ("extends: base.yaml\nparts: {one: {matrix: [{model: vgg-digits}]}}", "part 'one' is in base.yaml too"),
    ("extends: base.yaml\ndefaults: {modle: vgg-digits}", "defaults key: 'modle' is not known"),
    ("run: own\nonly: {seed: 0}", "only: not allowed without extends; name the config"),
    ("extends: base.yaml\nonly: {modle: x}", "only key: 'modle' is not known"),
    ("extends: base.yaml\ninstead: {modle: x}", "instead key: 'modle' is not known"),
    ("extends: base.yaml\nonly: {seed: 7}", "only: seed: 7 is in no entry of base.yaml; allowed: 0, 1, 3"),
    ("extends: base.yaml\nonly: {model: vgg-digits, seed: 3}", "leaves no cell of base.yaml; give values that one"),
]


def write(folder: Path, own: str) -> Path:
    (folder / "base.yaml").write_text(BASE)
    (folder / "bad.yaml").write_text("parts: {two: {defaults: 3, matrix: []}}")
    (folder / "own.yaml").write_text(own)
    return folder / "own.yaml"


def matrix(path: Path) -> dict[str, object]:
    return {key: value for key, value in read_config(path).items() if key != "run"}


def test_cells_of_the_other_config_are_those_it_has_by_itself(tmp_path: Path) -> None:
    own = write(tmp_path, OWN)
    parts = expand_parts(matrix(own))
    base = expand_parts(matrix(tmp_path / "base.yaml"))
    assert list(parts) == [*base, "two"] and base.items() <= parts.items()
    [cell] = parts["two"]
    assert (cell.density, cell.seed, cell.gradients) == (0.1, 0, "streamed")
    assert read_config(own)["run"] == "own"


def test_parts_of_both_can_be_chosen_and_the_runs_config_stands_by_itself(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, OWN), "one,two")
    stored = json.loads(json.dumps(get_config(config)))
    assert "extends" not in stored
    assert get_cells(stored) == get_cells(config)
    assert [(cell.scheme, cell.seed) for cell in get_cells(config).values()] == [("w", 3), ("baseline", 0)]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistakes_are_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    own = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_config(own)
    assert message in str(caught.value)
    assert str(own) in str(caught.value) or "none.yaml" in message
    assert "\n" not in str(caught.value)


def test_some_values_are_taken_and_others_stand_in_the_place_of_what_is_there(tmp_path: Path) -> None:
    own = write(
        tmp_path, "extends: base.yaml\nrun: own\nonly: {seed: [1, '3'], scheme: [w, baseline]}\ninstead: {nodes: 2}"
    )
    found = expand_parts(matrix(own))
    [(entry, small), (part, text)] = [(name, cell) for name, [cell] in found.items()]
    assert (entry, small.model, small.seed, small.density, small.nodes) == ("matrix", "vgg-digits", 1, 0.05, 2)
    assert (part, text.model, text.seed, text.scheme, text.nodes) == ("one", "gpt2-bytes", 3, "w", 2)
    assert read_config(own)["parts"]["one"]["title"] == "One" and "only" not in get_config(read_config(own))


def test_a_part_without_any_of_the_values_is_left_out_and_own_entries_come_after(tmp_path: Path) -> None:
    own = write(tmp_path, "extends: base.yaml\nonly: {model: vgg-digits}\nmatrix: [{model: resnet-digits}]")
    assert [cell.model for cell in expand_parts(matrix(own))["matrix"]] == ["vgg-digits", "vgg-digits", "resnet-digits"]
    assert list(expand_parts(matrix(own))) == ["matrix"]


def test_systems_on_a_cluster_are_those_of_one_machine_with_a_rank_on_each_node() -> None:
    ours, theirs = (expand_parts(matrix(CONFIGS / f"{name}.yaml")) for name in ("systems-slurm", "systems"))
    assert list(ours) == list(theirs)
    for name, [cell] in ours.items():
        assert replace(cell, nodes=None) in theirs[name] and (cell.nodes, cell.world_size) == (2, 2)
