"""A small model under FSDP2, sharded over one dimension of a mesh and replicated over the other, with or without us."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import resireduce
from tests.worlds import OPTIMIZERS, Net, loss_of, seeded

NONE = {"compressor": "none", "scheme": "none"}
Loss = Callable[[nn.Module, torch.Generator], Tensor]


class Sharded(Net):
    """`Net` with a layer norm, which needs no statistics of a batch, and of an odd width, so that slices are uneven."""

    def __init__(self, width: int = 73):
        super().__init__(width=width, blocks=3)
        self.norm = nn.LayerNorm(width)  # type: ignore[assignment]


def mesh_of(replicas: int, shards: int) -> DeviceMesh:
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


def shard(model: nn.Module, mesh: DeviceMesh, **options: object) -> nn.Module:
    """Each block a unit, and what is left another."""
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, **options)  # type: ignore[call-overload]
    fully_shard(model, mesh=mesh, **options)  # type: ignore[call-overload]
    return model


def compressed(
    mesh: DeviceMesh, build: Callable[[], nn.Module] = Sharded, fsdp: dict[str, object] | None = None, **options: object
) -> tuple[nn.Module, resireduce.ShardedCompressionHook]:
    model = shard(seeded(build), mesh["shard"], **(fsdp or {}))
    return model, resireduce.compress_fsdp(model, mesh["replicate"], **{"density": 0.05, **options})  # type: ignore[arg-type]


def native(
    mesh: DeviceMesh, build: Callable[[], nn.Module] = Sharded, fsdp: dict[str, object] | None = None
) -> nn.Module:
    """FSDP's own hybrid, which all-reduces between replicas without compression."""
    return shard(seeded(build), mesh, **(fsdp or {}))


def train(
    model: nn.Module,
    optimizer: str = "momentum",
    steps: int = 4,
    loss: Loss = loss_of,
    passes: int = 1,
    clip: float | None = None,
) -> nn.Module:
    """Train on this rank's own batches; all but the last of `passes` without synchronisation."""
    made = OPTIMIZERS[optimizer](list(model.parameters()))
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        made.zero_grad()
        for i in range(passes):
            model.set_requires_gradient_sync(i == passes - 1)  # type: ignore[operator]
            loss(model, generator).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        made.step()
    return model


def divide_by_two(model: nn.Module) -> None:
    """Have FSDP divide sums by 2 in place of the number of ranks; afterwards, which gloo can in all torches."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(2.0)
            module.set_force_sum_reduction_for_comms(True)


def whole(model: nn.Module) -> dict[str, Tensor]:
    """The parameters, put together from all shards."""
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


def same_values(first: nn.Module, second: nn.Module) -> bool:
    """Whether all parameters are equal bit for bit."""
    ours, theirs = whole(first), whole(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def replicas_equal(model: nn.Module, mesh: DeviceMesh) -> bool:
    """Whether this rank's slices are those of all other replicas."""
    for parameter in model.parameters():
        own = parameter.detach().to_local().contiguous()  # type: ignore[attr-defined]
        theirs = [torch.empty_like(own) for _ in range(mesh["replicate"].size())]
        dist.all_gather(theirs, own, group=mesh["replicate"].get_group())
        if not all(torch.equal(own, other) for other in theirs):
            return False
    return True
