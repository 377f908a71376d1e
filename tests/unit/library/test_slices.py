"""Averages of large tensors that come back, and are used, in slices of rows."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.blocks import ALIGNED, row_slices
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.compressors.topk import TopK
from resireduce.errors import ConfigError
from resireduce.payload import Payload
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes, held_tensors
from resireduce.scheme import COMPRESSORS, build_compressor
from resireduce.slices.row_step import footprint
from tests.worlds import OPTIMIZERS, Net, distributed, loss_of, same, seeded, train, train_world

SLICE = 4096
KINDS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "nesterov": OPTIMIZERS["nesterov"],
    "fused-adamw": OPTIMIZERS["fused-adamw"],
    "amsgrad": lambda p: torch.optim.Adam(p, 1e-3, amsgrad=True, weight_decay=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2, lr_decay=1e-3),
}


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, make in KINDS.items():
        monkeypatch.setitem(OPTIMIZERS, name, make)


def states(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
    """Every value of the optimizer's state, by parameter and name."""
    found = optimizer.state_dict()["state"]
    return {(i, key): torch.as_tensor(value) for i, state in found.items() for key, value in state.items()}


@pytest.mark.parametrize(("rows", "width"), [(1, 5), (7, 64), (300, 3), (64, 1000), (129, 33)])
def test_slices_are_all_rows_once_and_begin_aligned(rows: int, width: int) -> None:
    cut = row_slices(torch.Size((rows, width)), 4, 2048)
    assert [row for part in cut for row in range(part.start, part.stop)] == list(range(rows))
    assert all(part.start * width % ALIGNED == 0 for part in cut)
    unit = next(n for n in range(1, 65) if n * width % ALIGNED == 0)
    lengths = [part.stop - part.start for part in cut]
    assert max(lengths) * width * 4 <= max(2048, unit * width * 4)
    assert len(set(lengths[:-1])) <= 1 and lengths[0] - lengths[-1] < unit * len(cut), "none is much shorter"
    assert len(cut) == -(-rows // max(2048 // (width * 4) // unit * unit, unit)), "and they are as few as that allows"


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_and_states_are_those_of_whole_averages(kind: str, world_size: int) -> None:
    start = seeded(lambda: Net(blocks=1))
    options = {"optimizer": kind, "scheme": "baseline", "steps": 8}
    whole = train_world(world_size, start, **options)
    cut = train_world(world_size, start, slices=SLICE, **options)
    for (model, _), (other, _) in zip(whole, cut, strict=True):
        assert same(model, other)
    expected, found = states(whole[0][1].wrapped), states(cut[0][1].wrapped)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value) and found[key].stride() == value.stride(), key


@pytest.mark.parametrize("compressor", ["none", "fp16", "qsgd", "randomk", "signsgd", "dgc", "adtopk", "topk+packed"])
def test_parameters_are_the_same_whatever_a_message_holds(compressor: str) -> None:
    options = {"scheme": "baseline", "compressor": compressor, "optimizer": "adamw", "steps": 4}
    whole, cut = (train_world(2, seeded(Net), slices=slices, **options) for slices in (None, SLICE))
    assert same(whole[0][0], cut[0][0]) and same(whole[1][0], cut[1][0])


@pytest.mark.parametrize("compressor", [name for name in COMPRESSORS if build_compressor(name, 0.1).cuts])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_payload_are_parts_of_what_it_stands_for(compressor: str, dtype: torch.dtype) -> None:
    grad = torch.randn(50, 9, generator=torch.Generator().manual_seed(1)).to(dtype)
    one = build_compressor(compressor, 0.1)
    payload = one.compress(grad.clone(), "w", 0)
    expected = one.decompress(payload).view(-1)
    assert expected.any()
    parts = [one.add_part_(torch.zeros(stop - start, dtype=dtype), payload, start) for start, stop in
             ((0, 1), (1, 200), (200, 200), (200, 450))]  # fmt: skip
    assert torch.equal(torch.cat(parts), expected)


class Doubled(TopK):
    """Adds twice what was sent, as a whole; nothing is said of parts."""

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        return super().add_(dense, payload, 2 * scale)


def test_what_a_subclass_adds_is_not_cut_in_its_parents_way() -> None:
    assert TopK(0.1).cuts and not Doubled(0.1).cuts
    options = {"scheme": "none", "compressor": Doubled(0.05), "steps": 3}
    whole, cut = (train(LocalCommunicator(), seeded(Net), slices=slices, **options)[0] for slices in (None, SLICE))
    assert same(whole, cut)


def most_dense(slices: int | None) -> int:
    """Most bytes, at once, of tensors of more than 8 rows of 600, the fewest that begin aligned, in a step of Adam."""
    model, optimizer = train(
        LocalCommunicator(), seeded(Net), optimizer="adam", scheme="baseline", density=0.01, steps=2, slices=slices
    )
    held = [tensor for tensors in held_tensors(optimizer).values() for tensor in tensors]
    alive = LiveBytes(lambda tensor: tensor.is_floating_point() and tensor.nbytes > 8 * 600 * 4, held)
    before = alive.current_bytes
    loss_of(model, torch.Generator()).backward()
    with alive:
        optimizer.step()
    return alive.peak_bytes - before


def test_no_average_larger_than_a_slice_is_alive_in_a_step() -> None:
    assert most_dense(None) > 3 * SLICE
    assert most_dense(SLICE) == 0


GROUPS: dict[str, tuple[int, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "sgd": (1, lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (1, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "decay": (2, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1)),
    "nesterov": (3, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True)),
    "adam": (3, lambda p: torch.optim.Adam(p, 0.1)),
    "adamw": (3, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
    "l2": (4, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1)),
    "rmsprop": (2, lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9, centered=True)),
    "adagrad": (3, lambda p: torch.optim.Adagrad(p, 0.1, weight_decay=0.1)),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_footprint_is_what_a_step_has_at_once(kind: str) -> None:
    most, make = GROUPS[kind]
    parameter = nn.Parameter(torch.ones(64, 64))
    optimizer = make([parameter])
    for _ in range(2):  # the first makes the state
        parameter.grad = torch.ones(64, 64)
        with LiveBytes(lambda tensor: tensor.numel() == 64 * 64, [parameter.grad]) as alive:
            optimizer.step()
    held, made = footprint(optimizer)
    assert made == most == alive.peak_bytes // parameter.nbytes
    state = optimizer.state[parameter].values()
    assert held <= sum(isinstance(value, Tensor) and value.numel() > 1 for value in state)


def test_a_footprint_of_groups_that_differ_holds_what_all_hold_and_makes_what_one_makes() -> None:
    """A group with momentum has states, and one with weight decay makes a tensor more."""
    first, second = (nn.Parameter(torch.ones(8, 8)) for _ in range(2))
    groups = [{"params": [first], "momentum": 0.9}, {"params": [second], "momentum": 0.0, "weight_decay": 0.1}]
    assert footprint(torch.optim.SGD(groups, 0.1)) == (0, 2)


def test_slices_are_larger_where_an_optimizer_makes_less_of_them() -> None:
    def size(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
        model = nn.Sequential(nn.Linear(2000, 2000, bias=False, device="meta"))
        optimizer = resireduce.distribute(model, make([*model.parameters()]), backend="local", slices=True)
        return optimizer._exchange.updater.sizes.average / (4 * 2000 * 2000)

    plain, decayed, adam = (size(GROUPS[kind][1]) for kind in ("momentum", "decay", "adam"))
    assert decayed < 0.7 * plain, "one tensor more for each slice"
    assert adam < decayed < plain < 1 / 30


def test_a_plan_knows_what_slices_save() -> None:
    whole, cut = (plan(Net, optimizer="adamw", scheme="baseline", slices=slices) for slices in (None, SLICE))
    assert {key: whole[key] for key in ("total", "residuals")} == {key: cut[key] for key in ("total", "residuals")}
    assert cut["peak_states"] < whole["peak_states"]


@pytest.mark.parametrize("kind", ["fused-momentum", "fused-adamw", "momentum"])
def test_columns_that_lie_one_after_the_other(kind: str) -> None:
    """Rows of such a weight are not in one piece of memory, which fused optimizers take for granted."""
    start = seeded(Net)
    start.first.weight = nn.Parameter(start.first.weight.detach().t().contiguous().t())
    whole, cut = (train(LocalCommunicator(), start, optimizer=kind, steps=3, slices=size)[0] for size in (None, 4096))
    torch.testing.assert_close(dict(cut.named_parameters()), dict(whole.named_parameters()))


def test_a_layer_that_one_rank_does_not_use() -> None:
    def rank(communicator: Communicator, slices: int | None) -> nn.Module:
        model = copy.deepcopy(start)
        optimizer = distributed(model, torch.optim.Adam(model.parameters(), 1e-3), backend=communicator, slices=slices)
        for step in range(4):
            optimizer.zero_grad()
            x = torch.ones(2, 130).mul_(step + 1)
            (model[0](x) if communicator.rank else model(x)).square().mean().backward()
            optimizer.step()
        return model

    start = seeded(lambda: nn.Sequential(*[nn.Linear(130, 130) for _ in range(3)]))
    whole, cut = (LocalWorld(2).run(lambda c, s=slices: rank(c, s)) for slices in (None, SLICE))
    assert same(whole[0], cut[0]) and same(cut[0], cut[1]) and not same(cut[0], start)


def test_clipping_measures_slices() -> None:
    options = {"scheme": "baseline", "max_grad_norm": 0.5, "steps": 3}
    (whole, first), (cut, second) = (
        train(LocalCommunicator(), seeded(Net), slices=slices, **options) for slices in (None, SLICE)
    )
    torch.testing.assert_close(second.grad_norm, first.grad_norm)
    for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("world_size", [1, 2])
def test_averages_that_need_no_clipping_have_the_bits_of_whole_ones(world_size: int) -> None:
    options = {"scheme": "baseline", "max_grad_norm": 1e6, "steps": 3}
    whole, cut = (train_world(world_size, seeded(Net), slices=slices, **options) for slices in (None, SLICE))
    for (model, _), (other, optimizer) in zip(whole, cut, strict=True):
        assert same(model, other) and optimizer.grad_norm < 1e6


def test_a_limit_of_each_ranks_norm_is_refused_with_its_reason() -> None:
    reason = r"max_local_grad_norm: 1.0 is not allowed with gradients='streamed', which are sent before the norm of all"
    with pytest.raises(ConfigError, match=reason):
        train(LocalCommunicator(), seeded(Net), slices=SLICE, max_local_grad_norm=1.0)


@pytest.mark.parametrize("max_grad_norm", [None, 1e6])
def test_a_step_that_is_skipped_for_overflow_skips_every_slice(max_grad_norm: float | None) -> None:
    def run(slices: int | None) -> tuple[nn.Module, list[bool]]:
        model, scaler = seeded(Net), resireduce.GradScaler("cpu", init_scale=16.0)
        wrapped = torch.optim.Adam(model.parameters(), 1e-3)
        optimizer = distributed(model, wrapped, grad_scaler=scaler, slices=slices, max_grad_norm=max_grad_norm)
        skipped = []
        for step in range(4):
            optimizer.zero_grad()
            before = copy.deepcopy(model)
            loss = loss_of(model, torch.Generator().manual_seed(step))
            scaler.scale(loss * (torch.inf if step == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped.append(same(before, model))
        return model, skipped

    (whole, expected), (cut, found) = run(None), run(SLICE)
    assert found == expected == [False, True, False, False]
    assert same(whole, cut)


class Careful(torch.optim.SGD):
    """A subclass may do anything in its step."""

    step_is_separable = True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slices": 0}, r"slices: 0 is not allowed; give True, or a number of bytes, 1,024 or more"),
        ({"slices": "all"}, r"slices: 'all' is not allowed"),
        ({"slices": True, "gradients": "kept"}, r"slices: True is not allowed with gradients='kept'"),
        ({"slices": True, "update": "in_backward", "compressor": "none"}, r"not allowed with update='in_backward'"),
    ],
)
def test_slices_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(LocalCommunicator(), seeded(Net), **options)


@pytest.mark.parametrize("kind", [Careful, torch.optim.Adadelta, torch.optim.NAdam])
def test_optimizers_that_are_not_of_the_list(kind: Callable[..., torch.optim.Optimizer]) -> None:
    model, name = seeded(Net), getattr(kind, "__name__", "")
    with pytest.raises(ConfigError, match=rf"slices: True is not allowed with {name}, which .* by itself"):
        resireduce.distribute(model, kind(model.parameters(), 0.1), backend="local", slices=True)
    whole = plan(Net, optimizer=lambda parameters: kind(parameters, 0.1))
    assert whole["total"] > 0, "without slices they are as ever"


def test_a_hook_before_the_step_may_look_at_all_gradients() -> None:
    model = seeded(Net)
    wrapped = torch.optim.SGD(model.parameters(), 0.1)
    wrapped.register_step_pre_hook(lambda *_: None)
    with pytest.raises(ConfigError, match=r"slices: 4096 is not allowed with SGD, which has a hook before its step"):
        resireduce.distribute(model, wrapped, backend="local", slices=4096)
