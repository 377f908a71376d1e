"""The same contracts over Horovod, with Gloo, on two processes."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import resireduce
from resireduce.errors import ConfigError
from tests.worlds import OPTIMIZERS, Net, seeded

ROOT = Path(__file__).parents[2]
NEEDED = pytest.mark.skipif(
    find_spec("horovod") is None and shutil.which("g++") is None,
    reason="Horovod is not installed, and cannot be built here: there is no g++",
)


def on_horovod(module: str, home: Path, *arguments: object, ranks: int = 2) -> str:
    """What `ranks` processes of a Horovod job print that run `module` with these arguments."""
    command = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", f"{ranks}", "-H", f"localhost:{ranks}"]
    command += [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@NEEDED
def test_two_processes(tmp_path: Path) -> None:
    printed = on_horovod("tests.ranks.horovod_rank", tmp_path, tmp_path / "meet")
    for rank in range(2):
        assert printed.count(f"passed on rank {rank} of 2") == 11


@NEEDED
def test_two_nodes_of_two_ranks(tmp_path: Path) -> None:
    printed = on_horovod("tests.ranks.horovod_node", tmp_path, tmp_path / "meet", ranks=4)
    for rank in range(4):
        assert printed.count(f"passed on rank {rank} of 4") == 3


@NEEDED
@pytest.mark.parametrize("built", [True, False])
def test_tensors_of_a_gpu_need_a_horovod_that_was_built_with_cuda(built: bool) -> None:
    from resireduce.comm.horovod import HorovodCommunicator

    communicator = object.__new__(HorovodCommunicator)  # of no job
    communicator._hvd = SimpleNamespace(cuda_built=lambda: built)
    communicator.check_devices([torch.zeros(1)])
    of_gpu = [torch.zeros(1), SimpleNamespace(is_cuda=True)]
    with nullcontext() if built else pytest.raises(ConfigError, match="without CUDA; build it with HOROVOD_GPU=CUDA"):
        communicator.check_devices(of_gpu)


@NEEDED
def test_horovod_that_was_not_started_is_named_with_the_cure() -> None:
    model = seeded(Net)
    with pytest.raises(ConfigError, match=r"backend: 'horovod' needs horovod\.torch\.init\(\) first; .* horovodrun"):
        resireduce.distribute(model, OPTIMIZERS["sgd"](list(model.parameters())), backend="horovod")
