"""A weight that several layers share, whose residual absorbs no gradient: one part of its gradient whole, or none."""

import contextlib
import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.errors import NonFiniteGradient
from resireduce.optimizer import DistributedOptimizer
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes, track_states
from resireduce.planning.slice_price import price_of_slices
from resireduce.scheme import NONE, ROWS_COLUMNS, Scheme
from resireduce.slices.row_layers import THRICE, TWICE
from tests.worlds import distributed, same, seeded

WORDS, WIDTH, SLICE = 640, 64, 8192
WHOLE = WORDS * WIDTH * 4
MANY, FEW = 96, 24
"""Tokens of a batch: with so many, what the head was given takes more than its weight, and with so few less."""
WAYS = {
    "int8": {"scheme": "baseline", "residual_dtype": "int8"},
    "int4": {"scheme": "baseline", "residual_dtype": "int4"},
    "rows and columns": {"scheme": Scheme(NONE, ROWS_COLUMNS, NONE), "groups": {"specific": ["embedding.weight"]}},
}


class Tied(nn.Module):
    """An embedding whose weight is that of the head, too, and a layer between them."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding, self.between = nn.Embedding(WORDS, width), nn.Linear(width, width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.head(torch.relu(self.between(self.embedding(x)))), x.flip(0))


def tokens(count: int, seed: int) -> Tensor:
    return torch.randint(0, WORDS, (count,), generator=torch.Generator().manual_seed(seed))


def tied(
    way: str, slices: int | None, communicator: Communicator | None = None, start: Tied | None = None
) -> tuple[Tied, DistributedOptimizer]:
    model = copy.deepcopy(start) if start else seeded(Tied)
    optimizer = resireduce.distribute(
        model, torch.optim.SGD(model.parameters(), 0.5, momentum=0.9), density=0.05,
        backend=communicator or LocalCommunicator(), slices=slices, **WAYS[way],  # type: ignore[arg-type]
    )  # fmt: skip
    return model, optimizer


def trained(communicator: Communicator, start: Tied, slices: int | None, way: str, count: int) -> Tied:
    model, optimizer = tied(way, slices, communicator, start)
    for step in range(4):
        optimizer.zero_grad()
        if step == 2 and communicator.rank:  # one use alone, that of the embedding
            model.between(model.embedding(tokens(count, step))).square().sum().backward()
        else:
            model(tokens(count, 10 * step + communicator.rank)).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("way", WAYS)
def test_training_has_the_bits_of_whole_gradients_where_the_heads_part_is_whole(way: str) -> None:
    start = seeded(Tied)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, cut = (LocalWorld(2).run(lambda c, s=s: trained(c, start, s, way, MANY)) for s in (None, SLICE))
    assert same(whole[0], cut[0]) and same(cut[0], cut[1]) and not same(cut[0], start)


@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_that_of_whole_gradients_but_for_rounding_where_no_part_is_whole(way: str) -> None:
    """Products of fewer rows may add up in another order. One step: later ones select by what that has changed."""
    found = []
    for slices in (None, SLICE):
        model, optimizer = tied(way, slices)
        model(tokens(FEW, 0)).backward()
        optimizer.step()
        found.append(dict(model.named_parameters()))
    torch.testing.assert_close(found[1], found[0], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize(("count", "wholes"), [(FEW, 0), (MANY, 1)])
def test_so_many_whole_gradients_are_alive_at_most(count: int, wholes: int) -> None:
    alive = {}
    for slices in (None, SLICE):
        model, optimizer = tied("int8", slices)
        model(tokens(count, 0)).backward()
        optimizer.step()  # makes the optimizer's state
        optimizer.zero_grad()
        loss = model(tokens(count, 1))
        with LiveBytes(lambda tensor: tensor.shape == (WORDS, WIDTH) and tensor.is_floating_point()) as found:
            loss.backward()
            optimizer.step()
        alive[slices] = found.peak_bytes / WHOLE
    assert alive[None] >= 2 and alive[SLICE] == wholes, "autograd makes each use's gradient whole, and adds them up"


@pytest.mark.parametrize("use", ["head", "embedding"])
@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_use_that_is_not_finite_leaves_the_residual_as_before(use: str, count: int) -> None:
    model, optimizer = tied("int8", SLICE)
    model(tokens(count, 0)).backward()
    optimizer.step()
    held = optimizer.feedback.residual.tensors()
    before = {key: tensor.clone() for key, tensor in held.items()}
    optimizer.zero_grad()
    bad = model.head(torch.ones(1, WIDTH)) if use == "head" else model.embedding(tokens(1, 1))
    (bad.sum() * torch.nan + model(tokens(count, 2))).backward()
    with pytest.raises(NonFiniteGradient, match=r"embedding\.weight"):
        optimizer.step()
    assert before and all(torch.equal(tensor, before[key]) for key, tensor in held.items())


def scaled(slices: int | None = SLICE) -> tuple[Tied, DistributedOptimizer, resireduce.GradScaler]:
    """A residual that absorbs gradients, and a scale that a step may overflow at."""
    model, scaler = seeded(lambda: Tied(112)), resireduce.GradScaler("cpu", init_scale=8.0)
    optimizer = distributed(model, lr=0.5, density=0.05, slices=slices, grad_scaler=scaler)
    return model, optimizer, scaler


def broken(hidden: Tensor) -> Tensor:
    """Return `hidden` itself, whose gradient will be infinite."""
    hidden.register_hook(lambda grad: grad * torch.inf)
    return hidden


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("count", [FEW, 2 * MANY])
@pytest.mark.parametrize("use", ["head", "embedding", "between"])
def test_a_use_that_overflows_takes_the_others_of_the_pass_with_it(use: str, count: int, passes: int) -> None:
    """Whichever it is, and whether what came before it is kept or whole: an absorbing residual is as before the pass.

    `between` is one layer that is used twice.
    """
    model, optimizer, scaler = scaled()
    for step in range(3):
        optimizer.zero_grad()
        held = optimizer.feedback.residual.tensors()
        for one in range(passes):
            bad = step == 1 and one == passes - 1
            hidden = torch.relu(model.embedding(tokens(count, 10 * step + one)))
            hidden = model.between(broken(hidden * 1) if bad and use == "embedding" else hidden)
            hidden = model.between(broken(hidden * 1) if bad and use == "between" else hidden)
            out = model.head(hidden)
            before = {key: tensor.clone() for key, tensor in held.items()}
            with optimizer.no_sync() if one < passes - 1 else contextlib.nullcontext():
                scaler.scale((broken(out * 1) if bad and use == "head" else out).square().mean()).backward()
        spoilt = ["embedding"] if use == "embedding" else ["embedding", "between"]
        for name in spoilt if step == 1 else ():
            assert torch.equal(held[f"full.{name}.weight"], before[f"full.{name}.weight"]), name
        scaler.step(optimizer)
        assert optimizer.overflowed == (step == 1)
        scaler.update()
        for name in spoilt if step == 1 else ():
            assert torch.equal(held[f"full.{name}.weight"], before[f"full.{name}.weight"]), name


def test_a_use_outside_of_layers_that_overflows_takes_theirs_with_it() -> None:
    """A weight is used by layers, whose gradients wait as rows, and by a sum, whose whole gradient then overflows."""
    model, optimizer, scaler = scaled()
    for step in range(2):
        optimizer.zero_grad()
        held = optimizer.feedback.residual.tensors()
        before = {key: tensor.clone() for key, tensor in held.items()}
        out = model.head(torch.relu(model.embedding(tokens(FEW, step))))
        beside = model.embedding.weight.sum() * (torch.inf if step else 1e-3)
        scaler.scale(out.square().mean() + beside).backward()
        assert torch.equal(held["full.embedding.weight"], before["full.embedding.weight"]) == (step == 1)
        scaler.step(optimizer)
        assert optimizer.overflowed == (step == 1)
        scaler.update()


@pytest.mark.parametrize("count", [FEW, 2 * MANY])
def test_a_scale_that_nothing_overflows_at_changes_nothing(count: int) -> None:
    """But for rounding where a part is whole with it: without a scaler each use is absorbed by itself."""
    model, optimizer, scaler = scaled()
    plain = seeded(lambda: Tied(112))
    other = distributed(plain, lr=0.5, density=0.05, slices=SLICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            optimizer.zero_grad()
            other.zero_grad()
            scaler.scale(model(tokens(count, step))).backward()
            plain(tokens(count, step)).backward()
            scaler.step(optimizer)
            scaler.update()
            other.step()
    assert same(model, plain) == (count == FEW)
    torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()), atol=1e-6, rtol=1e-5)


def test_what_is_shared_is_said_and_counted() -> None:
    for way, times in (("int8", TWICE), ("rows and columns", THRICE)):
        _, optimizer = tied(way, SLICE)
        assert "embedding.weight" not in optimizer.whole_gradients
        reason = optimizer.twice_gradients["embedding.weight"]
        assert reason.startswith(times) and "several layers share it" in reason
        elements = sum(slot.parameter.numel() for slot in optimizer.slots)
        again = price_of_slices(optimizer, SLICE).made_again * elements
        assert again >= (2 if times == THRICE else 1) * WORDS * WIDTH


def test_the_plan_takes_the_heads_part_to_be_whole() -> None:
    model, optimizer = tied("int8", SLICE)
    for step in range(2):
        optimizer.zero_grad()
        loss = model(tokens(MANY, step))
        with track_states(optimizer) as tracker:
            loss.backward()
            optimizer.step()
    planned = plan(
        Tied, optimizer_args={"lr": 0.5, "momentum": 0.9}, world_size=1, slices=SLICE, density=0.05, **WAYS["int8"]
    )  # type: ignore[arg-type]
    assert abs(tracker.peak_bytes - planned["peak_states"]) < 0.02 * planned["peak_states"]
    assert planned["peak_states"] > planned["total"] + WHOLE
