"""`resireduce.compress_fsdp`: replicas of a model that `fully_shard` has sharded exchange compressed slices.

Within a replica (a node) FSDP2 works as usual: gradients are reduce-scattered without compression, and each rank owns a
slice of every tensor. Between replicas that slice is compressed, with error feedback: a residual is a slice, too.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from resireduce.comm.base import Communicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, check_count, warn
from resireduce.grouping import Grouping
from resireduce.pipeline import build_feedback, find_compressor, settle_slices
from resireduce.scheme import Scheme
from resireduce.settings import Settings
from resireduce.start import agree, check_agreement
from resireduce.watchers import Outside
from resireduce.wrappers.fsdp_hook import ShardedCompressionHook
from resireduce.wrappers.fsdp_units import READS, Unit, find_units, likes, shard_group

UNKNOWN = (
    "unfrozen or added after fully_shard(...), which does not hold it, so that each rank has its own gradient of it: "
    "do that before the model is sharded, or average it yourself"
)


def compress_fsdp(
    model: nn.Module,
    replicate: DeviceMesh | dist.ProcessGroup,
    scheme: str | Scheme = "w+2d",
    compressor: str | Compressor = "topk",
    density: float | Callable[[int], float] = 0.01,
    groups: str | Grouping | Mapping[str, object] = "auto",
    residual_dtype: str | None = None,
    dense: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    residual_device: str | None = None,
    warm_up_steps: int = 0,
) -> ShardedCompressionHook:
    """Make replicas of `model` average compressed slices of their gradients, with error feedback.

    Over a two-dimensional mesh FSDP would average between replicas itself. Instead, shard over `mesh["shard"]` alone,
    and give `mesh["replicate"]` here. Call it once, before the first backward pass. Averages are in `.grad` when
    `backward()` returns, so that clipping and any optimizer work on them as usual.

    Args:
        model: all parts of it sharded by `fully_shard` over one dimension; parameters may still be on the meta device.
        replicate: the ranks that hold the same shard, one in each replica: a mesh of one dimension, or a process group.
        scheme, compressor, density, groups, residual_dtype, dense, options, residual_device, warm_up_steps: as in
            `resireduce.distribute`; whole tensors decide which tensors are small, and which form groups, while
            densities and ratios are shares of this rank's slice. Steps are counted by backward passes that synchronise
            gradients. With a compressor that corrects momentum (dgc-momentum) the optimizer must have none, which the
            hook cannot check.

    Raises ConfigError, before anything is changed, for what cannot be used. `backward()` raises NonFiniteGradient on
    the ranks that meet NaN or infinity, as with `resireduce.compress_ddp`; the first one raises ConfigError if replicas
    start with different parameters, which are not made equal here, nor by FSDP itself.
    """
    given = {name: value for name, value in locals().items() if name not in ("model", "replicate")}
    settings = Settings(**given, gradients="kept")
    check_count("warm_up_steps", warm_up_steps, of="steps")
    _check_model(model)
    units = find_units(model)
    parameters, lossy = _parameters(model, units), find_compressor(settings)
    settings = settle_slices(settings, lossy, model, parameters, likes(units))
    ranks = shard_group(units)
    across = _replicas(replicate, ranks)
    shards, replicas = TorchCommunicator(ranks, shares=True), TorchCommunicator(across)
    _agree(settings.agreed(compressor=lossy), units, parameters, shards, replicas)
    feedback, _ = build_feedback(model, parameters, lossy, replicas, settings)
    hook = ShardedCompressionHook(units, feedback, shards)
    hook.outside = _outside(model)
    return hook


def _outside(model: nn.Module) -> Outside:
    """Return what watches for parameters that are unfrozen or added later, in no unit of fully_shard.

    Wrappers, as of checkpoints, change names later, and FSDP has whole parameters in place of its shards at times.
    """
    known = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return Outside(model, {}, UNKNOWN, passes_over=lambda name, one: name in known or isinstance(one, DTensor))


def _check_model(model: object) -> None:
    """Raise ConfigError unless `model` is a module that FSDP2 may have sharded, and this torch has its hook."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model: an object of type {type(model).__name__} is not allowed; give a Module")
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ConfigError(
            "model: a FullyShardedDataParallel (FSDP1) is not allowed; shard it by fully_shard of "
            "torch.distributed.fsdp (FSDP2)"
        )
    if not hasattr(FSDPModule, "set_all_reduce_hook"):
        raise ConfigError(
            READS.format(version=torch.__version__, error="no set_all_reduce_hook") + "install one of those"
        )


def _parameters(model: nn.Module, units: list[Unit]) -> dict[str, nn.Parameter]:
    """Return the trained parameters of `units`, by name, in the order of the model; warn if there are others."""
    held = {one.name for unit in units for one in unit.slices}
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    beside = [name for name in trained if name not in held]
    if beside:
        warn(
            f"{beside[0]!r}: trained, but in no unit of fully_shard, so that each rank has a gradient of its own: call "
            "fully_shard(model) too, or average it yourself"
        )
    if not held:
        raise ConfigError("model: no parameter that fully_shard holds is trained; freeze fewer")
    return {name: parameter for name, parameter in trained.items() if name in held}


def _replicas(replicate: object, shards: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the process group that `replicate` stands for. Raises ConfigError unless it crosses `shards` here."""
    if isinstance(replicate, DeviceMesh) and replicate.ndim == 1:
        group = replicate.get_group()
    elif isinstance(replicate, dist.ProcessGroup):
        group = replicate
    else:
        raise ConfigError(
            f"replicate: {replicate!r} is not allowed; give a mesh of one dimension, such as mesh['replicate'], or a "
            "process group that this rank is in"
        )
    ranks = dist.get_process_group_ranks(group)
    common = sorted({*ranks} & {*dist.get_process_group_ranks(shards)})
    if common != [dist.get_rank()]:
        raise ConfigError(
            f"replicate: ranks {ranks} have {common} in common with those that this replica is sharded over; give the "
            "other dimension of the mesh, whose ranks hold the same shard"
        )
    return group


def _agree(
    settings: dict[str, object],
    units: list[Unit],
    parameters: Mapping[str, nn.Parameter],
    shards: Communicator,
    replicas: Communicator,
) -> None:
    """Raise ConfigError on all ranks of all replicas if settings, units or parameters differ between any of them."""
    agree({"place in the mesh": f"shard {shards.rank} of {shards.world_size}"}, replicas, beside=shards)
    found = {f"unit {unit.name!r}": f"{[one.name for one in unit.slices]} in {unit.dtype}" for unit in units}
    for ranks, others in ((shards, replicas), (replicas, shards)):
        check_agreement(found | settings, parameters, ranks, beside=others)
