"""Checks of fields of a cell that depend on other fields. Standard library only."""

from benchmarks.core import merge_option
from benchmarks.core.checks import integer
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose, is_count, short
from resireduce.scheme import COMPRESSORS, HIERARCHIES

ELEMENTWISE = ("sgd", "adamw")
"""Optimizers of recipes that `resireduce.distribute` accepts with slices: torch's own."""
SMALLEST_SLICE = 1 << 10
"""Bytes of the smallest slice that `resireduce.distribute` accepts."""


def check_hierarchy(hierarchy: str, ranks_per_node: int | None, world_size: int, nodes: int | None) -> None:
    """Raise ConfigError, one line, for a hierarchy that is not known, or ranks that do not divide into its nodes.

    hierarchy, ranks_per_node, world_size, nodes: the cell's fields of these names.
    """
    by_nodes = choose("hierarchy", hierarchy, HIERARCHIES) == "node"
    if by_nodes and world_size == 1:
        raise ConfigError("hierarchy: 'node' is not allowed with world_size 1; allowed: flat")
    if ranks_per_node is None:
        return
    integer("ranks_per_node", ranks_per_node, 1, world_size)
    if not by_nodes:
        raise ConfigError(f"ranks_per_node: {ranks_per_node} is allowed with hierarchy 'node' only")
    on_each = world_size // (nodes or 1)
    if on_each % ranks_per_node:
        raise ConfigError(
            f"ranks_per_node: {ranks_per_node} is not allowed with {on_each} ranks on a machine, which it "
            "must divide evenly"
        )


def check_slices(slices: int | bool | None, model: str, compressor: str, gradients: str, hierarchy: str) -> None:
    """Raise ConfigError, one line, for slices of a size that is not allowed, and with fields that do not allow them.

    slices, model, compressor, gradients, hierarchy: the cell's fields of these names.
    """
    if slices is None:
        return
    most, whole = merge_option.MOST_BYTES, is_count(slices)
    if slices is not True and not (whole and SMALLEST_SLICE <= slices <= most):
        wanted = f"null, true, or bytes, {SMALLEST_SLICE} to {most}"
        raise ConfigError(f"slices: {short(slices)} is not allowed; give {wanted}")
    for field, given, allowed in (("gradients", gradients, "streamed"), ("hierarchy", hierarchy, "flat")):
        if given != allowed:
            raise ConfigError(
                f"slices: {slices} is not allowed with {field} {given!r}; allowed: {allowed}, or slices null"
            )
    optimizer = WORKLOADS[model].optimizer
    own = COMPRESSORS[compressor].corrects_momentum
    if optimizer not in ELEMENTWISE or own:
        raise ConfigError(
            f"slices: {slices} is not allowed with the optimizer of "
            f"{repr(compressor) if own else repr(model)}, which is not known to treat each element by "
            "itself; allowed: null"
        )


def check_momentum(compressor: str, model: str) -> None:
    """Raise ConfigError, one line, if the compressor replaces a momentum that the optimizer of the recipe has not.

    compressor, model: the cell's fields of these names.
    """
    optimizer = WORKLOADS[model].optimizer
    if COMPRESSORS[compressor].corrects_momentum and optimizer != "sgd":
        others = ", ".join(sorted(name for name, one in COMPRESSORS.items() if not one.corrects_momentum))
        raise ConfigError(
            f"compressor: {compressor!r} takes the place of SGD's momentum; {model!r} is trained by {optimizer}; "
            f"allowed: {others}"
        )


def check_nodes(nodes: int | None, world_size: int) -> None:
    """Raise ConfigError, one line, if ranks cannot be spread over the machines evenly.

    nodes, world_size: the cell's fields of these names.
    """
    if nodes is not None and world_size % nodes:
        allowed = ", ".join(str(count) for count in range(1, world_size + 1) if world_size % count == 0)
        raise ConfigError(
            f"nodes: {nodes} is not allowed with world_size {world_size}, which must be divided evenly; "
            f"allowed: {allowed}"
        )
