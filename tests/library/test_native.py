"""Compiled code has the bits of the plain form in torch and NumPy, and is done without where it cannot be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from resireduce.kernels import ops
from resireduce.kernels.ops import SWITCH, largest_magnitudes, library
from resireduce.pieces import generator
from resireduce.residuals.stored import Blocks
from tests.compiled import both, needs_compiler, values

pytestmark = pytest.mark.usefixtures("found_anew")
CPU = torch.device("cpu")


@needs_compiler
@pytest.mark.parametrize("kind", ["normal", "denormal", "huge", "zero", "negative zero"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_few_bits_have_the_same_codes_and_decode_alike_in_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, precision: str, kind: str
) -> None:
    def stored(n: int) -> list[torch.Tensor]:
        blocks = Blocks((n,), precision, CPU)
        blocks.set_(values(n, kind), generator(CPU, f"w/{n}", 3))
        return [*blocks.tensors().values(), blocks.add_to_(values(n, "normal"))]

    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    for n in (1, 2, 63, 64, 65, 127, 623, 1247, 1249, 20_000, 16_384 * 3 + 17, 300_001):
        for count in (1, 3):
            torch.set_num_threads(count)
            for one, other in both(monkeypatch, lambda n=n: stored(n)):
                assert torch.equal(one, other), (n, count)


@pytest.mark.parametrize(
    "variables",
    [{SWITCH: "0"}, {"CC": "no-such-compiler"}, {"CC": "false"}, {"CC": "cc '"}, {"XDG_CACHE_HOME": "/dev/null"}],
)
def test_without_a_compiler_that_works_it_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str]
) -> None:
    for name, value in ({"XDG_CACHE_HOME": str(tmp_path)} | variables).items():
        monkeypatch.setenv(name, value)
    assert library() is None
    assert largest_magnitudes(torch.tensor([1.0, -3.0, 2.0, 0.5, -0.1]), 2).tolist() == [1, 2]


@needs_compiler
def test_threads_are_torchs_own_and_after_a_fork_others() -> None:
    script = """
import os, signal, sys, torch
from resireduce.kernels.ops import l1_norms
torch.set_num_threads(3)
matrix = torch.ones(1024, 1024)
before = [int(one.sum()) for one in l1_norms(matrix, torch.float32)]
threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
child = os.fork()
if not child:
    signal.alarm(120)  # OpenMP would wait for threads that are not there
    os._exit([int(one.sum()) for one in l1_norms(matrix, torch.float32)] != before)
assert os.waitpid(child, 0)[1] == 0
matrix.add_(matrix)
assert not threads or len(os.listdir("/proc/self/task")) == threads, "torch has started threads of its own"
"""
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # other libraries' threads come and go
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300, env=alone)


@needs_compiler
def test_code_in_the_packages_own_folder_is_taken_and_nothing_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in an image, which has no compiler."""
    shutil.copytree(ops.HERE, tmp_path / "kernels")
    monkeypatch.setattr(ops, "HERE", tmp_path / "kernels")
    ops.build(ops.HERE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert library() is not None and not (tmp_path / "resireduce").exists()
