"""Compiled code has the bits of the plain form in torch and NumPy, and is done without where it cannot be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from resireduce.kernels import ops
from resireduce.kernels.ops import SWITCH, l1_norms, largest_magnitudes, library
from resireduce.pieces import generator
from resireduce.planning.memory import LiveBytes
from resireduce.residuals.stored import Blocks
from tests.compiled import both, needs_compiler, values

pytestmark = pytest.mark.usefixtures("found_anew")
CPU = torch.device("cpu")


@needs_compiler
def test_code_is_compiled_where_there_is_a_compiler() -> None:
    assert library() is not None


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


@needs_compiler
@pytest.mark.parametrize("n", [5000, 65_536, 688_128])
def test_a_selection_holds_some_per_cent_of_the_tensor(n: int) -> None:
    def held(device: str) -> list[int]:
        flat, peaks = torch.zeros(n, device=device), []
        for k in (max(1, n // 1000), n // 100):
            with LiveBytes(lambda tensor: True) as alive:
                largest_magnitudes(flat, k)
            peaks.append(alive.peak_bytes)
        return peaks

    found = held("cpu")
    assert found == held("meta")
    assert found[1] <= 13 * (1.25 * n / 100 + max(2048, n / 128)) + 8 * n / 100 + 64


@needs_compiler
def test_what_does_not_lie_in_a_row_is_compressed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = values(60_000, "normal").view(200, 300)
    for one, other in both(
        monkeypatch, lambda: [*l1_norms(matrix.t(), torch.float32), largest_magnitudes(matrix[:, 7], 20)]
    ):
        assert torch.equal(one, other)


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


def test_without_a_home_it_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)  # of nobody: containers are run with such
    assert library() is None


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
def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() is not None
    (built,) = (tmp_path / "resireduce").iterdir()
    assert ops.build(tmp_path / "resireduce") == built
    first = built.stat().st_mtime_ns
    library.cache_clear()
    assert library() is not None and built.stat().st_mtime_ns == first


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
