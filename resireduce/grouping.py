"""Reusable groups and specific layers, found in a model or named by patterns, and layers to send uncompressed."""

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import escape
from typing import Any

from torch import Tensor, nn

from resireduce.errors import ConfigError, check, check_share


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
        for name in [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"groups: {name!r} is named twice; a tensor is in one group or specific, not both")
        for group in [group for group in self.groups if len(group) < 2]:
            raise ConfigError(f"groups: {group!r} has fewer than two members; there is nothing to share")

    @property
    def grouped(self) -> tuple[str, ...]:
        """The members of all groups, by name."""
        return tuple(name for group in self.groups for name in group)

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise ConfigError unless every tensor named is one of `parameters`, and members of a group have one shape."""
        for name in [name for name in (*self.grouped, *self.specific) if name not in parameters]:
            raise ConfigError(f"groups: {name!r} is no trainable compressed tensor of this model")
        for group in self.groups:
            shapes = {name: tuple(parameters[name].shape) for name in group}
            if len(set(shapes.values())) > 1:
                raise ConfigError(f"groups: members must have one shape, these have several: {shapes}")


def is_small(parameter: Tensor) -> bool:
    """Whether `parameter` is 1-D or has under 10,000 elements: it is sent dense then, as in the reference code."""
    return parameter.dim() < 2 or parameter.numel() < 10_000


def compressible(model: nn.Module, dense: Iterable[str] | None = None) -> dict[str, nn.Parameter]:
    """Return the trainable parameters that are compressed, by name, in the order of the model; tied ones once.

    `dense`: shell patterns ("fc.weight", "head.*") of parameters that are sent dense whatever their size; None: those
    that the model names in an attribute `dense_parameters`, if it has one. Raises ConfigError for a pattern that
    matches nothing, and for trained parameters that are complex, or have a gradient of another dtype.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        if parameter.is_complex():
            raise ConfigError(f"model: {name!r} is complex; give real parameters (torch.view_as_real)")
        if getattr(parameter, "grad_dtype", None) not in (None, parameter.dtype):
            raise ConfigError(f"model: {name!r} has grad_dtype {parameter.grad_dtype}; set it to {parameter.dtype}")
    is_list = dense is None or (isinstance(dense, Iterable) and not isinstance(dense, str))
    check("dense", dense, is_list, "a list of patterns of names, such as ['head.*']")
    patterns = tuple(getattr(model, "dense_parameters", ()) if dense is None else dense)
    names = [name for name, _ in model.named_parameters()]
    for pattern in [one for one in patterns if dense is not None and not fnmatch.filter(names, one)]:
        raise ConfigError(f"dense: {pattern!r} matches no parameter; the model has {', '.join(names[:3])}, ...")
    are_dense = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
    return {name: one for name, one in trained.items() if not is_small(one) and name not in are_dense}


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
            for run in _runs(f"{prefix}." if prefix else "", container, parameters, taken):
                groups += cut(run)
                taken.update(run)
    order = {name: position for position, name in enumerate(parameters)}
    groups.sort(key=lambda group: order[group[0]])
    outside = {name: one.numel() for name, one in parameters.items() if name not in taken}
    largest = max(outside, key=lambda name: outside[name], default="")
    is_specific = outside and taken and outside[largest] > max(parameters[name].numel() for name in taken)
    return Grouping(tuple(groups), (largest,) if is_specific else ())


def _runs(prefix: str, container: nn.Module, parameters: Mapping[str, Tensor], taken: set[str]) -> list[list[str]]:
    """Return runs of the container's children, one relative name after the other: the names of their parameters."""
    children = list(container.named_children())
    types = [type(child) for _, child in children]
    # Names as the model has them: wrappers for activation checkpointing report names without their own part.
    relative = dict.fromkeys(name for _, child in children for name, _ in nn.Module.named_parameters(child))
    runs: list[list[str]] = []
    for suffix in relative:
        run: list[str] = []
        last, between = 0, list[type]()
        for position, (key, _) in enumerate(children):
            name, own, gap = f"{prefix}{key}.{suffix}", types[position], types[last + 1 : position]
            if name in parameters and name not in taken:
                are_equal = run and parameters[name].shape == parameters[run[-1]].shape and own is types[last]
                are_apart = own in gap or any(kind.__module__ == nn.MaxPool2d.__module__ for kind in gap)
                if not are_equal or are_apart or (len(run) > 1 and gap != between):
                    runs.append(run := [])
                run.append(name)
                last, between = position, gap
    return [run for run in runs if len(run) > 1]


def cut(run: list[str]) -> list[tuple[str, ...]]:
    """Return up to six equal layers as one group, a longer `run` in threes and a longer last (the paper's Fig. 4)."""
    if len(run) <= 6:
        return [tuple(run)]
    cuts = range(0, len(run) - len(run) % 3, 3)
    return [tuple(run[i : i + 3]) if i != cuts[-1] else tuple(run[i:]) for i in cuts]


FORM = '{"groups": ["blocks.*.fc.weight", ["a.weight", "b.weight"]], "specific": ["embedding.weight"]}'


def match_groups(patterns: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> Grouping:
    """Return the grouping that `patterns` describe among `parameters` (by name, in the order of the model).

    Args:
        patterns: {"groups": [...], "specific": [...]}, either may be left out. An entry of "groups" is a pattern, whose
            matches are cut as a run of equal layers is (up to six are one group, more are cut in threes), or a list of
            patterns, whose matches are one group as they are. An entry of "specific" is a pattern.

    Raises ConfigError for another form, and for a pattern that nothing matches.
    """
    for key in sorted(patterns.keys() - {"groups", "specific"}):
        raise ConfigError(f"groups: key {key!r} is not known; give {FORM}")
    groups: list[tuple[str, ...]] = []
    for entry in _listed(patterns.get("groups", [])):
        groups += cut(_matches([entry], parameters)) if isinstance(entry, str) else [tuple(_matches(entry, parameters))]
    grouping = Grouping(tuple(groups), tuple(_matches(patterns.get("specific", []), parameters)))
    grouping.check(parameters)
    return grouping


def _listed(patterns: Any) -> Iterable[Any]:
    check("groups", patterns, isinstance(patterns, list | tuple), f"lists of patterns, such as {FORM}")
    return patterns


def _matches(patterns: Any, parameters: Mapping[str, Tensor]) -> list[str]:
    """Return the names that a pattern matches, in the order of `parameters`, each once."""
    found = {pattern: fnmatch.filter(parameters, pattern) for pattern in _listed(patterns)}
    for pattern in [pattern for pattern, names in found.items() if not names]:
        raise ConfigError(f"groups: no compressed tensor of the model matches {pattern!r}")
    return [name for name in parameters if any(name in names for names in found.values())]


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

    Source: AD-Topk's partial sparsification: Ming et al., "Enabling efficient all-dimension top-k sparsification for
    high-performance distributed DNN training systems", the extended version of ADTopk, HPDC 2024.
    """
    check_share("density", density)
    given = tuple(getattr(model, "dense_parameters", ()) if dense is None else dense)
    sizes = {name: one.numel() for name, one in compressible(model, None if dense is None else given).items()}
    whole = sum(sizes.values())
    up_to = {limit: sum(size for size in sizes.values() if size <= limit) for limit in sizes.values()}
    limit = max((limit for limit, taken in up_to.items() if taken < density * whole), default=0)
    small = up_to.get(limit, 0)
    names = [escape(name) for name, size in sizes.items() if size <= limit]
    rest = (density * whole - small) / (whole - small) if small else density
    return PartialSelection((*given, *names), rest)
