"""Builds what settings ask for, for `resireduce.distribute` and for wrappers: error feedback and its parts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.comm.nodes import Levels
from resireduce.compressors.base import Compressor
from resireduce.core.feedback import ErrorFeedback
from resireduce.errors import ConfigError, choose, warn
from resireduce.grouping import FORM, Grouping, compressible, find_groups, is_small, match_groups
from resireduce.scheme import BACKENDS, build_compressor, build_residual, find_scheme, load
from resireduce.settings import Settings
from resireduce.start import agree, kinds


def find_compressor(settings: Settings) -> Compressor:
    """Return the compressor that `settings` name or hold. Raises ConfigError for an unknown name."""
    given, density = settings.compressor, settings.density
    if not isinstance(given, Compressor):
        return build_compressor(given, density)
    return _with_density(given, density, 0) if settings.changes_density else given


def _with_density(compressor: Any, density: Any, step: int) -> Compressor:
    return replace(compressor, density=density(step))


def build_feedback(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    compressor: Compressor,
    communicator: Communicator,
    settings: Settings,
    slices: Mapping[str, nn.Parameter] | None = None,
    units: Mapping[str, object] | None = None,
    shards: Communicator | None = None,
) -> tuple[ErrorFeedback, Levels]:
    """Return the error feedback that `settings` ask for, and the one or two levels of the ranks of `communicator`.

    parameters: the trained parameters of `model`, by name. With two levels, payloads of `compressor` travel between
    nodes. slices: what this rank compresses in the place of its parameters, if it has slices of them, by name. units:
    what ranks compare besides, by field; shards: the ranks with the other slices, which compare all this too.

    Raises ConfigError for a setting that cannot be used, and on all ranks if any has other settings than rank 0.
    """
    large = compressible(model, settings.dense)
    compressed = {name: p for name, p in large.items() if name in parameters and compressor.compresses(p.shape)}
    grouping = find_grouping(model, settings.groups, compressed)
    if slices is not None:
        grouping.check(slices)
    where = settings.residual_dtype, communicator.rank, settings.options, settings.residual_device
    residual = build_residual(settings.scheme, grouping, *where)
    of = find_scheme(settings.scheme)
    reduced = (of.grouped != of.other and grouping.groups) or (of.specific != of.other and grouping.specific)
    if not reduced and {of.grouped, of.specific} != {of.other}:
        warn(
            f"scheme {settings.scheme!r} saves nothing in this model: it has no layers of the kinds that it reduces "
            "(see: python -m resireduce groups); name some by groups=Grouping(...)"
        )
    dense = frozenset(parameters.keys() - compressed.keys())
    named = sorted(name for name in dense if not is_small(parameters[name]))
    agreed = settings.agreed(compressor=compressor, groups=grouping, dense=named, **(units or {}))
    for ranks, others in ((communicator, shards), (shards, communicator)):
        if ranks is not None:
            agree(kinds(parameters.items()) | agreed, ranks, beside=others)
    levels = Levels.of(communicator, settings.hierarchy)
    schedule = partial(_with_density, compressor, settings.density) if settings.changes_density else None
    settled = dense, settings.warm_up_steps, levels.place, schedule
    return ErrorFeedback(compressor, residual, levels.between, *settled), levels


def find_grouping(
    model: nn.Module, groups: str | Grouping | Mapping[str, object], compressed: dict[str, nn.Parameter]
) -> Grouping:
    """Return the grouping that `groups` asks for of `compressed` in `model`. Raises ConfigError if it does not fit."""
    if isinstance(groups, Grouping):
        groups.check(compressed)
        return groups
    if isinstance(groups, Mapping):
        return match_groups(groups, compressed)
    if groups != "auto":
        raise ConfigError(f"groups: {groups!r} is not allowed; give 'auto', a Grouping, or {FORM}")
    return find_groups(model, compressed)


def find_communicator(backend: str | Communicator, group: "torch.distributed.ProcessGroup | None") -> Communicator:
    """Return the communicator that `backend` names or is, over the ranks of `group`. Raises ConfigError for another."""
    if group is not None and backend != "torch":
        raise ConfigError(f"group: a process group is not allowed with backend={backend!r}; give backend='torch'")
    if isinstance(backend, Communicator):
        return backend
    kind: Callable[..., Communicator] = load(BACKENDS[choose("backend", backend, BACKENDS)])
    return kind(group) if backend == "torch" else kind()
