"""Parameters that share memory without being one parameter, as after `b.weight.data = a.weight.data`.

An optimizer that updates one of them changes the other, so the order of updates matters: plain training has all
gradients before it updates the first.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from resireduce import private
from resireduce.errors import ConfigError
from resireduce.settings import Settings

TIE = "assign the parameter itself (layer.weight = other.weight) and not its .data, before the optimizer is made"
"""What makes two parameters one."""


class _Place(NamedTuple):
    """The bytes from the first to the last element of a tensor."""

    device: str
    start: int
    stop: int
    name: str


def overlapping(trained: Mapping[str, Tensor], others: Mapping[str, Tensor] | None = None) -> tuple[str, str] | None:
    """Return the names of two tensors, one of them at least `trained`, whose spans of memory overlap, if there are any;
    those whose memory cannot be looked at, as on device meta, are left out."""
    for one, place in overlaps({**(others or {}), **trained}.items()):
        if one.name in trained or place.name in trained:
            return one.name, place.name
    return None


def overlaps(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[_Place, _Place]]:
    """Yield the pairs of `tensors`, given with names, whose spans of memory overlap."""
    found = (_place(name, tensor) for name, tensor in tensors)
    begun: list[_Place] = []
    for place in sorted((place for place in found if place is not None), key=lambda place: place[:3]):
        begun = [one for one in begun if one.device == place.device and one.stop > place.start]
        yield from ((one, place) for one in begun)
        begun.append(place)


def check_memory(settings: Settings, model: nn.Module, trained: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if `settings` let some parameters change while others in their memory are still used.

    `trained` are those of `model` that are updated, by name. Frozen ones and buffers in their memory change with them.
    """
    others = dict(model.named_parameters()) | dict(model.named_buffers())
    if settings.in_backward and (pair := overlapping(trained, others)) is not None:
        raise ConfigError(
            f"update: 'in_backward' is not allowed with {pair[0]!r} and {pair[1]!r}, which lie in the same memory: an "
            f"update of one would change the other before all of its uses; {TIE}, or give update='in_step'"
        )


def _place(name: str, tensor: Tensor) -> _Place | None:
    plain = tensor.layout == torch.strided and not tensor.is_meta and not private.is_wrapper(tensor)
    if not plain or not tensor.numel():
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return _Place(str(tensor.device), start, start + (last + 1) * tensor.element_size(), name)
