"""Large messages that are gathered in parts, so that not all of all ranks' payloads is there at once."""

import copy
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalWorld
from resireduce.compressors.base import Compressor
from resireduce.compressors.topk import TopK
from resireduce.optimizer import DistributedOptimizer
from resireduce.plan import plan
from resireduce.scheme import build_compressor
from resireduce.sending.parts import Gathered, Parts
from tests.worlds import Net, distributed, same, seeded, train_world

ROWS, COLUMNS = 150, 90


def gradient(rank: int, kind: str) -> Tensor:
    """Values of which the largest lie anywhere, in some rows, or in other rows on each rank."""
    drawn = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank))
    if kind == "hot":
        drawn[3:11] *= 1000
    if kind == "apart":
        drawn[rank * 40 : rank * 40 + 3] *= 1000
    return drawn


def in_parts(communicator: Communicator, compressor: Compressor, kind: str, most: int) -> tuple[Tensor, int, int, bool]:
    """The sum of all ranks' payloads, how many parts it came in, most bytes of them at once, whether it is of anybody.

    Asked for in ranges of 1000 elements, which no parts end with.
    """
    payload = compressor.compress(gradient(communicator.rank, kind), f"w/{communicator.rank}", 0)
    parts, total, sizes = (
        Parts("w", payload, communicator, most, communicator.rank == 2),
        torch.zeros(ROWS * COLUMNS),
        [],
    )

    def add(handle: Gathered, start: int, stop: int) -> None:
        buffers = handle.wait()
        sizes.append((id(handle), sum(buffer.nbytes for buffer in buffers)))
        for buffer in buffers:
            compressor.add_part_(total[start:stop], parts.received(buffer), start)

    somewhere = parts.somewhere
    for start in range(0, ROWS * COLUMNS, 1000):
        stop = min(start + 1000, ROWS * COLUMNS)
        parts.through(stop, partial(add, start=start, stop=stop))
    each = [nbytes for (one, nbytes), before in zip(sizes, [(0, 0), *sizes], strict=False) if one != before[0]]
    return total, len(each), max(each), somewhere


@pytest.mark.parametrize("kind", ["anywhere", "hot", "apart"])
@pytest.mark.parametrize(("compressor", "most"), [("topk", 400), ("topk", 4000), ("gaussian", 4000), ("topk", 10**9)])
def test_parts_are_all_of_all_ranks_in_their_order_and_within_the_bound(compressor: str, kind: str, most: int) -> None:
    one = build_compressor(compressor, 0.05)
    expected = np.zeros(ROWS * COLUMNS, dtype=np.float32)
    for rank in range(3):
        values, indices = one.compress(gradient(rank, kind), f"w/{rank}", 0).parts()
        expected[indices.numpy()] += values.numpy()
    for total, count, largest, somewhere in LocalWorld(3).run(lambda c: in_parts(c, one, kind, most)):
        np.testing.assert_array_equal(total.numpy(), expected)
        assert somewhere, "rank 2 has a gradient"
        # Half of it, and the filling up to a multiple of 8 elements on each of the ranks.
        assert largest <= most / 2 + 3 * 8 * 8
        assert (count == 1) == (most == 10**9)


def test_a_bound_below_one_element_of_each_rank_sends_one_at_a_time() -> None:
    """Many ranks of a small model: its share of the bytes is less than what a part takes at least."""
    for total, count, largest, _ in LocalWorld(2).run(lambda c: in_parts(c, TopK(0.001), "hot", 10)):
        assert count > 13 and largest == 2 * 8 * 8 and int(total.count_nonzero()) > 13


def test_nobody_has_a_gradient() -> None:
    assert not any(LocalWorld(2).run(lambda c: in_parts(c, TopK(0.05), "hot", 5000)[-1]))


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of tensors whose messages went in parts; gradients are whole, whose rows might round otherwise."""
    names: list[str] = []
    own = Parts.__init__

    def noting(self: Parts, name: str, *args: object) -> None:
        names.append(name)
        own(self, name, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Parts, "__init__", noting)
    monkeypatch.setattr(TopK, "selects_from_parts", lambda self, like: False)
    yield names


def trained(world_size: int, slices: int | None, **options: object) -> list[tuple[nn.Module, DistributedOptimizer]]:
    """Training with residuals that absorb no gradients."""
    given = {"scheme": "baseline", "optimizer": "adamw", "steps": 3, "residual_dtype": "bfloat16", **options}
    return train_world(world_size, seeded(lambda: Net(blocks=1)), slices=slices, **given)


@pytest.mark.parametrize(("world_size", "compressor"), [(2, "topk"), (3, "topk"), (3, "gaussian"), (2, "dgc")])
def test_parameters_are_those_of_whole_messages(used: list[str], world_size: int, compressor: str) -> None:
    whole, cut = (trained(world_size, slices, compressor=compressor) for slices in (None, 4096))
    assert len(used) >= 3 * world_size
    for (model, first), (other, second) in zip(whole, cut, strict=True):
        assert same(model, other)
        expected, found = first.residual_state_dict(), second.residual_state_dict()
        assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_a_density_that_changes(used: list[str]) -> None:
    whole, cut = (trained(2, slices, density=lambda step: 0.2 / (step + 1)) for slices in (None, 4096))
    assert used and same(whole[0][0], cut[1][0])


def some_layers(communicator: Communicator, start: nn.Module, slices: int | None, late_hook: bool) -> nn.Module:
    """Training in which rank 1 uses one layer of four, and nobody the last; a hook of rank 0's may come late."""
    model = copy.deepcopy(start)
    wrapped = torch.optim.Adam(model.parameters(), 1e-3)
    optimizer = distributed(model, wrapped, backend=communicator, slices=slices, density=0.1, residual_dtype="bfloat16")
    if late_hook and not communicator.rank:
        wrapped.register_step_pre_hook(lambda *_: None)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.ones(2, 130).mul_(step + 1)
        (model[0](x) if communicator.rank else model[:3](x)).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("late_hook", [False, True])
def test_layers_that_some_ranks_do_not_use(used: list[str], late_hook: bool) -> None:
    start = seeded(lambda: nn.Sequential(*[nn.Linear(130, 130) for _ in range(4)]))
    whole, cut = (LocalWorld(2).run(lambda c, s=s: some_layers(c, start, s, late_hook)) for s in (None, 4096))
    assert used
    for model in cut:
        assert same(model, whole[0])
        assert torch.equal(model[3].weight, start[3].weight) and not torch.equal(model[1].weight, start[1].weight)


@pytest.mark.parametrize("options", [{"max_grad_norm": 1.0}, {"slices": None}, {"compressor": "qsgd"}])
def test_messages_that_are_not_cut(used: list[str], options: dict[str, object]) -> None:
    trained(2, **{"slices": 4096, "steps": 1, **options})  # type: ignore[arg-type]
    assert not used


def test_a_plan_of_many_ranks_is_near_that_of_two() -> None:
    def peak(world_size: int, slices: int | None) -> int:
        return int(
            plan(lambda: nn.Linear(600, 100), world_size=world_size, scheme="baseline", slices=slices)["peak_states"]
        )

    parameters, told = 601 * 100 * 4, 257 * 4
    # All ranks' parts, a 40th of the parameters; what ranks tell one another; the message of the bias is no part.
    assert peak(32, 4096) - peak(2, 4096) < parameters / 40 + 32 * told + 1000
    assert peak(32, None) - peak(2, None) > parameters / 5
