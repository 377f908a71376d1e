"""What a run will hold, by the library's own code on tensors without storage."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from resireduce.api import distribute
from resireduce.comm.local import PretendCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.errors import ConfigError, check, check_count, choose, is_count
from resireduce.planning import sums
from resireduce.planning.fullest import Inputs, check_batch, plan_batch
from resireduce.planning.memory import ModelStates, baseline_total, itemise_states, track_states
from resireduce.planning.models import Maker, build_on_meta, make_optimizer, without_storage
from resireduce.scheme import HIERARCHIES, TIMED_MERGES
from resireduce.settings import Settings

UNPLANNED = ("backend", "group", "grad_scaler", "warm_up_steps")
"""Settings that `plan` chooses itself, or with which its figures would be wrong."""


def plan(
    build: Callable[[], nn.Module],
    *,
    optimizer: str | Maker = "sgd",
    optimizer_args: Mapping[str, object] | None = None,
    world_size: int = 8,
    itemised: bool = False,
    ranks_per_node: int | None = None,
    batch: int | None = None,
    inputs: Inputs | None = None,
    checkpoint: bool = False,
    loss_chunk: int | None = None,
    memory: int | str | None = None,
    progress: Callable[[str], object] = str,
    **settings: Any,
) -> dict[str, Any]:
    """Return the model states of one rank, in bytes. Raises ConfigError for a setting that cannot be used.

    Args:
        build: returns the model; it is called under the meta device, so no memory is taken.
        optimizer: sgd (with momentum, its own or the compressor's), adamw, second-moment-adamw, adafactor or rmsprop;
            any by its import path, such as "torch.optim:Adagrad"; or a function that makes one from a list of
            parameters.
        optimizer_args: its keyword arguments, such as {"lr": 0.01}.
        world_size: number of ranks, each of which sends as much as this one.
        itemised: whether to list the tensors too.
        ranks_per_node: required with hierarchy="node": how many ranks share a node, a divisor of `world_size`. The plan
            is for the first of them, which holds most: others may have a row less of tensors whose rows are not evenly
            divisible.
        batch: samples of a step on this rank: the fullest moment is then planned with activations too, as a GPU has
            them. The next four, and `progress`, are for that.
        inputs: called with the model and a batch size under the meta device, returns the loss; None: the attribute
            `inputs` of `build`.
        checkpoint: whether the model's repeated blocks are computed anew in the backward pass.
        loss_chunk: how many rows of logits are made at a time, in the forward pass and anew in the backward pass; None:
            all. For models with `get_output_embeddings()`, whose loss is `cross_entropy` of flattened logits.
        memory: the bytes of the GPU, or a text such as "24GB" or "80GiB".
        progress: told in a few words what is planned next.
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
        fullest_bytes, fullest_at, fullest_..._bytes, choices: with `batch`, what `resireduce.planning.fullest` says.
        memory_bytes, fits, largest_batch: with `memory`.
        items: if itemised, every `resireduce.planning.Item` of parameters, gradients, residuals and
            optimizer_states, which are the sums of these.
    """
    given = _settings(settings, world_size, ranks_per_node)
    chosen: Any = getattr(build, "inputs", None) if inputs is None else inputs
    most = check_batch(batch, chosen, checkpoint, loss_chunk, memory)
    model, arguments = build_on_meta(build), dict(optimizer_args or {})
    # From the third on, passes find what the second has found.
    given = replace(given, backward_passes_per_step=min(given.backward_passes_per_step, 2))
    wrapped = make_optimizer(optimizer, [p for p in model.parameters() if p.requires_grad], arguments, given)
    with distribute(model, wrapped, **vars(given)) as distributed:
        waits = distributed.streamed and not distributed.updates_in_backward
        slots, keeps = distributed.slots, distributed.feedback.keeps_residual
        waiting = sum(slot.template.nbytes for slot in slots if not keeps(slot.name)) if waits else 0
        with without_storage():
            _step(model, distributed)  # which makes optimizer states
            items, peak = itemise_states(distributed, model), 0
            for _ in range(distributed.feedback.compressor.turns):
                distributed.zero_grad()
                with track_states(distributed) as tracker:
                    _step(model, distributed)
                peak = max(peak, tracker.peak_bytes)
        host_residuals = sum(tensor.nbytes for tensor in distributed.feedback.residual.host_tensors())
    states = ModelStates(**sums(items))
    trained = {id(parameter) for group in wrapped.param_groups for parameter in group["params"]}
    baseline = baseline_total(model, states, given.dense)
    result: dict[str, Any] = states.as_dict() | {
        "host_residuals": host_residuals,
        "frozen": sum(one.nbytes for one in model.parameters() if id(one) not in trained),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
        "baseline_total": baseline,
        "normalised": states.total / baseline,
        "peak_states": peak,
        "in_flight": peak - states.total,
        "waiting": waiting,
        "peak_normalised": peak / baseline,
    }
    if itemised:
        result["items"] = items
    if batch is not None:
        result |= plan_batch(model, optimizer, arguments, given, batch, chosen, progress, checkpoint, loss_chunk, most)
    return result


def _settings(settings: dict[str, Any], world_size: int, ranks_per_node: Any) -> Settings:
    """Return what `distribute` is to be given, with ranks that are pretended. Raises ConfigError, or TypeError."""
    check_count("world_size", world_size, 1, "ranks")
    if unknown := settings.keys() - {one.name for one in fields(Settings) if one.name not in UNPLANNED}:
        raise TypeError(f"plan() got an unexpected keyword argument {min(unknown)!r}")
    given = Settings(**settings, backend=PretendCommunicator(world_size))
    if given.merge in TIMED_MERGES:
        raise ConfigError(f"merge: {given.merge!r} is not known before training; give optimizer.messages of a run")
    if choose("hierarchy", given.hierarchy, HIERARCHIES) == "flat":
        check("ranks_per_node", ranks_per_node, ranks_per_node is None, "hierarchy='node' with it")
        return given
    is_divisor = is_count(ranks_per_node) and ranks_per_node > 0 and world_size % ranks_per_node == 0
    check("ranks_per_node", ranks_per_node, is_divisor, f"a divisor of {world_size}, the number of ranks")
    firsts = range(0, world_size, ranks_per_node)
    return replace(given, hierarchy=[[*range(first, first + ranks_per_node)] for first in firsts])


def _step(model: nn.Module, optimizer: DistributedOptimizer) -> None:
    """Run backward passes that hand over one gradient after the other, last layer first, and a step.

    Autograd holds the gradient of a tied parameter from its last use in the model to its first: here, from the start.
    There it adds the two up in a third tensor. A layer with a bias makes both of its gradients at once, and hands over
    that of the bias first. What is added to the gradient of an earlier pass lives until the sum has been taken.
    """
    places = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    weights = _weights_of_biases(model)
    slots = {slot.parameter: slot for slot in optimizer.slots}
    trainable = [p for p in model.parameters() if p.requires_grad]
    for number in range(optimizer.backward_passes_per_step):
        waiting = {p: torch.empty_like(p) for p in trainable if places[p] > 1}
        for parameter in reversed(trainable):
            if (weight := weights.get(parameter)) is not None and places[weight] == places[parameter] == 1:
                waiting[weight] = torch.empty_like(weight)
            if places[parameter] > 1:
                torch.add(waiting[parameter], torch.empty_like(parameter))
            waiting.pop(parameter, None)
            slot = slots.get(parameter)
            has_more = number and slot is not None and not slot.is_guarded and parameter.grad is not None
            added = torch.empty_like(parameter) if has_more else None
            parameter.sum().backward()
            del added
    optimizer.step()


def _weights_of_biases(model: nn.Module) -> dict[nn.Parameter, nn.Parameter]:
    """Return the trained weight before each bias in a layer, by the bias: names tell, as in_proj_weight does."""
    found = {}
    for layer in model.modules():
        before: dict[str, nn.Parameter] = {}
        for name, one in layer.named_parameters(recurse=False):
            if (weight := before.get(name.replace("bias", "weight"))) is not None and weight.requires_grad:
                found[one] = weight
            before[name] = one
    return found
