"""Streamed = kept, bit for bit; and how both are used rightly and wrongly."""

import contextlib
import copy
from functools import cache
from itertools import cycle, product

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.local import LocalCommunicator
from resireduce.scheme import COMPRESSORS, GRADIENTS, SCHEMES
from tests.threads import LocalWorld
from tests.worlds import (
    OPTIMIZERS,
    Net,
    distributed,
    loss_of,
    reloaded,
    same,
    seeded,
    take_steps,
    train,
    train_world,
)


@pytest.mark.parametrize(("optimizer", "world_size"), [*((name, 2) for name in OPTIMIZERS), ("momentum", 1)])
def test_streamed_is_kept_for_every_optimizer(optimizer: str, world_size: int) -> None:
    model = seeded(Net)
    for scheme, compressor in (("baseline", "topk"), ("w+2d", "topk"), ("none", "none")):
        options = {"optimizer": optimizer, "scheme": scheme, "compressor": compressor, "steps": 4}
        kept = train_world(world_size, model, gradients="kept", **options)
        streamed = train_world(world_size, model, gradients="streamed", **options)
        assert same(kept[0][0], streamed[0][0]), (scheme, compressor)
        assert not same(kept[0][0], model)
        assert all(same(streamed[0][0], other) for other, _ in streamed), "ranks drifted apart"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_streamed_is_kept_for_every_scheme_on_three_ranks(scheme: str) -> None:
    model = seeded(Net)
    kept, streamed = (train_world(3, model, scheme=scheme, gradients=g, steps=5) for g in ("kept", "streamed"))
    assert same(kept[0][0], streamed[2][0])


@cache
def in_full_precision(scheme: str) -> nn.Module:
    return train_world(2, seeded(Net), scheme=scheme, steps=4)[0][0]


@pytest.mark.parametrize("scheme", ["baseline", "w+2d", "partial"])
@pytest.mark.parametrize("residual_dtype", ["bfloat16", "float8_e4m3", "int8", "int4"])
def test_streamed_is_kept_in_every_precision(residual_dtype: str, scheme: str) -> None:
    model, options = seeded(Net), {"residual_dtype": residual_dtype, "scheme": scheme, "steps": 4}
    kept, streamed = (train_world(2, model, gradients=gradients, **options) for gradients in ("kept", "streamed"))
    assert same(kept[0][0], streamed[1][0]) and not same(kept[0][0], in_full_precision(scheme))


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_streamed_is_kept_for_every_compressor_on_three_ranks(compressor: str) -> None:
    model = seeded(Net)
    kept, streamed = (
        train_world(3, model, compressor=compressor, scheme="baseline", gradients=g, steps=4)
        for g in ("kept", "streamed")
    )
    assert same(kept[0][0], streamed[2][0]) and not same(kept[0][0], model)


class Branching(nn.Module):
    """`odd` is used where that is said."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.odd = (nn.Linear(120, 120) for _ in range(2))
        self.use_odd = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(x)
        return self.odd(x) if self.use_odd else x


def test_streamed_frees_gradients_in_the_backward_pass_and_kept_keeps_them() -> None:
    for gradients, left in (("streamed", 0), ("kept", 15)):
        model = seeded(Net)
        optimizer = distributed(model, scheme="w+2d", gradients=gradients)
        loss_of(model, torch.Generator().manual_seed(0)).backward()
        held = [p for p in model.parameters() if in_memory(p)]
        optimizer.step()
        assert len(held) == left + 3 * (gradients == "kept")
        assert len([p for p in model.parameters() if p.grad is not None]) == len(held)


def in_memory(parameter: Tensor) -> bool:
    return type(parameter.grad) is Tensor  # and not the guard of one that is under way


GOING_ON: list[dict[str, object]] = [
    *(
        {"compressor": compressor, "scheme": scheme, "gradients": gradients, "residual_dtype": dtype}
        for compressor, (scheme, gradients), dtype in zip(
            COMPRESSORS, cycle(product(("baseline", "w+2d"), GRADIENTS)), cycle((None, "int4", "int8")), strict=False
        )
    ),
    *({"hierarchy": [[0, 1], [2, 3]], "compressor": name} for name in ("topk", "dgc-momentum", "sidco-exp")),
    {"compressor": "sidco-exp", "density": lambda step: 0.02 + 0.01 * (step % 3)},
    {"optimizer": "second-moment", "max_grad_norm": 0.5},
    {"scheme": "decayed", "options": {"decay": 0.9}},
]


@pytest.mark.parametrize(
    "options",
    GOING_ON,
    ids=lambda options: "-".join(f"{key}={getattr(value, '__name__', value)}" for key, value in options.items()),
)
def test_going_on_from_what_was_saved_is_not_stopping(options: dict[str, object]) -> None:
    """All that is remembered, by compressors too, is in the states that each rank writes to a file and loads again."""
    start, other = seeded(Net), seeded(Net, seed=1)

    def rank(communicator: LocalCommunicator) -> bool:
        whole, through = train(communicator, start, steps=5, **options)  # type: ignore[arg-type]
        half, stopped = train(communicator, start, steps=3, **options)  # type: ignore[arg-type]
        saved = reloaded((half.state_dict(), stopped.state_dict(), stopped.residual_state_dict()))
        stopped.close()
        model, optimizer = train(communicator, other, steps=0, **options)  # type: ignore[arg-type]
        for part, state in zip(
            (model.load_state_dict, optimizer.load_state_dict, optimizer.load_residual_state_dict), saved, strict=True
        ):
            part(state)
        generator = torch.Generator().manual_seed(communicator.rank)
        for _ in range(3):
            loss_of(half, generator)
        take_steps(optimizer, lambda: loss_of(model, generator), 2)
        ours, theirs = optimizer.residual_state_dict(), through.residual_state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        return same(whole, model)

    assert all(LocalWorld(4 if "hierarchy" in options else 2).run(rank))


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("scheme", "compressor"), [("w+2d", "topk"), ("baseline", "fp16"), ("none", "none")])
def test_clipping_by_the_global_norm_is_the_same_streamed_and_kept(
    scheme: str, compressor: str, world_size: int
) -> None:
    options = {"scheme": scheme, "compressor": compressor, "steps": 4, "max_grad_norm": 0.4}
    kept, streamed = (
        train_world(world_size, seeded(Net), gradients=gradients, **options) for gradients in ("kept", "streamed")
    )
    assert all(same(kept[0][0], model) for model, _ in (*kept, *streamed))
    norms = [optimizer.grad_norm for _, optimizer in (*kept, *streamed)]
    assert len({float(norm) for norm in norms}) == 1 and norms[0] > 0.4
    free, _ = train_world(world_size, seeded(Net), **{**options, "max_grad_norm": 1e6})[0]
    plain, _ = train_world(world_size, seeded(Net), **{**options, "max_grad_norm": None})[0]
    assert same(free, plain) and not same(free, kept[0][0])


@pytest.mark.parametrize("accumulation", ["no_sync", "backward_passes_per_step"])
@pytest.mark.parametrize("scheme", ["baseline", "w"])
def test_passes_are_absorbed_by_full_residuals_and_held_where_they_are_shared(scheme: str, accumulation: str) -> None:
    trained, held = [], []
    for gradients in ("kept", "streamed"):
        model, generator = seeded(Net), torch.Generator().manual_seed(0)
        passes = 3 if accumulation == "backward_passes_per_step" else 1
        options = {"scheme": scheme, "density": 0.05, "gradients": gradients}
        optimizer = distributed(model, backward_passes_per_step=passes, **options)
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                with optimizer.no_sync() if passes == 1 else contextlib.nullcontext():
                    loss_of(model, generator).backward()
            held.append({name for name, p in model.named_parameters() if in_memory(p) and p.numel() >= 10_000})
            loss_of(model, generator).backward()
            optimizer.step()
        trained.append(model)
    assert len(held[0]) == len(held[1]) == 7, "kept: all that is compressed"
    assert held[2] == held[3] == (set() if scheme == "baseline" else {n for n in held[0] if "blocks" in n})
    for a, b in zip(trained[0].parameters(), trained[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_small_gradients_of_many_passes_are_not_lost_in_16_bits() -> None:
    moved = []
    for gradients in ("kept", "streamed"):
        model = nn.Linear(200, 100, bias=False).bfloat16()
        nn.init.zeros_(model.weight)
        optimizer = distributed(model, lr=1.0, density=0.01, gradients=gradients, backward_passes_per_step=32)
        for _ in range(30):
            optimizer.zero_grad()
            for _ in range(32):
                (model.weight * (1 / 32)).sum().backward()
            optimizer.step()
        left = optimizer.residual_state_dict()["full.weight"].double().sum()
        moved.append(float(left - model.weight.detach().double().sum()) / (30 * 20_000))
    assert moved[0] == moved[1] > 0.95


def test_zeros_that_one_rank_has_do_not_drive_the_ranks_apart() -> None:
    start = seeded(Branching)

    def rank(communicator: LocalCommunicator) -> nn.Module:
        model = copy.deepcopy(start)
        wrapped = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        optimizer = resireduce.distribute(model, wrapped, "baseline", backend=communicator, gradients="kept")
        x = torch.ones(2, 120) * (communicator.rank + 1)
        for step in range(4):
            model.use_odd = step == 0 and communicator.rank == 1  # type: ignore[assignment]
            optimizer.zero_grad(set_to_none=communicator.rank == 0)
            model(x).square().mean().backward()
            optimizer.step()
        return model

    models = LocalWorld(2).run(rank)
    assert same(models[0], models[1])
