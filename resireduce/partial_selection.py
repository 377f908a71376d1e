"""AD-Topk's partial sparsification: Ming et al., "Enabling efficient all-dimension top-k sparsification for
high-performance distributed DNN training systems", the extended version of ADTopk, HPDC 2024."""

from collections.abc import Iterable
from dataclasses import dataclass
from glob import escape

from torch import nn

from resireduce.errors import check_share
from resireduce.grouping import compressible


@dataclass(frozen=True)
class PartialSelection:
    """What to give to `resireduce.distribute`, so that small layers are sent as they are, by one all-reduce."""

    dense: tuple[str, ...]
    """Patterns of the parameters to send without compression."""
    density: float
    """Share of the elements of all other parameters that is sent."""


def partial_selection(
    model: nn.Module, density: float, dense: Iterable[str] | None = None, keep_budget: bool = True
) -> PartialSelection:
    """Return which layers of `model` to send without compression, and with which density all others.

    Layers of at most x elements are sent as they are. Of the sizes that there are, x is the largest with which they
    are fewer elements than `density` of all: the paper minimises the time of compression and of sending, of which the
    second does not change as long as as much is sent, and the first falls with x. It does so for each buffer of
    several layers; here the model is one. What is small to the library in any case is no part of this.

    Args:
        model: on any device, also meta.
        density: share of all elements that is to be sent, in (0, 1].
        dense: patterns of parameters that are sent dense whatever their size, as in `resireduce.distribute`.
        keep_budget: whether the others' density is lowered by as much as the small ones take, so that `density` of all
            is sent. The released code means that, but takes the larger of both, which never is the lower one: False.

    Raises ConfigError for a density outside (0, 1] and for a pattern that matches nothing.
    """
    check_share("density", density)
    given = tuple(getattr(model, "dense_parameters", ())) if dense is None else tuple(dense)
    compressed = compressible(model, None if dense is None else given)
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
