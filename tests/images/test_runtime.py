"""Cells in containers of a real engine, and what is left of them. `make test-images`.

The image is `cpu`, as the workflow or `python -m benchmarks image build cpu` left it; RESIREDUCE_TEST_IMAGE names the
JSON of another.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.core.files import file_hash, save_json
from benchmarks.launching.containers.choose import find_runtime
from benchmarks.launching.containers.entry import ImageEntry
from benchmarks.launching.containers.runtime import command
from benchmarks.launching.launch import run_python

CELL = {"model": "vgg-digits", "scheme": "w", "steps": 3, "batch_per_rank": 4}
ENDLESS = {**CELL, "steps": 10**6}
SEES = """
import json, os, socket, sys
from pathlib import Path
folder, data = Path(sys.argv[1]), Path(sys.argv[2])
def works(action):
    try:
        action()
    except OSError:
        return False
    return True
(folder / "mine").write_text("")
json.dump({
    "root": works(lambda: Path("/here").write_text("")),
    "data": works(lambda: (data / "new").write_text("")),
    "home": works(lambda: (Path.home() / "new").write_text("")),
    "host": socket.gethostname(),
    "path": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH"), "NCCL_DEBUG": os.environ["NCCL_DEBUG"],
    "digest": os.environ["RESIREDUCE_IMAGE_DIGEST"],
}, (folder / "seen.json").open("w"))
"""


def start(
    folder: Path, cell: dict[str, Any], image: Path | None, *more: str, runtime: str = "docker"
) -> subprocess.Popen[str]:
    save_json(cell, folder / "cell.json")
    options = ["--runtime", runtime, "--image", str(image)] if image else []
    line = [sys.executable, "-m", "benchmarks", "run", "--cell", "cell.json", "--output", "cells/out.json"]
    return subprocess.Popen(
        [*line, *options, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(
    folder: Path, cell: dict[str, Any], image: Path | None, *more: str, runtime: str = "docker"
) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what was said, and the record."""
    process = start(folder, cell, image, *more, runtime=runtime)
    said = "".join(process.communicate(timeout=300))
    files = sorted((folder / "cells").glob("out*.json"), reverse=True)  # out.json before out.failed.json
    return process.returncode, said, json.loads(files[0].read_text()) if files else {}


def containers(image: Path) -> list[str]:
    """Names of the containers that were made from the image, running or not."""
    line = [*command("docker"), "ps", "--all", "--format", "{{.Names}}", "--filter", f"ancestor={digest(image)}"]
    return subprocess.check_output(line, text=True).split()


def digest(image: Path) -> str:
    return ImageEntry.load(image).digest


def wait_until(condition: Any, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(condition())


def test_a_cell_trains_as_on_the_host_and_its_record_names_the_image(tmp_path, image):
    (tmp_path / "host").mkdir()
    _, _, host = run(tmp_path / "host", CELL, None)
    status, said, record = run(tmp_path, CELL, image)
    assert status == 0, said
    entry, source = ImageEntry.load(image), record["provenance"]
    assert source["image"]["digest"] == source["image_digest"] == entry.digest
    assert source["image"]["runtime"] == "docker"
    assert source["python"] == entry.versions["python"] and source["packages"]["torch"] == entry.versions["torch"]
    assert source["hosts"] == host["provenance"]["hosts"]
    if source["packages"]["torch"] == host["provenance"]["packages"]["torch"]:
        assert record["metric_history"] == host["metric_history"]
    owned = [path for path in tmp_path.rglob("*") if path.stat().st_uid != os.getuid()]
    assert (owned, containers(image), list(tmp_path.glob("checkpoints"))) == ([], [], [])


def test_a_cell_trains_under_apptainer_as_under_docker(tmp_path, image, sif):
    horovod = {**CELL, "backend": "horovod"}
    _, said, record = run(tmp_path, horovod, image, runtime="apptainer")
    assert record.get("status") == "ok", said
    assert record["provenance"]["image"]["sif_sha256"] == file_hash(sif)
    assert record["provenance"]["image"]["digest"] == digest(image)
    (tmp_path / "docker").mkdir()
    _, said, docker = run(tmp_path / "docker", horovod, image)
    assert docker.get("status") == "ok", said
    assert record["metric_history"] == docker["metric_history"]


def test_what_a_command_in_an_image_sees(tmp_path, image, monkeypatch):
    for name in ("odd, folder: 1", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    folder = tmp_path / "odd, folder: 1"
    run_python(["-c", SEES, str(folder), str(tmp_path / "data")], find_runtime("docker", str(image)), [folder])
    seen = json.loads((folder / "seen.json").read_text())
    assert (seen["root"], seen["data"], seen["home"]) == (False, False, True)
    assert seen["host"] == os.uname().nodename
    assert seen["PYTHONPATH"] is None and seen["NCCL_DEBUG"] == "WARN" and seen["digest"] == digest(image)
    assert ".venv" not in seen["path"]
    assert (folder / "mine").stat().st_uid == os.getuid()


def test_a_cell_that_is_asked_to_stop_saves_and_goes_on_in_the_image_only(tmp_path, image):
    process = start(tmp_path, ENDLESS, image, "--checkpoint-every", "1")
    assert wait_until(lambda: list(tmp_path.glob("checkpoints/*/checkpoint.json")))
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 1
    record = json.loads((tmp_path / "cells/out.failed.json").read_text())
    assert record["status"] == "timeout" and record["reason"].startswith("stopped by SIGTERM at step ")
    (saved,) = tmp_path.glob("checkpoints/*/checkpoint.json")
    step = json.loads(saved.read_text())["step"]
    assert saved.stat().st_uid == os.getuid() and containers(image) == []
    status, _, _ = run(tmp_path, ENDLESS, image, "--deadline", "20")
    again = json.loads((tmp_path / "cells/out.failed.json").read_text())
    assert status == 1 and again["steps"] > step, "it began anew"
    _, said, _ = run(tmp_path, ENDLESS, None, "--timeout", "8")
    assert "(of other content: packages); the cell starts afresh" in said


def test_a_launcher_that_is_killed_leaves_no_container(tmp_path, image):
    process = start(tmp_path, ENDLESS, image)
    assert wait_until(lambda: len(containers(image)) == 2)
    os.kill(process.pid, signal.SIGKILL)
    started = time.monotonic()
    assert wait_until(lambda: not containers(image), 30), "containers outlive the command that started them"
    assert time.monotonic() - started < 10
    process.communicate()
