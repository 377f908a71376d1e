"""Which layers to send without compression: AD-Topk's partial sparsification, and where a ring then moves fewer bytes.

Ming et al., "Enabling efficient all-dimension top-k sparsification for high-performance distributed DNN training
systems", the extended version of ADTopk, HPDC 2024.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from glob import escape

from torch import nn

from resireduce.errors import ConfigError, check_share, is_count
from resireduce.grouping import compressible
from resireduce.pieces import share


@dataclass(frozen=True)
class PartialSelection:
    """Arguments for `resireduce.distribute` with which small layers are sent without compression, by one all-reduce."""

    dense: tuple[str, ...]
    """Patterns of the parameters to send without compression."""
    density: float
    """Share of the elements of all other parameters that is sent."""


def partial_selection(
    model: nn.Module, density: float, dense: Iterable[str] | None = None, keep_budget: bool = True
) -> PartialSelection:
    """Return which layers of `model` to send without compression, and the density of all others.

    Layers of at most x elements are sent dense. x is the largest size of a layer with which these have fewer elements
    than the share `density` of all. The paper minimises the time of compression and of sending: the first falls with x,
    and the second does not change while equally much is sent. It does so for each buffer of several layers; here the
    model is one buffer. Tensors that the library always sends dense are not counted.

    Args:
        model: on any device, also meta.
        density: share of all elements that is to be sent, in (0, 1].
        dense: patterns of parameters that are sent dense whatever their size, as in `resireduce.distribute`.
        keep_budget: whether the others' density is lowered by what the small ones take, so that `density` of all is
            sent. The released code intends that, but takes the larger of both, which is never the lowered one: False.

    Raises ConfigError for a density outside (0, 1] and for a pattern that matches nothing.
    """
    check_share("density", density)
    given, compressed = _compressed(model, dense)
    sizes = {name: parameter.numel() for name, parameter in compressed.items()}
    whole, budget, small = sum(sizes.values()), density * sum(sizes.values()), 0
    for limit in sorted(set(sizes.values())):
        taken = sum(size for size in sizes.values() if size <= limit)
        if taken >= budget:
            break
        small, largest = taken, limit
    names = tuple(escape(name) for name, size in sizes.items() if small and size <= largest)
    rest = (budget - small) / (whole - small) if keep_budget and small else density
    return PartialSelection((*given, *names), rest)


def break_even_selection(
    model: nn.Module,
    density: float,
    world_size: int,
    index_bytes: int = 4,
    dense: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Return patterns of the parameters of `model` that a ring sends faster dense than a share of them.

    Of n elements a rank sends and gets k = max(1, floor(density n)) values with their indices for each of the N - 1
    other ranks. An all-reduce moves 2 (N - 1) / N times the gradient. So a tensor is sent dense if
    k (value + index) N >= 2 n value, all in bytes. With 4 bytes each, that holds for all tensors from density 1 / N on,
    and for hardly any below.
    Give the result to `resireduce.distribute` as `dense`, with merge="hybrid".

    Args:
        model: on any device, also meta.
        density: share of the elements that is sent of what is compressed, in (0, 1].
        world_size: ranks that exchange payloads, 1 or more; of two levels the nodes.
        index_bytes: bytes of an index, 1 or more.
        dense: patterns of parameters that are sent dense whatever their size, as in `resireduce.distribute`.

    Raises ConfigError for a number that is not allowed, and for a pattern that matches nothing.
    """
    check_share("density", density)
    for field, value in (("world_size", world_size), ("index_bytes", index_bytes)):
        if not is_count(value) or not value:
            raise ConfigError(f"{field}: {value!r} is not allowed; give a whole number, 1 or more")
    given, compressed = _compressed(model, dense)
    names = [
        escape(name)
        for name, one in compressed.items()
        if share(density, one.numel()) * (one.itemsize + index_bytes) * world_size >= 2 * one.nbytes
    ]
    return (*given, *names)


def _compressed(model: nn.Module, dense: Iterable[str] | None) -> tuple[tuple[str, ...], dict[str, nn.Parameter]]:
    """Return the patterns given, or those that the model has, and the parameters that are compressed all the same."""
    given = tuple(getattr(model, "dense_parameters", ())) if dense is None else tuple(dense)
    return given, compressible(model, None if dense is None else given)
