"""What all ranks start from: what is compared and sent at the start, what stays each rank's own, and what a failure
leaves."""

import copy
import io
import pickle
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves, tree_map

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.topk import TopK
from resireduce.errors import ConfigError
from resireduce.residuals.base import FullResidual
from resireduce.scheme import Scheme
from tests.threads import LocalWorld
from tests.worlds import Net, loss_of, seeded

DENSE: dict[str, Any] = {"compressor": "none", "scheme": "none"}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(10 * step + rank)).backward()
        optimizer.step()


@pytest.mark.parametrize("own", [True, False])
def test_states_that_differ_stay_where_that_is_said_and_are_not_overwritten_without_a_word(own: bool) -> None:
    """Each of two ranks holds the momentum of every second parameter."""

    def rank(communicator: Communicator) -> bool:
        model = seeded(Net)
        plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for one in [*model.parameters()][communicator.rank :: 2]:
            plain.state[one]["momentum_buffer"] = torch.full_like(one, 3.0 + communicator.rank)
        plain.state_differs_by_rank = own  # type: ignore[attr-defined]
        before = copy.deepcopy(plain.state_dict()["state"])
        said = r"ranks hold the state of different parameters.*_by_rank = True.*that of (first|blocks\.\d\.up)\.weight"
        said = said if communicator.rank else "another rank says which"
        with nullcontext() if own else pytest.raises(ConfigError, match=said):
            resireduce.distribute(model, plain, backend=communicator, **DENSE).close()
        after = plain.state_dict()["state"]
        momenta = [(after[number]["momentum_buffer"], one["momentum_buffer"]) for number, one in before.items()]
        return before.keys() == after.keys() and all(torch.equal(*pair) for pair in momenta)

    assert all(LocalWorld(2).run(rank))


@pytest.mark.parametrize(
    "held",
    [
        lambda one: torch.full_like(one, 3.0),
        lambda one: 5,
        lambda one: {"list": [torch.full_like(one, 3.0), 2], "number": 5},
        lambda one: {"momentum": torch.full_like(one, 3.0)},
        lambda one: {"sparse": torch.full_like(one, 3.0).to_sparse()},
        lambda one: {"in two parts": TwoTensor(torch.full_like(one, 3.0), torch.full_like(one, 4.0))},
    ],
)
def test_the_state_of_a_parameter_is_rank_0s_whatever_it_is(held: Callable[[Tensor], Any]) -> None:
    def rank(communicator: Communicator) -> list[tuple[Any, Any]]:
        model = seeded(Net)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        if communicator.rank == 0:  # a checkpoint that was loaded there
            plain.state.update({one: held(one) for one in model.parameters()})
        with resireduce.distribute(model, plain, backend=communicator, **DENSE) as optimizer:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        return [(plain.state[one], held(one)) for one in model.parameters()]

    for pairs in LocalWorld(2).run(rank):
        for mine, right in pairs:
            assert [type(one) for one in tree_leaves(mine)] == [type(one) for one in tree_leaves(right)]
            torch.testing.assert_close(_plain(mine), _plain(right), rtol=0, atol=0)


@pytest.mark.parametrize("of_all", [False, True])
def test_what_is_no_value_stays_on_its_rank_and_what_cannot_be_overwritten_is_rank_0s(of_all: bool) -> None:
    """Locks and functions, alone and in lists and sets; and states whose elements share memory."""

    def rank(communicator: Communicator) -> bool:
        model = seeded(Net)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        own: list[Any] = [threading.Lock(), lambda: communicator.rank]
        plain.state.update({"lock": own[0], "several": {"of": own[1], "all": {own[0]}, "number": communicator.rank}})
        for one in model.parameters():
            expanded = torch.full((1,), float(communicator.rank)).expand(one.shape)
            plain.state[one] = [expanded, own[1]] if of_all else {"momentum": expanded, "by": own}
        resireduce.distribute(model, plain, backend=communicator, **DENSE).close()
        several, number = plain.state["several"], communicator.rank
        kept = plain.state["lock"] is own[0] and several == {"of": own[1], "all": {own[0]}, "number": 0}
        for one in model.parameters():
            held = plain.state[one]
            if of_all:
                kept &= bool((held[0] == number).all()) and held[1] is own[1]
            else:
                kept &= bool((held["momentum"] == 0).all()) and held["by"] is own
        return bool(kept)

    assert LocalWorld(2).run(rank) == [True, True]


def test_views_of_one_buffer_stay_that() -> None:
    """A fused optimizer updates the states of all parameters through it."""

    def rank(communicator: Communicator) -> list[bool]:
        model = seeded(Net)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        sizes = [one.numel() for one in model.parameters()]
        flat = torch.full((sum(sizes),), 3.0 + communicator.rank)
        for one, view in zip(model.parameters(), flat.split(sizes), strict=True):
            plain.state[one]["momentum"] = view.view(one.shape)
        resireduce.distribute(model, plain, backend=communicator, **DENSE).close()
        flat.add_(1)
        return [bool((plain.state[one]["momentum"] == 4).all()) for one in model.parameters()]

    assert all(map(all, LocalWorld(2).run(rank)))


def test_no_more_is_sent_at_once_than_the_state_of_one_parameter() -> None:
    sizes: list[int] = []

    def rank(communicator: Communicator) -> None:
        model = seeded(Net)
        plain = torch.optim.AdamW(model.parameters(), lr=0.1)
        if communicator.rank == 0:
            loss_of(model, torch.Generator()).backward()
            plain.step()
            sends = communicator.broadcast_
            communicator.broadcast_ = lambda one, name: sizes.append(one.nbytes) or sends(one, name)  # type: ignore
        resireduce.distribute(model, plain, backend=communicator, **DENSE).close()

    LocalWorld(2).run(rank)
    largest = max(one.nbytes for one in seeded(Net).parameters())
    assert 2 * largest < max(sizes) < 2 * largest + 5000


def _plain(state: Any) -> Any:
    """Return `state` with the parts of tensors that wrap others in the place of these."""
    return tree_map(lambda one: [one.a, one.b] if isinstance(one, TwoTensor) else one, state)


def fail(*_: object, **__: object) -> NoReturn:
    raise MemoryError("here")


class Third(FullResidual):
    """Finds no memory for the third tensor."""

    def register(self, name: str, parameter: Tensor) -> None:
        super().register(name, parameter) if len(self.tensors()) < 2 else fail()


class Failing(TopK):
    """Fails where it hears how many ranks there are."""

    for_world = fail  # type: ignore[assignment]


@pytest.mark.parametrize(
    "options",
    [{"scheme": Scheme(Third, Third, Third)}, {"compressor": Failing(0.1)}, {"density": fail}, {}],
    ids=["scheme", "compressor", "density", "none of them"],
)
def test_a_failure_anywhere_leaves_all_as_before(options: dict[str, Any]) -> None:
    """Without options: where what all ranks start from is sent, which comes last."""

    def rank(communicator: LocalCommunicator) -> None:
        (model, expected), sends = pairs[communicator.rank], communicator.broadcast_
        plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        loss_of(model, torch.Generator().manual_seed(9)).backward()
        gradients = [one.grad for one in model.parameters()]
        model.load_state_dict(expected.state_dict())  # as before the pass: running statistics
        communicator.broadcast_ = communicator.broadcast_ if options else fail  # type: ignore[method-assign]
        with pytest.raises(MemoryError, match="here"):
            resireduce.distribute(model, plain, backend=communicator, **options)
        assert all(one.grad is grad for one, grad in zip(model.parameters(), gradients, strict=True))
        train(model, plain, 0, range(3))
        train(expected, torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9), 0, range(3))
        assert all(map(torch.equal, model.parameters(), expected.parameters()))
        assert not any(one._post_accumulate_grad_hooks for one in model.parameters())
        communicator.broadcast_ = sends  # type: ignore[method-assign]
        resireduce.distribute(model, plain, backend=communicator).close()

    pairs = [(seeded(Net), seeded(Net)) for _ in range(2)]
    LocalWorld(2).run(rank)


@pytest.mark.parametrize("gradients", ["streamed", "kept"])
def test_a_model_that_holds_no_sync_can_be_copied_and_a_copy_trains_plainly(gradients: str) -> None:
    model, expected = seeded(Net), seeded(Net)
    plain = torch.optim.SGD(model.parameters(), 0.1)
    with resireduce.distribute(model, plain, backend=LocalCommunicator(), gradients=gradients, **DENSE) as optimizer:
        model.no_sync = optimizer.no_sync
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
        copies.append(torch.optim.swa_utils.AveragedModel(model).module)
        with model.no_sync():
            loss_of(model, torch.Generator().manual_seed(5)).backward()
    train(expected, torch.optim.SGD(expected.parameters(), 0.1), 0, range(2))
    for one in copies:
        with one.no_sync():
            train(one, torch.optim.SGD(one.parameters(), 0.1), 0, range(2))
        assert all(map(torch.equal, one.parameters(), expected.parameters()))
