"""The bytes that a training step will need, found by running the real code on tensors without storage."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import nn

from resireduce.api import distribute
from resireduce.checks import check_passes
from resireduce.comm.local import PretendCommunicator
from resireduce.errors import ConfigError, choose, is_count
from resireduce.merging.costs import TIMED
from resireduce.optimizer import DistributedOptimizer
from resireduce.planning.item import Item, sums
from resireduce.planning.itemise import itemise_states
from resireduce.planning.memory import ModelStates, baseline_total, tied_parameters, track_states, waiting_bytes
from resireduce.planning.optimizer_zoo import Maker, make_optimizer, without_storage
from resireduce.planning.slice_price import price_of_slices
from resireduce.planning.zoo import INSTANCE
from resireduce.scheme import COMPRESSORS, HIERARCHIES
from resireduce.settings import Settings
from resireduce.slices.takers import is_by_rows, planned_use

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
        whole_gradients: with slices, why gradients of large parameters are still made whole, by name.
        twice_gradients: with slices, why others are made twice or three times, row by row, by name.
        slice_price: what slices cost, a `resireduce.planning.slice_price.SlicePrice`.
        items: if itemised, every `resireduce.planning.item.Item` of parameters, gradients, residuals and
            optimizer_states, which are the sums of these.
    """
    given = _settings(settings, world_size, ranks_per_node)
    model = _build(build)
    wrapped = _optimizer(model, optimizer, dict(optimizer_args or {}), given)
    # From the third on, passes find what the second has found.
    passes = min(given.backward_passes_per_step, 2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="hierarchy: ")  # of the ranks that are pretended
        distributed = distribute(model, wrapped, **vars(replace(given, backward_passes_per_step=passes)))
    waiting = waiting_bytes(distributed)
    with without_storage(wrapped, optimizer if isinstance(optimizer, str) else type(wrapped).__name__):
        items, peak = _two_steps(model, distributed, compiled)
    states = ModelStates(**sums(items))
    baseline = baseline_total(model, states, given.dense)
    return {
        **states.as_dict(),
        "host_residuals": sum(tensor.nbytes for tensor in distributed.feedback.residual.host_tensors()),
        **_beside(model, wrapped),
        "baseline_total": baseline,
        "normalised": states.total / baseline,
        "peak_states": peak,
        "in_flight": peak - states.total,
        "waiting": waiting,
        "peak_normalised": peak / baseline,
        **(_of_slices(distributed, given) if given.slices else {}),
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


def _optimizer(model: nn.Module, optimizer: Any, arguments: dict[str, Any], given: Settings) -> torch.optim.Optimizer:
    """Return the optimizer of `model`; torch's SGD without momentum, where the compressor has that."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ConfigError(f"model: {type(model).__name__} has no trainable parameter; give one that trains")
    listed = COMPRESSORS.get(given.compressor) if isinstance(given.compressor, str) else None
    if optimizer == "sgd" and listed is not None and listed.corrects_momentum:
        arguments = {"momentum": 0.0} | arguments
    return make_optimizer(optimizer, trainable, arguments)


def _of_slices(optimizer: DistributedOptimizer, given: Settings) -> dict[str, Any]:
    return {
        "whole_gradients": optimizer.whole_gradients,
        "twice_gradients": optimizer.twice_gradients,
        "slice_price": asdict(price_of_slices(optimizer, given.slices)),
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
    return model


def _beside(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the model's bytes outside the model states: parameters that `optimizer` does not hold, and buffers."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {
        "frozen": sum(parameter.nbytes for parameter in model.parameters() if id(parameter) not in held),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
    }


def _two_steps(model: nn.Module, optimizer: DistributedOptimizer, compiled: bool) -> tuple[list[Item], int]:
    """Return the tensors held after a first step, which makes optimizer states, and the peak bytes of a second one.

    The peak is over as many further steps as the compressor has turns.
    """
    _step(model, optimizer, compiled)
    items, peak = itemise_states(optimizer, model), 0
    for _ in range(optimizer.feedback.compressor.turns):
        optimizer.zero_grad()
        with track_states(optimizer) as tracker:
            _step(model, optimizer, compiled)
        peak = max(peak, tracker.peak_bytes)
    return items, peak


def _step(model: nn.Module, optimizer: DistributedOptimizer, compiled: bool) -> None:
    """Run backward passes that hand over one gradient after the other, last layer first, and a step.

    Autograd holds the gradient of a tied parameter from its last use in the model to its first: here, from the start.
    There it adds the two up in a third tensor. A compiled graph holds every gradient like this. Batches are assumed to
    be large: inputs of a use of a tied parameter are not kept.
    """
    tied = tied_parameters(model)
    twice = {id(slot.parameter) for slot in optimizer.slots if slot.name in optimizer.twice_gradients}
    trainable = [p for p in model.parameters() if p.requires_grad]
    for _ in range(optimizer.backward_passes_per_step):
        whole = [p for p in trainable if not is_by_rows(p) or id(p) in tied & twice]
        waiting = {id(p): torch.empty_like(p) for p in whole if compiled or id(p) in tied}
        for parameter in reversed(trainable):
            waited = waiting.pop(id(parameter), None)
            was_waiting = waited is not None
            if waited is not None and id(parameter) in tied - twice:
                torch.add(waited, torch.empty_like(waited))
            del waited
            planned_use(parameter, was_waiting).backward()
    optimizer.step()
