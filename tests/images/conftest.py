"""The image without CUDA, built as a user would: minutes the first time, seconds from the engine's cache."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from benchmarks.core.paths import ROOT
from benchmarks.images.engine import engine
from tests.slurm.cluster import Cluster

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    with engine() as client:
        yield client


@pytest.fixture(scope="session")
def call() -> Call:
    """What calls `python -m benchmarks image ...`."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "benchmarks", "image", *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ)

    return call


@pytest.fixture(scope="session")
def image(client: docker.DockerClient, call: Call, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the JSON of the image; beside it is a list of images with it alone."""
    file = tmp_path_factory.mktemp("image") / "cpu.json"
    done = call("build", "cpu", "--entry", file, "--lock", file.with_name("images.lock.json"))
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="session")
def sif(image: Path, call: Call) -> Path:
    """Return the image as apptainer reads it, beside its JSON."""
    file = image.with_suffix(".sif")
    done = call("export", "cpu", "--entry", image, "--sif", file)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster on this machine, which all tests of a file share."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
