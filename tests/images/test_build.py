"""The image without CUDA, built for real: minutes the first time, seconds from the engine's cache."""

import json
from pathlib import Path

import docker
import pytest
from packaging.utils import canonicalize_name

from benchmarks.core.paths import ROOT
from benchmarks.core.requirements import read_lock
from benchmarks.launching.containers.entry import ImageEntry, image_content, read_images
from tests.images.conftest import Call

LIST = """
import json
from importlib.metadata import distributions
print(json.dumps([(it.name, it.version) for it in distributions()]))
"""


@pytest.fixture(scope="module")
def entry(image: Path) -> ImageEntry:
    assert read_images(image.with_name("images.lock.json")) == {"cpu": ImageEntry.load(image)}
    return ImageEntry.load(image)


def run(client: docker.DockerClient, entry: ImageEntry, *command: str) -> str:
    output = client.containers.run(entry.digest, list(command), network_mode="none", read_only=True, remove=True)
    return output.decode().strip()


def test_the_entry_says_what_is_in_the_image_whose_user_is_not_root(
    client: docker.DockerClient, entry: ImageEntry
) -> None:
    found = client.images.get(entry.tag)
    pins = {pin.name: pin.version for pin in read_lock(ROOT / "containers/cpu/requirements.lock")}
    assert found.id == entry.digest and entry.content == image_content("cpu")
    assert found.labels["org.resireduce.content"] == entry.content
    assert entry.versions["torch"] == pins["torch"] and entry.versions["cuda"] is entry.versions["nccl"] is None
    assert entry.versions["horovod built with"] == "MPI, Gloo" and "Open MPI" in str(entry.versions["mpi"])
    assert run(client, entry, "id", "--user") != "0"
    assert run(client, entry, "sh", "-c", "command -v gcc g++ cc clang nvcc make || true") == "", "no compiler"


def test_built_again_from_the_same_files_it_is_the_same_image(entry: ImageEntry, call: Call, tmp_path: Path) -> None:
    assert call("build", "cpu", "--entry", tmp_path / "again.json", "--lock", tmp_path / "lock.json").returncode == 0
    assert ImageEntry.load(tmp_path / "again.json").digest == entry.digest


def test_every_package_in_it_is_that_of_the_lock(client: docker.DockerClient, entry: ImageEntry) -> None:
    listed = json.loads(run(client, entry, "python", "-c", LIST))
    found = {canonicalize_name(name): version for name, version in listed}
    pins = {pin.name: pin.version for pin in read_lock(ROOT / "containers/cpu/requirements.lock")}
    own = dict.fromkeys(("resireduce", "resireduce-suite"), found["resireduce"])
    assert found == pins | {"horovod": "0.28.1"} | own


def test_it_says_itself_whether_it_can_run_cells(client: docker.DockerClient, entry: ImageEntry) -> None:
    done = client.containers.run(
        entry.digest,
        ["python", "-m", "benchmarks", "doctor", "--json", "--results", "/tmp"],
        network_mode="none",
        read_only=True,
        remove=True,
        shm_size="1g",
        hostname="here",
        extra_hosts={"here": "127.0.0.1"},
        tmpfs={"/tmp": "exec"},
        environment={"HOME": "/tmp"},
    )
    found = {item["check"]: item["status"] for item in json.loads(done)["findings"]}
    assert "failed" not in found.values(), found
    assert found["horovod"] == "ok" and found["gloo"] == "ok" and found["gpu"] == "not run"
