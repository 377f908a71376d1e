"""The image without CUDA, built for real: minutes the first time, seconds from the engine's cache."""

import json
from pathlib import Path
from typing import Any

import docker
from packaging.utils import canonicalize_name

from benchmarks.core.paths import ROOT
from benchmarks.launching.containers.entry import ImageEntry, image_content, read_images, read_lock
from tests.images.conftest import Call

LIST = """
import json
from importlib.metadata import distributions
print(json.dumps([(it.name, it.version) for it in distributions()]))
"""


def run(client: docker.DockerClient, entry: ImageEntry, *command: str, **options: Any) -> str:
    line = list(command)
    output = client.containers.run(entry.digest, line, network_mode="none", read_only=True, remove=True, **options)
    return output.decode().strip()


def test_an_image_is_what_its_entry_and_its_lock_say_and_the_same_when_built_again(
    client: docker.DockerClient, image: Path, call: Call, tmp_path: Path
) -> None:
    entry = ImageEntry.load(image)
    assert read_images(image.with_name("images.lock.json")) == {"cpu": entry}
    found = client.images.get(entry.tag)
    assert found.id == entry.digest and entry.content == image_content("cpu")
    assert found.labels["org.resireduce.content"] == entry.content
    pins = {pin.name: pin.version for pin in read_lock(ROOT / "containers/cpu/requirements.lock")}
    assert entry.versions["torch"] == pins["torch"] and entry.versions["cuda"] is entry.versions["nccl"] is None
    assert entry.versions["horovod built with"] == "MPI, Gloo" and "Open MPI" in str(entry.versions["mpi"])
    listed = json.loads(run(client, entry, "python", "-c", LIST))
    packages = {canonicalize_name(name): version for name, version in listed}
    own = dict.fromkeys(("resireduce", "resireduce-suite"), packages["resireduce"])
    assert packages == pins | {"horovod": "0.28.1"} | own
    assert run(client, entry, "id", "--user") != "0"
    assert run(client, entry, "sh", "-c", "command -v gcc g++ cc clang nvcc make || true") == "", "no compiler"
    assert call("build", "cpu", "--entry", tmp_path / "again.json", "--lock", tmp_path / "lock.json").returncode == 0
    assert ImageEntry.load(tmp_path / "again.json").digest == entry.digest


def test_it_says_itself_whether_it_can_run_cells(client: docker.DockerClient, image: Path) -> None:
    options = {"shm_size": "1g", "hostname": "here", "extra_hosts": {"here": "127.0.0.1"}, "tmpfs": {"/tmp": "exec"}}
    doctor = ["python", "-m", "benchmarks", "doctor", "--json", "--results", "/tmp"]
    done = run(client, ImageEntry.load(image), *doctor, environment={"HOME": "/tmp"}, **options)
    found = {item["check"]: item["status"] for item in json.loads(done)["findings"]}
    assert "failed" not in found.values(), found
    assert found["horovod"] == "ok" and found["gloo"] == "ok" and found["gpu"] == "not run"
