"""Compiled code has the bits of the plain form in torch and NumPy, and is done without where it cannot be had."""

import math
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from resireduce.grouping import Grouping
from resireduce.kernels import ops
from resireduce.kernels.ops import SWITCH, l1_and_l2_norm, l1_norms, largest_magnitudes, library, mean_norm
from resireduce.pieces import generator
from resireduce.residuals.group import AverageResidual, WeightedResidual
from resireduce.residuals.matrix import add_crossing_, cut_crossing
from resireduce.residuals.stored import Blocks
from tests.compiled import bits, both, needs_compiler, values

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


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (2, 2), (16, 256), (17, 257), (128, 3000), (4097, 33)])
def test_norms_of_rows_and_columns_are_torchs_in_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    matrix = values(shape[0] * shape[1], "normal").view(shape)
    expected = [torch.linalg.vector_norm(matrix, 1, dim=dim) for dim in (1, 0)]
    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        for found, norm in zip(both(monkeypatch, lambda: [*l1_norms(matrix, torch.float32)]), expected, strict=True):
            assert torch.equal(found[0], norm) and torch.equal(found[1], norm)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "denormal", "negative zero"])
@pytest.mark.parametrize(("shape", "of"), [((2, 2), 2), ((17, 257), 2), ((40, 1024), 50), ((2, 70_000), 3)])
def test_rows_that_cross_columns_are_added_to_and_copied_bit_for_bit(
    shape: tuple[int, int], of: int, kind: str, dtype: torch.dtype
) -> None:
    """One of so many rows and columns."""
    matrix, block = (values(shape[0] * shape[1], one).view(shape).to(dtype) for one in (kind, "normal"))
    source = torch.Generator().manual_seed(1)
    rows, columns = (torch.randperm(size, generator=source)[: max(1, size // of)].sort().values for size in shape)
    expected = matrix.clone()
    expected[rows[:, None], columns] += block[rows][:, columns]
    add_crossing_(matrix, rows.int(), columns.int(), block[rows][:, columns])
    assert torch.equal(bits(matrix), bits(expected))
    assert torch.equal(bits(cut_crossing(matrix, rows.int(), columns.int())), bits(matrix[rows][:, columns]))


@pytest.mark.parametrize("columns", [[0, 4], [-1, 2]])
def test_columns_that_there_are_not_are_refused_and_not_written_to(columns: list[int]) -> None:
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        add_crossing_(torch.zeros(3, 4), torch.tensor([1]).int(), torch.tensor(columns).int(), torch.ones(1, 2))


@needs_compiler
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 65_536, 200_001])
def test_weights_of_norms_are_the_same_bit_for_bit(monkeypatch: pytest.MonkeyPatch, n: int, phi: float) -> None:
    x = torch.stack([values(n, kind) for kind in ("normal", "denormal", "huge", "uneven")])
    x = torch.cat((x, torch.full((1, n), math.inf)))
    norms = [l1_and_l2_norm(row) for row in x]
    expected = [phi * l1 / n + (1 - phi) * l2 / n**0.5 for l1, l2 in norms]
    for one, other in both(monkeypatch, lambda: [mean_norm(row, phi) for row in x]):
        assert torch.equal(bits(one), bits(other))
        assert torch.equal(bits(one), bits(expected.pop(0))) and (one.dtype, one.shape) == (torch.float32, ())


@needs_compiler
@pytest.mark.parametrize("phi", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "kinds", [("normal", "huge", "denormal"), ("negative zero", "zero", "zero"), ("normal", "uneven")]
)
def test_errors_are_folded_into_their_group_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], phi: float | None
) -> None:
    """Whether they come at once or not."""
    n, names = 5003, [*map(str, range(len(kinds)))]

    def averages() -> list[torch.Tensor]:
        found = []
        for at_once in range(1, len(names) + 1):
            errors = {name: values(n, kind) for name, kind in zip(names, kinds, strict=True)}
            kind = AverageResidual if phi is None else partial(WeightedResidual, phi=phi)
            residual = kind(grouping=Grouping(groups=(tuple(names),)))
            for name in names:
                residual.register(name, errors[name])
            backward = names[::-1]
            for some in (backward[:at_once], backward[at_once:]):
                residual.update_each([(name, errors[name], None) for name in some], 0)
            found += residual.tensors().values()
        return found

    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    torch.set_num_threads(3)
    first = None
    for one, other in both(monkeypatch, averages):
        first = one if first is None else first
        assert torch.equal(bits(one), bits(other)) and torch.equal(bits(one), bits(first))


@needs_compiler
@pytest.mark.parametrize("switch", ["0", "1"])
def test_norms_are_the_same_in_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, switch: str) -> None:
    monkeypatch.setattr(ops, "WORTH_A_THREAD", 1)
    monkeypatch.setenv(SWITCH, switch)
    x = values(9 * 65_536 + 1003, "normal")
    whole = [float(norm) for norm in l1_and_l2_norm(x)]
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert [float(norm) for norm in l1_and_l2_norm(x)] == whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_norms_are_those_of_exact_sums(dtype: torch.dtype) -> None:
    x = values(70_007, "normal").to(dtype)
    before = x.clone()
    l1, l2 = l1_and_l2_norm(x.view(7, -1))
    assert torch.equal(x, before)
    magnitudes = [abs(value) for value in x.tolist()]
    expected = math.fsum(magnitudes), math.sqrt(math.fsum(value * value for value in magnitudes))
    assert l1.dtype == torch.promote_types(dtype, torch.float32)
    assert [float(l1), float(l2)] == pytest.approx(expected, rel=1e-7 if dtype != torch.float64 else 1e-14)
