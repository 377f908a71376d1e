"""Steps of training on tensors without storage: what they leave, and what they hold at their fullest moment."""

import torch
from torch import nn

from resireduce.optimizer import DistributedOptimizer
from resireduce.planning.item import Item
from resireduce.planning.itemise import itemise_states
from resireduce.planning.memory import tied_parameters, track_states
from resireduce.step.slot import Slot


def two_steps(model: nn.Module, optimizer: DistributedOptimizer, compiled: bool) -> tuple[list[Item], int]:
    """Return the tensors held after a first step, which makes optimizer states, and the peak bytes of a second one.

    The peak is over as many further steps as the compressor has turns.

    Args:
        model: without storage.
        optimizer: made of it by `resireduce.distribute`.
        compiled: whether the whole model is one compiled graph, whose gradients all come at the end.
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
    There it adds the two up in a third tensor. A compiled graph holds every gradient like this. A layer with a bias
    makes both of its gradients at once, and hands over that of the bias first. What is added to the gradient of an
    earlier pass lives until the sum has been taken.
    """
    tied = tied_parameters(model)
    slots = {id(slot.parameter): slot for slot in optimizer.slots}
    trainable = [p for p in model.parameters() if p.requires_grad]
    with_bias = _with_bias(model)
    for number in range(optimizer.backward_passes_per_step):
        waiting = {id(p): torch.empty_like(p) for p in trainable if compiled or id(p) in tied}
        beside = {bias: weight for bias, weight in with_bias.items() if weight.requires_grad}
        for parameter in reversed(trainable):
            if (weight := beside.get(id(parameter))) is not None:
                waiting.setdefault(id(weight), torch.empty_like(weight))
            waited = waiting.pop(id(parameter), None)
            if waited is not None and id(parameter) in tied:
                torch.add(waited, torch.empty_like(waited))
            del waited
            added = torch.empty_like(parameter) if number and _has_more(slots.get(id(parameter))) else None
            parameter.sum().backward()
            del added
    optimizer.step()


def _has_more(slot: Slot | None) -> bool:
    """Whether a whole gradient of the parameter of `slot` will be added to that of an earlier pass, in `.grad`."""
    if slot is None or slot.is_guarded:
        return False
    return slot.parameter.grad is not None


def _with_bias(model: nn.Module) -> dict[int, nn.Parameter]:
    """Return the weight of each layer that has a bias too, which comes after it, by the `id` of the bias.

    Names tell: in_proj_weight and in_proj_bias belong together. A parameter that `model` has in more than one place is
    neither.
    """
    tied = tied_parameters(model)
    order = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    held = [dict(layer.named_parameters(recurse=False, remove_duplicate=False)) for layer in model.modules()]
    pairs = [(one.get(name.replace("bias", "weight")), one[name]) for one in held for name in one if "bias" in name]
    return {
        id(bias): weight
        for weight, bias in pairs
        if weight is not None and not {id(weight), id(bias)} & tied
        if order[id(weight)] < order[id(bias)]
    }
