"""Checks of fields of a cell that depend on other fields. Standard library only."""

from benchmarks.core.checks import integer
from benchmarks.core.workloads import WORKLOADS
from resireduce.errors import ConfigError, choose
from resireduce.scheme import COMPRESSORS, HIERARCHIES


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
