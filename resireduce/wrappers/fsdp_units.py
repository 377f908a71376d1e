"""The units of a model that `fully_shard` has sharded, found in the order of the model.

Undocumented parts of FSDP2 are read here and in `resireduce.wrappers.fsdp_unit` only.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from resireduce.errors import ConfigError
from resireduce.wrappers.fsdp_unit import Slice, Unit, has_replicas, held_by

READS = "resireduce reads FSDP2's units as torch 2.9 to 2.13 have them, and not those of torch {version} ({error}); "


def find_units(model: nn.Module) -> list[Unit]:
    """Return the units of `model` that have trained parameters, in the order of the model; parameters are resharded.

    Raises ConfigError for a model that `fully_shard` has not sharded, or sharded in a way that leaves no hook.
    """
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[int, Unit] = {}
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        module.reshard()
        name = names[id(module)] or "(root)"
        try:
            for group in _groups(module, name):
                if id(group) not in found:
                    found[id(group)] = _unit(name, module, group, model)
        except AttributeError as error:
            raise ConfigError(READS.format(version=torch.__version__, error=error) + "install one of those") from error
    if not found:
        raise ConfigError(
            f"model: {type(model).__name__} is not sharded; call fully_shard(...) of torch.distributed.fsdp on it "
            "first, or use resireduce.distribute(...), which needs no sharding"
        )
    return [unit for unit in found.values() if unit.slices]


def _groups(module: FSDPModule, name: str) -> list[Any]:
    """Return the group that FSDP reduces at once for `module`; none if its parameters are all in other units."""
    groups = held_by(module._get_fsdp_state())
    if len(groups) > 1:
        raise ConfigError(
            f"model: {name!r} is sharded over several meshes by shard_placement_fn, where FSDP has no hook; call "
            "fully_shard on each part with its own mesh"
        )
    for group in groups:
        _check_group(group, name)
    return groups


def _check_group(group: Any, name: str) -> None:
    """Raise ConfigError unless `group`, of module `name`, is sharded over one dimension, and has no hook."""
    if has_replicas(group):
        raise ConfigError(
            f"model: {name!r} is sharded over a mesh that has replicas too, between which FSDP averages without "
            "compression; give fully_shard the dimension of the shards alone: mesh=mesh['shard']"
        )
    if group._all_reduce_hook is not None:
        raise ConfigError(
            f"model: {name!r} has an all-reduce hook already, and can have one only; if it is that of an earlier "
            "compress_fsdp(...), use what that returned, or take it off by set_all_reduce_hook(None)"
        )
    for parameter in group.fsdp_params:
        placements = parameter.sharded_param.placements
        if len(placements) > 1:
            raise ConfigError(
                f"model: a parameter of {name!r} is split in several ways {tuple(placements)} (tensor parallelism?), "
                "which is not supported; give a model that only fully_shard has split"
            )


def _unit(name: str, module: FSDPModule, group: Any, model: nn.Module) -> Unit:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [parameter for parameter in group.fsdp_params if parameter.sharded_param.requires_grad]
    slices, start = [], 0
    for parameter in trained:
        info = parameter._module_info
        slices.append(Slice(names[id(getattr(info.module, info.param_name))], parameter.sharded_size, start))
        start += parameter.padded_sharded_param_size.numel()
    policy = group.mp_policy
    own = trained[0].sharded_param.dtype if trained else torch.float32
    dtype = policy.reduce_dtype or policy.param_dtype or own
    state = module._get_fsdp_state()
    unit = Unit(name, module, tuple(slices), start, dtype, group.device, group, tuple(trained), state)
    assert not unit.is_in_backward, "it is read here to find out whether this torch has it"
    return unit


def shard_group(units: list[Unit]) -> dist.ProcessGroup:
    """Return the ranks over which `units` are sharded. Raises ConfigError if they are not the same for all."""
    groups = [unit.group.mesh_info.shard_process_group for unit in units]
    ranks = [tuple(dist.get_process_group_ranks(group)) for group in groups]
    for unit, one in zip(units, ranks, strict=True):
        if one != ranks[0]:
            raise ConfigError(
                f"model: {unit.name!r} is sharded over ranks {one} and {units[0].name!r} over {ranks[0]}; give all "
                "the same mesh"
            )
    first: dist.ProcessGroup = groups[0]
    return first


def likes(units: Sequence[Unit]) -> dict[str, nn.Parameter]:
    """Return a tensor like this rank's slice of each gradient of `units`, by name, without memory of its own."""
    return {one.name: _like(unit, one) for unit in units for one in unit.slices}


def _like(unit: Unit, one: Slice) -> nn.Parameter:
    element = torch.empty((), dtype=unit.dtype, device=unit.device)
    return nn.Parameter(element.expand(one.shape), requires_grad=False)


def frozen_shards(units: Sequence[Unit]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and this rank's slice of each frozen parameter under the roots of `units`."""
    roots = {id(unit.state._state_ctx): unit.state._state_ctx for unit in units}
    groups = [group for root in roots.values() for state in root.all_states for group in held_by(state)]
    for one in (parameter for group in groups for parameter in group.fsdp_params):
        if not one.sharded_param.requires_grad:
            yield one._param_fqn, one.sharded_param.detach().to_local()


def smallest_shards(units: Sequence[Unit]) -> list[tuple[Unit, Callable[[], Tensor]]]:
    """Return the unit of each parameter of `units`, and a function that returns this rank's shard of it: those that are
    not empty, the smallest first."""
    found = [
        (one.shape.numel(), unit, held) for unit in units for one, held in zip(unit.slices, unit.held, strict=True)
    ]
    ordered = sorted((each for each in found if each[0]), key=lambda each: each[0])
    return [(unit, partial(getattr, held, "sharded_param")) for _, unit, held in ordered]
