"""Ranks whose parameters differ in the first steps are told: nothing else would ever notice."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalWorld
from resireduce.core import step as exchange
from resireduce.watchers import PIECE, digest

MODES: list[dict[str, Any]] = [
    {"gradients": "kept"},
    {"gradients": "kept", "overlap": True},
    {"gradients": "streamed"},
    {"compressor": "none", "scheme": "none", "gradients": "streamed", "update": "in_backward"},
    {"compressor": "none", "scheme": "none", "gradients": "kept", "overlap": True, "merge": "dear"},
]


class Centred(nn.Module):
    """A shift that the first forward pass sets to what it sees, as in a flow."""

    def __init__(self):
        super().__init__()
        self.shift, self.is_new = nn.Parameter(torch.zeros(64)), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input, shifted."""
        if self.is_new:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
            self.is_new = False
        return x + self.shift


def train(
    communicator: Communicator,
    change: Callable[[nn.Module, int, int], None],
    mode: dict[str, Any],
    first: Callable[[], nn.Module],
) -> None:
    """Train for four steps; `change` the model of each rank after each of them."""
    draw = torch.Generator().manual_seed(communicator.rank)
    model = nn.Sequential(first(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), backend=communicator, **mode)
    for number in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=draw)).square().mean().backward()
        optimizer.step()
        change(model, communicator.rank, number)
    optimizer.close()


def told(recwarn: pytest.WarningsRecorder) -> int:
    return sum("no longer the same on all ranks" in str(one.message) for one in recwarn)


def nothing(model: nn.Module, rank: int, step: int) -> None:
    """Change nothing."""


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_train_alike_are_told_nothing(mode: dict[str, Any], recwarn: pytest.WarningsRecorder) -> None:
    LocalWorld(2).run(lambda communicator: train(communicator, nothing, mode, nn.Identity))
    assert not told(recwarn)


@pytest.mark.parametrize("mode", [one for one in MODES if "update" not in one])
def test_what_the_first_forward_pass_makes_of_a_rank_s_own_data(
    mode: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    LocalWorld(2).run(lambda communicator: train(communicator, nothing, mode, Centred))
    assert told(recwarn)


@pytest.mark.parametrize("mode", [one for one in MODES if "update" not in one])
@pytest.mark.parametrize("step", [0, 1])
def test_what_one_rank_alone_changes_after_its_first_step(
    step: int, mode: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    """Later nothing is looked at: it would cost a pass over all parameters in each step."""

    def change(model: nn.Module, rank: int, number: int) -> None:
        if (rank, number) == (1, step):
            with torch.no_grad():
                model[3].weight[5, 7] += 1e-6  # type: ignore[index]

    LocalWorld(2).run(lambda communicator: train(communicator, change, mode, nn.Identity))
    assert bool(told(recwarn)) == (step == 0)


def test_only_the_first_two_steps_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(exchange, "digest", lambda parameters: looked.append(len([*parameters])) or 1)
    LocalWorld(2).run(lambda communicator: train(communicator, nothing, {}, nn.Identity))
    assert looked == [4] * 4


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_steps_that_overflow_are_not_counted(gradients: str, recwarn: pytest.WarningsRecorder) -> None:
    """A loss scale that begins too high has some of the first steps skipped, after which nothing has changed."""

    def train(communicator: Communicator) -> None:
        model, scaler = nn.Linear(120, 120), resireduce.GradScaler("cpu", init_scale=2.0**127)
        optimizer = resireduce.distribute(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            "baseline",
            backend=communicator,
            grad_scaler=scaler,
            gradients=gradients,
        )
        skipped, has_changed = 0, False
        while optimizer.steps < 2:
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 120), 10.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped += optimizer.overflowed
            if optimizer.steps and not has_changed and communicator.rank:
                has_changed = True
                model.weight.data[5, 7] += 1e-6
        assert skipped > 2
        optimizer.close()

    LocalWorld(2).run(train)
    assert told(recwarn)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_one_bit_makes_another_digest(dtype: torch.dtype) -> None:
    tensors = [torch.ones(3, 5, dtype=dtype), torch.ones(PIECE // 3, 4, dtype=dtype), torch.ones((), dtype=dtype)]
    as_they_are = digest(tensors)
    assert 1 <= as_they_are <= 1 << 20 and digest(tensors) == as_they_are
    for tensor in tensors:
        flat = tensor.view(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])
        flat[-1] += 1
        assert digest(tensors) != as_they_are
        flat[-1] -= 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0, 1024.0])
def test_a_common_factor_makes_another_digest(factor: float, dtype: torch.dtype) -> None:
    """A power of two changes one field of the bits by the same number in each of, say, 2,048 elements."""
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(64, 16, generator=draw).to(dtype)
    weights = torch.cat((weights, -weights))  # as many above zero as below
    tensors = [weights, torch.ones(64, dtype=dtype)]
    others = [[weights * factor, tensors[1]], [weights, tensors[1] * factor], [weights.flip(0), tensors[1]]]
    assert len({digest(one) for one in [tensors, *others]}) == 4


def test_layout_counts_for_nothing_and_what_has_no_bits_is_left_out() -> None:
    images = torch.randn(4, 3, 5, 5)
    expected = digest([images])
    assert digest([images.to(memory_format=torch.channels_last)]) == expected
    assert digest([torch.empty(0), images, torch.ones(3, device="meta"), torch.eye(3).to_sparse()]) == expected


def test_what_a_tensor_wraps_counts() -> None:
    """As the integers and scales of a weight that is quantized in training."""
    first, second = torch.randn(3, 5), torch.randn(3, 5)
    expected = digest([TwoTensor(first, second)])
    second[2, 4] += 1
    assert digest([TwoTensor(first, second)]) != expected


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that any operation makes."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`."""
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.nbytes = max(self.nbytes, made.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("shape", [(4 * PIECE,), (1, 4 * PIECE), (2, 2, PIECE), (2, 3, PIECE + 5), (8 * PIECE, 1)])
def test_no_more_than_a_piece_is_looked_at_in_one_go(shape: tuple[int, ...]) -> None:
    """Experts that lie in one parameter have long rows, and may be in another order."""
    parameter = torch.randn(shape, dtype=torch.float16)
    with Largest() as largest:
        found = digest([parameter])
    assert largest.nbytes <= max(8 * PIECE, parameter.nbytes)
    strided = torch.randn(*shape, 2, dtype=torch.float16)[..., 0]
    assert digest([strided.copy_(parameter)]) == found
    dim = next(dim for dim, size in enumerate(shape) if size > 1)
    assert digest([parameter.roll(shape[dim] // 2, dim)]) != found


def test_both_parts_of_complex_numbers_count() -> None:
    values = torch.randn(3, 5, dtype=torch.complex128)
    expected = digest([values])
    assert digest([values.clone()]) == expected == digest([values.conj().clone().conj()])
    assert digest([values + 1e-9]) != expected != digest([values + 1e-9j])


def test_values_count_at_their_places_and_by_themselves() -> None:
    """4 x 1 in the first place is 1 x 4 in the second: sums weighted by squares of places alone are equal."""
    assert digest([torch.tensor([4, 0])]) != digest([torch.tensor([0, 1])])


def test_a_tensor_whose_sign_is_yet_to_be_changed_has_the_digest_of_its_values() -> None:
    lazy = torch.ones(3, dtype=torch.complex64).mul(1 + 2j).conj().imag
    assert lazy.is_neg() and digest([lazy]) == digest([torch.full((3,), -2.0)])
