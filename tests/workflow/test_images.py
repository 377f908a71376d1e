"""The workflow with an image: Snakemake itself, on copies of the tree in which images and cells are stand-ins."""

import json

import pytest

from benchmarks.analysis.load_run import load_run
from benchmarks.core.run_config import get_cells
from benchmarks.workflow.where import get_image
from tests.workflow.trees import QUIET, SNAKEMAKE, jobs, make_tree, run

RUN = ["--nolock", *QUIET]
DOCKER = ("runtime=docker", "image=cpu")
MATRIX = "matrix: [{model: gpt2-bytes, scheme: w}]"


@pytest.fixture
def tree(tmp_path):
    more = ("containers", "pyproject.toml", "README.md")
    tree = make_tree(tmp_path, MATRIX, ("run", "pretrain", "image"), more)
    (tree / "benchmarks/images/engine.py").write_text("from contextlib import nullcontext as engine\n")
    return tree


def call(tree, *arguments):
    return run(tree, *SNAKEMAKE, "--cores", "2", "--configfile", "my.yaml", *arguments)


def planned(tree, *config):
    """How many jobs of each rule a dry run would start."""
    done = call(tree, "--dry-run", "--quiet", "host", "--config", *config)
    assert done.returncode == 0, done.stderr
    return jobs(done.stdout)


def test_an_image_is_built_once_and_cells_run_again_when_it_is_another(tree):
    done = call(tree, *RUN, "--config", *DOCKER)
    assert done.returncode == 0, done.stderr
    assert "1 cells, 1 to run, in image cpu with docker. " in done.stdout
    (entry,) = tree.glob("results/cache/images/cpu-*.json")
    with (tree / "README.md").open("a") as file:
        file.write("A comment.\n")
    assert planned(tree, *DOCKER) == {}, "the digest is known now, and is the one that the cell ran with"
    found = load_run(tree / "results/runs/smoke")
    assert (len(found.results), found.holes, found.notes) == (1, {}, [])

    known = json.loads(entry.read_text())
    entry.write_text(json.dumps(known | {"digest": known["base_digest"].replace(known["digest"][-4:], "0000")}))
    assert planned(tree, *DOCKER) == {"cell": 1, "report": 1, "all": 1}
    entry.write_text(json.dumps(known))

    with (tree / "containers/cpu/requirements.lock").open("a") as file:
        file.write("# another image\n")
    whole = {"image": 1, "cell": 1, "report": 1, "all": 1}
    assert planned(tree, *DOCKER) == whole
    assert call(tree, *RUN, "--config", *DOCKER).returncode == 0
    assert planned(tree, *DOCKER) == {}, "a cell that ran before, too, is known by the digest that it ran with"


def test_what_a_run_is_does_not_depend_on_what_it_runs_in():
    config = {"matrix": [{"model": "gpt2-bytes"}]}
    assert get_image(config) is None
    assert get_cells(config | {"runtime": "docker", "image": "cpu"}) == get_cells(config)
