"""Reusable groups and specific layers, found in a model or named by patterns, and layers to send uncompressed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.errors import ConfigError, check_share

DENSE_BELOW = 10_000
"""Tensors with fewer elements, and all 1-D ones, are sent dense and have no residual, as in the reference code."""

LONGEST_RUN = 6
"""A run of up to this many equal layers is one group; a longer one is cut in threes (the paper's Fig. 4)."""


@dataclass(frozen=True)
class Grouping:
    """Which tensors share a residual, and which have a reduced residual of their own, by parameter name.

    Raises ConfigError for a name that occurs twice, and for a group of one.
    """

    groups: tuple[tuple[str, ...], ...] = ()
    """Names of the members of each group, in the order of the model."""
    specific: tuple[str, ...] = ()
    """Names of the tensors that ResiReduce-d and -2d reduce."""

    def __post_init__(self) -> None:
        names = (*self.grouped, *self.specific)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"groups: {twice!r} is named twice; a tensor is in one group or specific, not both")
        short = next((group for group in self.groups if len(group) < 2), None)
        if short is not None:
            raise ConfigError(f"groups: {short!r} has fewer than two members; there is nothing to share")

    @property
    def grouped(self) -> tuple[str, ...]:
        """The members of all groups, by name."""
        return tuple(name for group in self.groups for name in group)

    def group_of(self, name: str) -> tuple[str, ...]:
        """Return the members of the group that `name` is in. KeyError if it is in none."""
        for group in self.groups:
            if name in group:
                return group
        raise KeyError(name)

    def check(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Raise ConfigError unless every tensor named is one of `parameters`, and members of a group have one shape."""
        for name in (*self.grouped, *self.specific):
            if name not in parameters:
                raise ConfigError(f"groups: {name!r} is no trainable compressed tensor of this model")
        for group in self.groups:
            shapes = {name: tuple(parameters[name].shape) for name in group}
            if len(set(shapes.values())) > 1:
                raise ConfigError(f"groups: members must have one shape, these have several: {shapes}")


def is_small(parameter: torch.Tensor) -> bool:
    """Whether `parameter` is sent dense, without compression and residual: 1-D, or fewer than 10,000 elements."""
    return parameter.dim() < 2 or parameter.numel() < DENSE_BELOW


def compressible(model: nn.Module, dense: Iterable[str] | None = None) -> dict[str, nn.Parameter]:
    """Return the trainable parameters that are compressed, by name, in the order of the model; tied ones once.

    `dense`: shell patterns ("fc.weight", "head.*") of parameters that are sent dense whatever their size; None: those
    that the model names in an attribute `dense_parameters`, if it has one. Raises ConfigError for a pattern that
    matches nothing, and for parameters that are complex.
    """
    check_kinds(model)
    patterns = tuple(getattr(model, "dense_parameters", ())) if dense is None else _given(dense, model)
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and not is_small(parameter) and not any(fnmatchcase(name, p) for p in patterns)
    }


def _given(dense: object, model: nn.Module) -> tuple[str, ...]:
    """Return the patterns given by the caller, each of which must match a parameter."""
    if isinstance(dense, str) or not isinstance(dense, Iterable):
        raise ConfigError(f"dense: {dense!r} is not allowed; give a list of patterns of names, such as ['head.*']")
    patterns, names = tuple(dense), [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not isinstance(pattern, str) or not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"dense: {pattern!r} matches no parameter; the model has {', '.join(names[:3])}, ...")
    return patterns


def check_kinds(model: nn.Module) -> None:
    """Raise ConfigError if a trained parameter of `model` is complex, or has a gradient of another dtype."""
    for name, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise ConfigError(f"model: {name!r} is complex; give real parameters (torch.view_as_real)")
        if parameter.requires_grad and getattr(parameter, "grad_dtype", None) not in (None, parameter.dtype):
            raise ConfigError(f"model: {name!r} has grad_dtype {parameter.grad_dtype}; set it to {parameter.dtype}")


def find_groups(model: nn.Module, parameters: Mapping[str, nn.Parameter] | None = None) -> Grouping:
    """Return groups and specific layers of any `model`, among `parameters` (by name; None: all that are compressed).

    A run consists of children of one Sequential or ModuleList that hold a parameter of the same shape under the same
    relative name. Between its neighbours lie children of the same types each time (convolution, norm, activation), but
    no layer of their own type and no pooling layer. The outermost container that gives a run of two or more wins.
    The largest tensor outside all groups is specific if it is larger than every grouped one.
    """
    parameters = compressible(model) if parameters is None else parameters
    groups: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for prefix, container in model.named_modules():
        if isinstance(container, (nn.Sequential, nn.ModuleList)):
            for run in _runs(prefix, container, parameters, taken):
                if len(run) > 1:
                    groups += cut([name for _, name in run])
                    taken.update(name for _, name in run)
    order = {name: position for position, name in enumerate(parameters)}
    groups.sort(key=lambda group: order[group[0]])
    outside = {name: one.numel() for name, one in parameters.items() if name not in taken}
    largest = max(outside, key=lambda name: outside[name], default="")
    is_specific = outside and taken and outside[largest] > max(parameters[name].numel() for name in taken)
    return Grouping(tuple(groups), (largest,) if is_specific else ())


def _runs(
    prefix: str, container: nn.Module, parameters: Mapping[str, nn.Parameter], taken: set[str]
) -> Iterator[list[tuple[int, str]]]:
    """Yield runs of the container's children, one relative name after the other: each child's position, and the name
    of its parameter."""
    start = f"{prefix}." if prefix else ""
    children = list(container.named_children())
    types = [type(child) for _, child in children]
    # Names as the model has them: wrappers for activation checkpointing report names without their own part.
    relative = dict.fromkeys(name for _, child in children for name, _ in nn.Module.named_parameters(child))
    for suffix in relative:
        run: list[tuple[int, str]] = []
        for position, (key, _) in enumerate(children):
            name = f"{start}{key}.{suffix}"
            if name not in parameters or name in taken:
                continue
            if run and not _continues(run, position, name, parameters, types):
                yield run
                run = []
            run.append((position, name))
        yield run


def _continues(
    run: list[tuple[int, str]], position: int, name: str, parameters: Mapping[str, nn.Parameter], types: list[type]
) -> bool:
    last, last_name = run[-1]
    if parameters[name].shape != parameters[last_name].shape or types[position] is not types[last]:
        return False
    gap = types[last + 1 : position]
    if types[last] in gap or any(kind.__module__ == nn.MaxPool2d.__module__ for kind in gap):
        return False
    return len(run) == 1 or gap == types[run[-2][0] + 1 : last]


def cut(run: list[str]) -> list[tuple[str, ...]]:
    """Return a `run` of equal layers as one group, or as groups of three, the last of which takes the remainder."""
    if len(run) <= LONGEST_RUN:
        return [tuple(run)]
    cuts = range(0, len(run) - len(run) % 3, 3)
    return [tuple(run[i : i + 3]) if i != cuts[-1] else tuple(run[i:]) for i in cuts]


# --- Groups given as shell patterns of parameter names, for models whose structure does not show them ---


FORM = '{"groups": ["blocks.*.fc.weight", ["a.weight", "b.weight"]], "specific": ["embedding.weight"]}'
"""An example, for messages."""


def match_groups(patterns: Mapping[str, object], parameters: Mapping[str, Tensor]) -> Grouping:
    """Return the grouping that `patterns` describe among `parameters` (by name, in the order of the model).

    Args:
        patterns: {"groups": [...], "specific": [...]}, either may be left out. An entry of "groups" is a pattern, whose
            matches are cut as a run of equal layers is (up to six are one group, more are cut in threes), or a list of
            patterns, whose matches are one group as they are. An entry of "specific" is a pattern.

    Raises ConfigError for another form, and for a pattern that nothing matches.
    """
    unknown = sorted(set(patterns) - {"groups", "specific"})
    if unknown:
        raise ConfigError(f"groups: key {unknown[0]!r} is not known; give {FORM}")
    groups: list[tuple[str, ...]] = []
    for entry in _entries(patterns, "groups"):
        groups += cut(_matches([entry], parameters)) if isinstance(entry, str) else [tuple(_matches(entry, parameters))]
    specific = _matches(_entries(patterns, "specific"), parameters)
    grouping = Grouping(tuple(groups), tuple(specific))
    grouping.check(parameters)
    return grouping


def _entries(patterns: Mapping[str, object], key: str) -> list[Any]:
    entries = patterns.get(key, [])
    if not isinstance(entries, list | tuple):
        raise ConfigError(f"groups: {key!r} is {entries!r}, not a list; give {FORM}")
    return list(entries)


def _matches(patterns: object, parameters: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches, in the order of `parameters`, each once."""
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError(f"groups: {patterns!r} is no list of patterns; give {FORM}")
    names = list(parameters)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"groups: no compressed tensor of the model matches {pattern!r}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


# --- Which layers to send without compression: AD-Topk's partial sparsification. Ming et al., "Enabling efficient
# all-dimension top-k sparsification for high-performance distributed DNN training systems", the extended version of
# ADTopk, HPDC 2024 ---


@dataclass(frozen=True)
class PartialSelection:
    """Arguments for `resireduce.distribute` with which small layers are sent without compression, by one all-reduce."""

    dense: tuple[str, ...]
    """Patterns of the parameters to send without compression."""
    density: float
    """Share of the elements of all other parameters that is sent."""


def partial_selection(model: nn.Module, density: float, dense: Iterable[str] | None = None) -> PartialSelection:
    """Return which layers of `model` to send without compression, and the density of all others.

    Layers of at most x elements are sent dense. x is the largest size of a layer with which these have fewer elements
    than the share `density` of all. The paper minimises the time of compression and of sending: the first falls with x,
    and the second does not change while equally much is sent. It does so for each buffer of several layers; here the
    model is one buffer. Tensors that the library always sends dense are not counted.

    Args:
        model: on any device, also meta.
        density: share of all elements that is to be sent, in (0, 1].
        dense: patterns of parameters that are sent dense whatever their size, as in `resireduce.distribute`.

    Raises ConfigError for a density outside (0, 1] and for a pattern that matches nothing.
    """
    check_share("density", density)
    given = tuple(getattr(model, "dense_parameters", ())) if dense is None else tuple(dense)
    sizes = {name: one.numel() for name, one in compressible(model, None if dense is None else given).items()}
    whole, budget, small = sum(sizes.values()), density * sum(sizes.values()), 0
    for limit in sorted(set(sizes.values())):
        taken = sum(size for size in sizes.values() if size <= limit)
        if taken >= budget:
            break
        small, largest = taken, limit
    names = tuple(escape(name) for name, size in sizes.items() if small and size <= largest)
    rest = (budget - small) / (whole - small) if small else density
    return PartialSelection((*given, *names), rest)
