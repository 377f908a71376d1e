"""Compression between replicas of a model under FSDP2: without any it is FSDP's own hybrid, with it error feedback."""

from collections import defaultdict

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

import resireduce
from resireduce.comm.base import Communicator
from resireduce.grouping import is_small
from tests.processes import on_processes
from tests.ranks.fsdp import (
    NONE,
    Sharded,
    compressed,
    divide_by_two,
    mesh_of,
    native,
    replicas_equal,
    same_values,
    train,
)
from tests.worlds import OPTIMIZERS, loss_of, residuals

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def check_none(mesh: DeviceMesh) -> None:
    """Without compression: the parameters of FSDP's own hybrid, bit for bit."""
    for optimizer, steps in (("adamw", 8), ("momentum", 2), ("second-moment", 3)):
        model, hook = compressed(mesh, **NONE)
        assert same_values(train(model, optimizer, steps), train(native(mesh), optimizer, steps))
        assert hook.steps == steps and not residuals(hook)


def check_precisions(mesh: DeviceMesh) -> None:
    """In whatever precision gradients are reduced, clipped by their norm over all shards; residuals have that too."""
    half = torch.float32 if hasattr(FSDPParam, "unsharded_grad_dtype") else torch.bfloat16  # torch 2.15 widens
    for policy, dtype in ((HALF, half), (MIXED, torch.float32)):
        fsdp = {"mp_policy": policy}
        ours, theirs = compressed(mesh, fsdp=fsdp, **NONE)[0], native(mesh, fsdp=fsdp)
        assert same_values(train(ours, steps=2, clip=0.05), train(theirs, steps=2, clip=0.05))
        assert not same_values(ours, train(native(mesh, fsdp=fsdp), steps=2)), "else clipping changes nothing"
        model, hook = compressed(mesh, fsdp=fsdp, scheme="baseline")
        train(model, steps=2)
        assert replicas_equal(model, mesh)
        held = residuals(hook)
        assert held and all(tensor.dtype == dtype and tensor.any() for tensor in held.values())


def check_accumulation(mesh: DeviceMesh) -> None:
    """Passes without synchronisation are added up before anything is reduced: one step."""
    model, hook = compressed(mesh, **NONE)
    assert same_values(train(model, steps=2, passes=3), train(native(mesh), steps=2, passes=3)) and hook.steps == 2


def check_divisor(mesh: DeviceMesh) -> None:
    """What FSDP divides by in place of the number of ranks, it divides the sum over all replicas by."""
    models = [native(mesh), native(mesh), native(mesh["shard"])]
    for model in models[1:]:
        divide_by_two(model)
    resireduce.compress_fsdp(models[2], mesh["replicate"], **NONE)
    plain, ours, theirs = (train(model, steps=2) for model in models)
    assert same_values(ours, theirs) and not same_values(plain, ours)


class Twice(Sharded):
    """Each block is called twice before the backward pass, which reduces it once."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + super().forward(x.roll(1))


def check_several_passes(mesh: DeviceMesh) -> None:
    """Blocks that are called twice; and two passes of which both synchronise: each is a step, averages are added up."""
    ours, theirs = compressed(mesh, Twice, **NONE)[0], native(mesh, Twice)
    assert same_values(train(ours, steps=2), train(theirs, steps=2))

    def twice(model: nn.Module, generator: torch.Generator) -> Tensor:
        loss_of(model, generator).backward()
        return loss_of(model, generator)

    ours, hook = compressed(mesh, **NONE)
    assert same_values(train(ours, steps=2, loss=twice), train(native(mesh), steps=2, loss=twice))
    assert hook.steps == 4
    model, hook = compressed(mesh, scheme="w")
    assert replicas_equal(train(model, steps=2, loss=twice), mesh) and hook.steps == 4


def check_definition(mesh: DeviceMesh) -> None:
    """Top-k with error feedback of each slice, from its definition: a NumPy program that knows nothing of the code."""
    model, hook = compressed(mesh, scheme="baseline", density=0.05)
    twin = native(mesh["shard"])  # of each replica's own gradients
    optimizer, generator = (
        OPTIMIZERS["momentum"](list(model.parameters())),
        torch.Generator().manual_seed(dist.get_rank()),
    )
    left: dict[str, list[np.ndarray]] = defaultdict(lambda: [np.float64(0.0)] * 2)  # type: ignore[list-item]
    for _ in range(3):
        with torch.no_grad():
            for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
                mine.to_local().copy_(theirs.to_local())  # type: ignore[attr-defined]
        state = generator.get_state()
        for one in (model, twin):
            one.zero_grad()
            loss_of(one, generator.set_state(state)).backward()
        for (name, theirs), mine in zip(model.named_parameters(), twin.parameters(), strict=True):
            before, after = (one.grad.to_local() for one in (mine, theirs))  # type: ignore[union-attr]
            of_all = [torch.empty_like(before) for _ in range(2)]
            dist.all_gather(of_all, before.contiguous(), group=mesh["replicate"].get_group())
            gradients = [one.double().numpy().ravel() for one in of_all]
            expected = sum(gradients) / 2 if is_small(theirs) else exchanged(gradients, left[name])
            np.testing.assert_allclose(after.numpy().ravel(), expected, rtol=1e-5, atol=1e-7)
        optimizer.step()
    for name, tensor in residuals(hook).items():
        expected = left[name.removeprefix("full.")][mesh["replicate"].get_local_rank()]
        np.testing.assert_allclose(tensor.numpy().ravel(), expected, rtol=1e-5, atol=1e-7)
    assert len(left) == len(residuals(hook)) == 7


def exchanged(gradients: list[np.ndarray], left: list[np.ndarray]) -> np.ndarray:
    """The average of what replicas send of a slice, 0.05 of it each; what is `left` is changed."""
    total = np.zeros_like(gradients[0])
    for i, gradient in enumerate(gradients):
        compensated = gradient + left[i]
        sent = np.zeros_like(compensated)
        largest = np.argsort(-np.abs(compensated))[: max(1, int(np.floor(0.05 * compensated.size)))]
        sent[largest] = compensated[largest]
        left[i] = compensated - sent
        total += sent
    return total / len(gradients)


def check_bytes(mesh: DeviceMesh) -> None:
    """A residual is a slice: those of all shards together are one residual of the whole."""
    for scheme, dtype, size in (("baseline", None, 4), ("baseline", "bfloat16", 2), ("w", None, 4)):
        model, hook = compressed(mesh, scheme=scheme, residual_dtype=dtype)
        large = {name: p for name, p in model.named_parameters() if not is_small(p)}
        own = {name: p.to_local().numel() for name, p in large.items()}  # type: ignore[attr-defined]
        if scheme == "w":
            own = {name: n for name, n in own.items() if not name.startswith(("blocks.1", "blocks.2"))}
        held = sum(tensor.nbytes for tensor in residuals(hook).values())
        assert held == size * sum(own.values())
        together = torch.tensor(float(held))
        dist.all_reduce(together, group=mesh["shard"].get_group())
        assert int(together) == size * sum(large[name].numel() for name in own)


CHECKS = (
    check_none,
    check_precisions,
    check_accumulation,
    check_divisor,
    check_several_passes,
    check_definition,
    check_bytes,
)


def check_all(communicator: Communicator) -> None:
    mesh = mesh_of(2, 2)
    for check in CHECKS:
        check(mesh)


def test_two_replicas_of_two_shards() -> None:
    on_processes(4, check_all)
