"""Kernels in Triton's interpreter, on the CPU: `tests/library/test_triton.py` runs this with TRITON_INTERPRET=1.

Oracles are NumPy's, from the definitions; and the library itself, which must train the same parameters without them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import resireduce
from benchmarks.training.time_kernels import measured
from resireduce import pieces
from resireduce.errors import NonFiniteGradient
from resireduce.grouping import Grouping
from resireduce.kernels import ops
from resireduce.kernels.gpu import blocks, bucket, one_pass, self_check
from resireduce.kernels.gpu.one_pass import jit, tl
from resireduce.residuals.group import AverageResidual, WeightedResidual
from resireduce.residuals.stored import Stored
from resireduce.scheme import Scheme
from tests.triton.bucket import drawn
from tests.worlds import residuals

CPU = torch.device("cpu")
FLOATS = [torch.float32, torch.float16]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library uses the kernels for tensors of the CPU, of whatever size, as if the host had to wait for them."""
    monkeypatch.setattr(pieces, "HOSTS", ("meta",))
    monkeypatch.setattr(ops, "DEVICE", "cpu")
    monkeypatch.setattr(ops, "works", lambda device, dtype: True)
    yield


# --- one pass each ---


@np.errstate(all="ignore")
def test_quotients_are_those_of_numpy() -> None:
    """Quotients are float32's for numbers of all sizes, and where one is denormal and halfway between two numbers."""
    drawn_ = np.random.default_rng(0)
    x, divisors = (drawn_.integers(1, 0x7F800000, 4000).astype(np.int32).view(np.float32) for _ in range(2))
    middle = (2 * drawn_.integers(0, 500, 4000) + 1) * 2.0**-150
    wide = drawn_.integers(1, 1 << 12, 4000) * 2.0 ** drawn_.integers(1, 100, 4000)
    x, divisors = np.append(x, (middle * wide).astype(np.float32)), np.append(divisors, wide.astype(np.float32))
    expected = torch.from_numpy(x / divisors)
    into = torch.empty(8000)
    _divide[(1,)](into, torch.from_numpy(x), torch.from_numpy(divisors), 8000, 8192)
    assert self_check.same_bits(into, expected)


@jit
def _divide(into, x, divisors, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, TILE)
    inverted = one_pass.inverse(tl.load(divisors + at, mask=at < n, other=1.0))
    tl.store(into + at, one_pass.times(tl.load(x + at, mask=at < n, other=0.0), inverted), mask=at < n)


# --- the library with them ---


class Thrice(AverageResidual):
    """Weighs the errors of all members by 3, and what it folds is three times as large."""

    def weight(self, x: Tensor) -> Tensor:
        return super().weight(x) * 3

    def finish(self, folded: tuple[Tensor, Tensor], stored: Stored) -> Tensor:
        return super().finish(folded, stored).mul_(3)


class Halving(WeightedResidual):
    """Keeps half of each error."""

    def update(self, name: str, error: Callable[[], Tensor], step: int) -> None:
        super().update(name, lambda: error().div_(2), step)


GROUPED = Grouping(groups=(("0.weight", "1.weight"),))
OPTIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "rows and columns": {"scheme": "2d", "groups": Grouping(groups=(), specific=("0.weight", "1.weight"))},
    "weighted": {"scheme": "w", "groups": GROUPED, "gradients": "kept"},
    "weighted otherwise": {"scheme": Scheme(grouped=Thrice), "groups": GROUPED},
    "half of each error": {"scheme": Scheme(grouped=Halving), "groups": GROUPED},
    "int4 in the host's memory": {"residual_dtype": "int4", "residual_device": "cpu"},
    "half precision": {"compressor": "fp16"},
    "levels": {"compressor": "block4"},
}
TOP_K = {"_select", "add_topk_", "blank_spoilt_"}
USED = {
    "float32": TOP_K,
    "rows and columns": TOP_K | {"cross_"},
    "weighted": TOP_K | {"fold_"},
    "weighted otherwise": TOP_K,
    "half of each error": TOP_K | {"sum_chunks", "fold_"},
    "int4 in the host's memory": TOP_K | {"encode", "decode_add_"},
    "half precision": {"blank_spoilt_"},
    "levels": {"blank_spoilt_", "compress_blocks_", "add_blocks_"},
}
"""What of the library's kernels takes part."""


def small(**options: Any) -> tuple[nn.Sequential, resireduce.DistributedOptimizer]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, resireduce.distribute(
        model, optimizer, backend="local", **{"scheme": "baseline", "density": 0.05, **options}
    )


def train(model: nn.Module, optimizer: resireduce.DistributedOptimizer, inputs: Tensor) -> None:
    optimizer.zero_grad()
    model(inputs).square().sum().backward()
    optimizer.step()


def parameters_after(steps: int, **options: Any) -> list[Tensor]:
    model, optimizer = small(**options)
    for number in range(steps):
        train(model, optimizer, drawn(500, seed=number).view(5, 100))
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("case", OPTIONS)
def test_the_same_parameters_are_trained(case: str, request: pytest.FixtureRequest) -> None:
    plain = parameters_after(2, **OPTIONS[case])
    request.getfixturevalue("used")
    calls = counted(request.getfixturevalue("monkeypatch"))
    assert all(map(torch.equal, plain, parameters_after(2, **OPTIONS[case])))
    assert calls == USED[case]


def counted(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of those functions of the kernels that the library calls from now on."""
    calls: set[str] = set()
    functions = [(bucket, name) for name in ("_select", "add_topk_", "blank_spoilt_", "sum_chunks", "fold_")]
    functions += [(one_pass, name) for name in ("encode", "decode_add_", "cross_")]
    functions += [(blocks, name) for name in ("compress_blocks_", "add_blocks_")]
    for module, name in functions:
        right = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, f=right, n=name, **k: calls.add(n) or f(*a, **k))
    return calls


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("options", [{"residual_dtype": "int4"}, {}, OPTIONS["weighted"], OPTIONS["rows and columns"]])
def test_a_gradient_that_is_not_finite_does_what_it_does_without_them(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, inputs = [], drawn(500).view(5, 100)
    for switch in ("1", "0"):
        monkeypatch.setenv(ops.GPU_SWITCH, switch)
        model, optimizer = small(**options)
        train(model, optimizer, inputs)
        held = residuals(optimizer).values()  # the tensors themselves
        with pytest.raises(NonFiniteGradient, match="holds NaN or infinity; nothing of it was sent"):
            train(model, optimizer, inputs * torch.inf)
        left.append([*(one.detach() for one in model.parameters()), *held])
    assert all(map(torch.equal, *left)) and all(one.isfinite().all() for one in left[0])


# --- where they are used ---


def test_a_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ops.GPU_SWITCH, "1")  # what it sets is undone
    found = measured("cpu", tiny=True)
    assert found["triton"] and len(found["rows"]) == 7
    for row in found["rows"]:
        assert row["same"] and row["kernel_seconds"] > 0 < row["plain_seconds"], row


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_check_on_a_device_finds_them_right(dtype: torch.dtype) -> None:
    numel = 304 if dtype == torch.float32 else 300  # a multiple of 16, or not: two sizes
    assert self_check.differing(CPU, dtype, numel) == []


PLACES = {
    "select": "select",
    "top-k of a bucket": "compress_topk_",
    "gradients that are not finite": "blank_spoilt_",
    "add what was sent": "add_topk_",
    "rows and columns": "cross_",
    "sum of a group": "fold_",
    "8 bits": "encode",
    "4 bits": "decode_add_",
    "levels of 8 bits": "compress_blocks_",
    "levels of 4 bits": "add_blocks_",
}


@pytest.mark.parametrize("kernel", PLACES)
def test_the_check_on_a_device_finds_a_kernel_that_is_wrong(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(self_check, PLACES[kernel])

    def wrong(first: Any, *others: Any, **named: Any) -> object:
        """One element of what is written is another."""
        result = right(first, *others, **named)
        written = {
            "select": result,
            "sum of a group": others[1][0] if kernel == "sum of a group" else (),
            "top-k of a bucket": others[1] if kernel == "top-k of a bucket" else (),
            "rows and columns": others[2:],
            "8 bits": others[1:2],
            "add what was sent": first,
            "gradients that are not finite": first,
            "levels of 8 bits": first[0] if kernel == "levels of 8 bits" else (),
            "levels of 4 bits": first,
        }
        written.get(kernel, [first])[0].view(-1)[0] += 1
        return result

    monkeypatch.setattr(self_check, PLACES[kernel], wrong)
    monkeypatch.setattr(self_check, "CHECKS", {kernel: self_check.CHECKS[kernel]})
    assert self_check.differing(CPU, torch.float32, 304) == [kernel]


FAILURES = [
    ([], None),
    (["select"], "other results than plain torch: select"),
    (RuntimeError("no C compiler\nx"), "no C compiler."),
]


@pytest.mark.parametrize(("outcome", "said"), FAILURES)
def test_a_device_on_which_they_fail_does_without(
    outcome: object, said: str | None, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def differing(device: torch.device, dtype: torch.dtype) -> object:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(self_check, "differing", differing)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    ops.works.cache_clear()
    assert ops.works(torch.device("cuda", 0), torch.float32) is (said is None)
    assert [said in str(one.message) for one in recwarn] == [True] * (said is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not ops.works(torch.device("cuda", 1), torch.float32) and len(recwarn) == (said is not None)
