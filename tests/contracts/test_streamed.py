"""Streamed = kept, bit for bit; and how both are used rightly and wrongly."""

import contextlib
import copy
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.local import LocalCommunicator
from resireduce.scheme import COMPRESSORS, SCHEMES
from tests.threads import LocalWorld
from tests.worlds import OPTIMIZERS, Net, distributed, loss_of, same, seeded, take_steps, train, train_world


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
    """`odd` is used by odd ranks only, `never` by none, `frozen` is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.odd, self.never, self.frozen = (nn.Linear(120, 120) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.use_odd = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(self.shared(x))
        return self.odd(x) if self.use_odd else x


@pytest.mark.parametrize("compressor", ["topk", "powersgd", "none"])
@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_parameters_without_a_gradient(gradients: str, compressor: str) -> None:
    start = seeded(Branching)

    def rank(communicator: LocalCommunicator) -> nn.Module:
        model = copy.deepcopy(start)
        model.use_odd = communicator.rank == 1  # type: ignore[assignment]
        wrapped = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        options = {"gradients": gradients, "compressor": compressor, "scheme": "none", "density": 1.0}
        optimizer = distributed(model, wrapped, backend=communicator, **options)
        x = torch.ones(2, 120) * (communicator.rank + 1)
        take_steps(optimizer, lambda: model(x).square().mean(), 3)
        assert wrapped.state.keys() == {p for n, p in model.named_parameters() if n.split(".")[0] in ("shared", "odd")}
        return model

    models = LocalWorld(2).run(rank)
    assert same(models[0], models[1])
    for name in ("never", "frozen"):
        assert same(getattr(models[0], name), getattr(start, name)), "weight decay must not touch what is not used"
    assert not same(models[0].odd, start.odd), "rank 0 must apply what rank 1 has found"


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("compressor", ["topk", "powersgd", "none"])
def test_accumulated_passes_are_one_large_batch(gradients: str, compressor: str) -> None:
    start = seeded(lambda: nn.Sequential(nn.Linear(150, 120), nn.Linear(120, 3)))
    x, y = torch.randn(8, 150, dtype=torch.float64), torch.randint(3, (8,))
    start.double()

    def run(parts: int, passes: int) -> nn.Module:
        model = copy.deepcopy(start)
        options = {"gradients": gradients, "compressor": compressor, "density": 0.5}
        optimizer = distributed(model, backward_passes_per_step=passes, **options)
        for _ in range(3):
            optimizer.zero_grad()
            for i, (xs, ys) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
                loss = nn.functional.cross_entropy(model(xs), ys, reduction="sum")
                if passes == 1 and i < parts - 1:
                    with optimizer.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
        return model

    whole = run(1, 1)
    for other in (run(4, 4), run(4, 1)):
        for a, b in zip(whole.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("gradients", ["streamed", "kept"])
def test_the_norm_of_a_step_without_gradients_is_zero(gradients: str) -> None:
    model = seeded(Net)
    optimizer = distributed(model, gradients=gradients, max_grad_norm=1.0)
    for loss in (0.0, 1.0, 0.0):
        optimizer.zero_grad()
        if loss:
            loss_of(model, torch.Generator().manual_seed(0)).backward()
        optimizer.step()
        assert optimizer.grad_norm is not None and bool(optimizer.grad_norm) == bool(loss)


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


@pytest.mark.parametrize("residual_dtype", [None, "int4"])
@pytest.mark.parametrize("compressor", ["topk", "randomk", "qsgd"])
def test_going_on_from_what_was_saved_is_not_stopping(compressor: str, residual_dtype: str | None) -> None:
    options = {"compressor": compressor, "residual_dtype": residual_dtype}
    whole, _ = train(LocalCommunicator(), seeded(Net), steps=7, **options)
    half, stopped = train(LocalCommunicator(), seeded(Net), steps=4, **options)
    saved = copy.deepcopy((half.state_dict(), stopped.state_dict(), stopped.residual_state_dict()))
    model, optimizer = train(LocalCommunicator(), seeded(Net, seed=1), steps=0, **options)
    for part, state in zip(
        (model.load_state_dict, optimizer.load_state_dict, optimizer.load_residual_state_dict), saved, strict=True
    ):
        part(state)
    generator = torch.Generator().manual_seed(0)
    for step in range(7):
        value = loss_of(model, generator)
        if step >= 4:
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    assert same(whole, model)


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


def test_a_parameter_whose_gradients_came_in_earlier_passes_alone() -> None:
    trained = []
    for gradients in ("kept", "streamed"):
        model = nn.ModuleList([nn.Linear(120, 120), nn.Linear(120, 120)])
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.01)
        optimizer = distributed(model, gradients=gradients)
        with optimizer.no_sync():
            model[0](torch.ones(2, 120)).square().sum().backward()
        model[1](torch.ones(2, 120)).square().sum().backward()
        optimizer.step()
        trained.append(model)
    assert same(*trained) and (trained[0][0].weight != 0.01).any()


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
            optimizer.zero_grad(set_to_none=False)
            model(x).square().mean().backward()
            optimizer.step()
        return model

    models = LocalWorld(2).run(rank)
    assert same(models[0], models[1])
