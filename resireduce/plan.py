"""The bytes that a training step will need, found by running the real code on tensors without storage."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from resireduce.api import distribute
from resireduce.checks import check_passes
from resireduce.comm.pretend import PretendCommunicator
from resireduce.errors import ConfigError, choose, is_count
from resireduce.merging.costs import TIMED
from resireduce.planning.item import sums
from resireduce.planning.memory import ModelStates, baseline_total, outside_states, waiting_bytes
from resireduce.planning.optimizer_zoo import Maker, make_optimizer, without_storage
from resireduce.planning.shards import check_shards, shard_states
from resireduce.planning.to_meta import to_meta
from resireduce.planning.two_steps import two_steps
from resireduce.planning.zoo import INSTANCE
from resireduce.scheme import COMPRESSORS, HIERARCHIES
from resireduce.settings import Settings

OptimizerOf = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of trained parameters."""
UNPLANNED = ("backend", "group", "grad_scaler", "warm_up_steps")
"""Settings that `plan` chooses itself, or with which its figures would be wrong."""
LARGEST_WORLD = 4096
"""Most ranks of a plan: it processes the payload of each, as training does."""


def plan(
    build: Callable[[], nn.Module],
    *,
    optimizer: str | Maker = "sgd",
    optimizer_args: Mapping[str, object] | None = None,
    world_size: int = 8,
    compiled: bool = False,
    itemised: bool = False,
    ranks_per_node: int | None = None,
    shards: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Return the model states of one rank, in bytes. Raises ConfigError for a setting that cannot be used.

    Args:
        build: returns the model; it is called under the meta device, so no memory is taken.
        optimizer: sgd (with momentum, its own or the compressor's) or adamw; any by its import path, such as
            "torch.optim:Adagrad"; or a function that makes one from a list of parameters.
        optimizer_args: its keyword arguments, such as {"lr": 0.01}.
        world_size: number of ranks, each of which sends as much as this one.
        compiled: whether the whole model is one compiled graph, whose gradients all come at the end of the backward
            pass, and are in flight together.
        itemised: whether to list the tensors too.
        ranks_per_node: required with hierarchy="node": how many ranks share a node, a divisor of `world_size`. The plan
            is for the first of them, which holds most: others may have a row less of tensors whose rows are not evenly
            divisible.
        shards: over how many ranks FSDP2 shards each replica, a divisor of `world_size`. The plan is then that of
            `resireduce.compress_fsdp`, with its keywords as `settings`, for the first of these ranks, which holds
            most. Gradients are kept, and nothing after `normalised` is planned: the fullest moment of a step depends
            on what each `fully_shard` holds.
        settings: keywords of `resireduce.distribute` (scheme, compressor, density, gradients, ...). Those in UNPLANNED
            raise TypeError. With several passes, gradients that no residual can absorb are held: in flight.

    Returns:
        parameters, gradients, residuals, optimizer_states and their sum, total: at a step boundary, where streamed
            gradients are gone.
        host_residuals: those in the host's memory. Neither they nor the next two are in any other figure.
        frozen, buffers: parameters that the optimizer does not hold, and the model's buffers.
        baseline_total: total with kept gradients and a full residual in the gradient's dtype.
        normalised: total / baseline_total.
        peak_states: bytes at the fullest moment of a step, without activations.
        in_flight: peak_states - total.
        waiting: bytes of streamed gradients that are sent without compression, and so wait for `step()`.
        peak_normalised: peak_states / baseline_total.
        items: if itemised, every `resireduce.planning.item.Item` of parameters, gradients, residuals and
            optimizer_states, which are the sums of these.
    """
    given = _settings(settings, world_size, ranks_per_node)
    if shards is not None:
        check_shards(shards, world_size, given, compiled)
    model, maker = _build(build), partial(_optimizer, optimizer, dict(optimizer_args or {}), given)
    if shards is not None:
        return _of_shards(model, maker, shards, given, itemised)
    wrapped = maker([parameter for parameter in model.parameters() if parameter.requires_grad])
    # From the third on, passes find what the second has found.
    passes = min(given.backward_passes_per_step, 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hierarchy: ")  # of the ranks that are pretended
        distributed = distribute(model, wrapped, **vars(replace(given, backward_passes_per_step=passes)))
    waiting = waiting_bytes(distributed)
    with without_storage(wrapped, optimizer if isinstance(optimizer, str) else type(wrapped).__name__):
        items, peak = two_steps(model, distributed, compiled)
    states = ModelStates(**sums(items))
    baseline = baseline_total(model, states, given.dense)
    return {
        **states.as_dict(),
        "host_residuals": sum(tensor.nbytes for tensor in distributed.feedback.residual.host_tensors()),
        **outside_states(model, wrapped),
        "baseline_total": baseline,
        "normalised": states.total / baseline,
        "peak_states": peak,
        "in_flight": peak - states.total,
        "waiting": waiting,
        "peak_normalised": peak / baseline,
        **({"items": items} if itemised else {}),
    }


def _settings(settings: dict[str, Any], world_size: int, ranks_per_node: int | None) -> Settings:
    """Return what `distribute` is to be given, with ranks that are pretended. Raises ConfigError, or TypeError."""
    if not is_count(world_size) or not 1 <= world_size <= LARGEST_WORLD:
        raise ConfigError(f"world_size: {world_size!r} is not allowed; give the number of ranks, 1 to {LARGEST_WORLD}")
    if unknown := settings.keys() - {one.name for one in fields(Settings)} | settings.keys() & set(UNPLANNED):
        raise TypeError(f"plan() got an unexpected keyword argument {min(unknown)!r}")
    nodes = _nodes(settings.pop("hierarchy", "flat"), world_size, ranks_per_node)
    given = Settings(**settings, backend=PretendCommunicator(world_size), hierarchy=nodes)
    check_passes(given.backward_passes_per_step)
    if isinstance(given.merge, str) and given.merge in TIMED:
        raise ConfigError(
            f"merge: {given.merge!r} is not known before training, since it merges by what steps take; give the lists "
            "of names that optimizer.messages had then"
        )
    return given


def _optimizer(
    optimizer: Any, arguments: dict[str, Any], given: Settings, trainable: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer of `trainable`; torch's SGD without momentum, where the compressor has that."""
    listed = COMPRESSORS.get(given.compressor) if isinstance(given.compressor, str) else None
    if optimizer == "sgd" and listed is not None and listed.corrects_momentum:
        arguments = {"momentum": 0.0} | arguments
    return make_optimizer(optimizer, trainable, arguments)


def _of_shards(model: nn.Module, maker: OptimizerOf, shards: int, given: Settings, itemised: bool) -> dict[str, Any]:
    """Return the plan of the first rank of a model that FSDP2 shards, without its fullest moment."""
    items, beside = shard_states(model, maker, shards, given)
    states, full = ModelStates(**sums(items)), beside.pop("full_residuals")
    baseline = states.total - states.residuals + full
    return {
        **states.as_dict(),
        **beside,
        "baseline_total": baseline,
        "normalised": states.total / baseline,
        **({"items": items} if itemised else {}),
    }


def _nodes(hierarchy: object, world_size: int, ranks_per_node: Any) -> Any:
    """Return the ranks of each node, or "flat". Raises ConfigError for what does not go together."""
    if choose("hierarchy", hierarchy, HIERARCHIES) == "flat":
        if ranks_per_node is not None:
            raise ConfigError(f"ranks_per_node: {ranks_per_node!r} means nothing to a flat hierarchy; give 'node'")
        return hierarchy
    if not is_count(ranks_per_node) or not ranks_per_node or world_size % ranks_per_node:
        raise ConfigError(
            f"ranks_per_node: {ranks_per_node!r} is not allowed with hierarchy='node' and {world_size} ranks; give a "
            "divisor of their number"
        )
    return [[*range(first, first + ranks_per_node)] for first in range(0, world_size, ranks_per_node)]


def _build(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that `build` makes, without storage."""
    if isinstance(build, nn.Module):
        raise ConfigError(f"build: the {type(build).__name__} given {INSTANCE.format(type(build).__name__)}")
    if not callable(build):
        raise ConfigError(f"build: {build!r} cannot be called; give a function that returns the model")
    with torch.device("meta"):
        model = build()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"build: it returns an object of type {type(model).__name__}; give one that returns a module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"model: {type(model).__name__} has no trainable parameter; give one that trains")
    return to_meta(model)
