"""Checks of `slices`: their size, and the settings and optimizers with which they work."""

import torch

from resireduce.errors import ConfigError, is_count
from resireduce.settings import Settings
from resireduce.slices.row_step import ELEMENTWISE
from resireduce.wrapped_step import WrappedStep

SMALLEST = 1 << 10
"""Bytes of the smallest slice that may be asked for."""


def check_slices(settings: Settings, optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError for slices of averages that other `settings`, or the `optimizer`, do not allow."""
    given = settings.slices
    if given is None or given is False:
        return
    if given is not True and not (is_count(given) and given >= SMALLEST):
        raise ConfigError(f"slices: {given!r} is not allowed; give True, or a number of bytes, {SMALLEST:,} or more")
    for field, allowed in (("gradients", "streamed"), ("update", "in_step")):
        if getattr(settings, field) != allowed:
            raise ConfigError(
                f"slices: {given} is not allowed with {field}={getattr(settings, field)!r}: averages "
                f"are not brought back one by one then; give {field}={allowed!r}, or leave slices out"
            )
    if settings.hierarchy != "flat":
        raise ConfigError(
            f"slices: {given} is not allowed with a hierarchy of nodes, whose ranks gather averages as a whole; give "
            "hierarchy='flat', or leave slices out"
        )
    if not WrappedStep(optimizer, streamed=True).is_cut:
        raise ConfigError(
            f"slices: {given} is not allowed with {type(optimizer).__name__}, which has a hook before its step or is "
            f"not known to treat each element by itself, as torch's own {', '.join(ELEMENTWISE)} do; leave slices out"
        )
