"""Units of all forms under FSDP2, and ranks that do not fit together."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

import resireduce
from resireduce.comm.base import Communicator
from resireduce.compressors.thresholds import Threshold
from resireduce.errors import ConfigError
from resireduce.grouping import Grouping
from tests.processes import on_processes
from tests.ranks.fsdp import (
    NONE,
    Sharded,
    compressed,
    mesh_of,
    native,
    replicas_equal,
    same_values,
    shard,
    train,
    whole,
)
from tests.worlds import KINDS, Block, loss_of, residuals, seeded, sgd_for
from tests.worlds import train as train_flat


def check_columns(mesh: DeviceMesh) -> None:
    """Tensors that are sharded by another dimension than the first."""

    def even() -> nn.Module:
        return Sharded(width=72)

    fsdp = {"shard_placement_fn": lambda parameter: Shard(1) if parameter.dim() == 2 else None}
    ours, theirs = compressed(mesh, even, fsdp, **NONE)[0], native(mesh, even, fsdp)
    assert same_values(train(ours, steps=2), train(theirs, steps=2))
    model, hook = compressed(mesh, even, fsdp, scheme="w+2d")
    held = residuals(hook)
    assert held["weighted.blocks.0.up.weight"].shape == (144, 36) and replicas_equal(train(model, steps=2), mesh)


class Narrow(Sharded):
    """A layer of one row, of which the second shard has nothing, in a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.append(nn.Linear(12000, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        *blocks, row = self.blocks
        y = self.norm(self.first(x))
        for block in blocks:
            y = block(y)
        return self.head(y) + row(x.repeat(1, 20))


def check_empty_slices(mesh: DeviceMesh) -> None:
    assert same_values(train(compressed(mesh, Narrow, **NONE)[0], steps=2), train(native(mesh, Narrow), steps=2))
    specific = Grouping(specific=("blocks.3.weight",))
    model, hook = compressed(mesh, Narrow, scheme="2d", groups=specific)
    assert replicas_equal(train(model, steps=2), mesh)
    state = hook.residual_state_dict()
    assert ("rows_columns.blocks.3.weight" in state) == (mesh["shard"].get_local_rank() == 0)
    hook.load_residual_state_dict(state)


def check_refused(mesh: DeviceMesh) -> None:
    """Ranks that cannot train together are told so, all of them."""
    rank = dist.get_rank()
    mixed = seeded(Sharded)
    fully_shard(mixed.blocks[0], mesh=mesh["replicate"])
    fully_shard(mixed, mesh=mesh["shard"])
    with pytest.raises(ConfigError, match=r"sharded over ranks \[\d, \d\] and \[\d, \d\]; give fully_shard one mesh"):
        resireduce.compress_fsdp(mixed, mesh["replicate"])
    for odd in ((0,), (1,), (2,), (3,), (1, 3)):  # the last: the second shard of both replicas
        with pytest.raises(ConfigError, match=r"density=0\.\d|another rank says which"):
            resireduce.compress_fsdp(native(mesh["shard"]), mesh["replicate"], density=0.2 if rank in odd else 0.1)
    crossed = [dist.new_group([0, 3]), dist.new_group([1, 2])]  # ranks that hold other shards than this one
    for wrong in (mesh["shard"], crossed[rank in (1, 2)]):
        model = native(mesh["shard"])
        resireduce.compress_fsdp(model, wrong)
        with pytest.raises(ConfigError, match=r"place in the mesh: shard \d of 2|another rank says which"):
            loss_of(model, torch.Generator()).backward()
    model, _ = compressed(mesh)
    if rank > 1:
        with torch.no_grad():
            model.first.weight.to_local().mul_(1.5)  # type: ignore[union-attr, operator]
    with pytest.raises(ConfigError, match=r"values of first\.weight \(a checksum\)|another rank says which"):
        loss_of(model, torch.Generator()).backward()
    for frozen in ("blocks.1.up.weight", "blocks.1"):
        start = seeded(Sharded)
        for name, parameter in start.named_parameters():
            if name.startswith(frozen):
                parameter.requires_grad_(False).add_(rank // 2)
        model = shard(start, mesh["shard"])
        resireduce.compress_fsdp(model, mesh["replicate"])
        with pytest.raises(
            ConfigError, match=r"values of blocks\.1\.up\.weight \(a checksum\)|another rank says which"
        ):
            loss_of(model, torch.Generator()).backward()


def check_four(communicator: Communicator) -> None:
    mesh = mesh_of(2, 2)
    for check in (check_columns, check_empty_slices, check_refused):
        check(mesh)


def test_two_replicas_of_two_shards() -> None:
    on_processes(4, check_four)


def check_one_shard(communicator: Communicator) -> None:
    """Shards that are whole: bit for bit what kept gradients are without FSDP, for compressors of each kind."""
    mesh, start = mesh_of(2, 1), seeded(Sharded)
    compressors = (*KINDS, Threshold(0.02))
    cases: list[dict[str, object]] = [{"scheme": "baseline", "compressor": one} for one in compressors]
    cases += [{"scheme": scheme} for scheme in ("w+2d", "partial", "a")]
    cases += [{"residual_dtype": "int8"}, {"warm_up_steps": 2}, {"dense": ["head.*", "blocks.1.up.weight"]}]
    cases += [{"density": lambda step: 0.5 / (step + 1)}, {"residual_device": "cpu"}]
    for options in cases:
        flat, optimizer = train_flat(communicator, start, gradients="kept", steps=3, **options)
        model, hook = compressed(mesh, **options)
        train(model, sgd_for(options), steps=3)
        found = whole(model)
        assert all(torch.equal(found[name], tensor) for name, tensor in flat.state_dict().items()), options
        theirs, ours = optimizer.residual_state_dict(), hook.residual_state_dict()
        assert theirs.keys() == ours.keys() - {"shard_rank", "shard_world_size"}
        assert all(torch.equal(theirs[name], ours[name]) for name in theirs), options


class Dropping(Sharded):
    """Leaves out one block after the other, and all at first the last, as layer drop and stochastic depth do."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        left_out, y = max(2 - self.passes, self.passes % 4), self.norm(self.first(x))
        self.passes += 1
        for number, block in enumerate(self.blocks):
            y = y if number == left_out else block(y)
        return self.head(y)


def check_units_left_out(communicator: Communicator) -> None:
    """A step ends with its backward pass, whichever units that has: as with kept gradients, and whoever saves."""
    mesh, start = mesh_of(2, 1), seeded(Dropping)
    for options in ({"scheme": "w"}, {"scheme": "baseline", "compressor": "randomk"}, {"residual_dtype": "int8"}):
        flat, optimizer = train_flat(communicator, start, gradients="kept", steps=7, **options)  # type: ignore[arg-type]
        model, hook = compressed(mesh, Dropping, **options)
        steps: list[int] = []

        def saved(model: nn.Module, generator: torch.Generator, hook: Any = hook, seen: list[int] = steps) -> Tensor:
            seen.append(int(hook.residual_state_dict()["steps"]))
            return loss_of(model, generator)

        train(model, sgd_for(options), steps=7, loss=saved)
        assert steps == [*range(7)] and hook.steps == 7
        found, held = whole(model), hook.residual_state_dict()
        assert all(torch.equal(found[name], tensor) for name, tensor in flat.state_dict().items()), options
        assert all(torch.equal(held[name], tensor) for name, tensor in optimizer.residual_state_dict().items()), options


def checkpointed() -> nn.Module:
    model = Sharded()
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    return model


def check_kinds_of_units(communicator: Communicator) -> None:
    """Activations that are computed again, and parameters that lie in the host's memory."""
    mesh, offload = mesh_of(2, 1), {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    for build, fsdp in ((checkpointed, None), (Sharded, offload), (Sharded, {"reshard_after_forward": False})):
        ours, theirs = compressed(mesh, build, fsdp, **NONE)[0], native(mesh, build, fsdp)
        assert same_values(train(ours, steps=2), train(theirs, steps=2))
        model, hook = compressed(mesh, build, fsdp, scheme="w")
        assert replicas_equal(train(model, steps=2), mesh) and hook.steps == 2
        assert sum(name.startswith("weighted.") for name in hook.residual_state_dict()) == 2


def test_with_whole_shards_it_is_kept_gradients() -> None:
    on_processes(2, check_one_shard, check_units_left_out, check_kinds_of_units)
