"""The ranks of a job as one level, or as two: within a node, and between nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.nodes import find_nodes, places
from resireduce.errors import warn

NOT_BETWEEN = (
    "hierarchy: all {ranks} ranks share one node, so that nothing is sent between nodes, and compressing saves "
    "nothing: give hierarchy='flat', or the ranks of each node if they are on several"
)
ONE_EACH = (
    "hierarchy: each of the {ranks} ranks is on a node of its own by {source}, so that residuals are whole, as with "
    "hierarchy='flat'; if several share a machine, give the ranks of each node, such as [[0, 1], [2, 3]]"
)


@dataclass(frozen=True)
class Levels:
    """The ranks among which averages are formed, on one level or two."""

    world: Communicator
    """All ranks."""
    node: Communicator | None
    """Ranks of this rank's node, which sum their gradients and divide the sums; None: there is one level."""
    between: Communicator
    """The ranks that exchange compressed payloads: all, or those with this rank's place in every node."""

    @classmethod
    def of(cls, world: Communicator, hierarchy: object) -> Self:
        """Return the levels of the ranks of `world` for `hierarchy`, as in `resireduce.distribute`.

        All ranks call it together. Raises ConfigError, on all of them, if it is invalid, or impossible there.
        """
        nodes = () if hierarchy == "flat" else find_nodes(world, hierarchy)
        if not nodes or world.world_size == 1:
            return cls(world, None, world)
        if len(nodes[0]) == 1:
            source = "its host name" if hierarchy == "node" else "what was given"
            warn(ONE_EACH.format(ranks=world.world_size, source=source))
            return cls(world, None, world)
        if len(nodes) == 1:
            warn(NOT_BETWEEN.format(ranks=world.world_size))
            (node,) = world.split(nodes)
            return cls(world, node, LocalCommunicator())
        node, between = world.split(nodes, places(nodes))
        return cls(world, node, between)

    @property
    def place(self) -> Mapping[str, int]:
        """Which rank this is: its number among all and, with two levels, its node, and its number there."""
        place = {"rank": self.world.rank, "world_size": self.world.world_size}
        if self.node is None:
            return place
        within = {"place": self.node.rank, "ranks_per_node": self.node.world_size}
        return place | {"node": self.between.rank} | within

    def close(self) -> None:
        """Release the channels of the collectives to other communicators."""
        for communicator in {id(one): one for one in (self.between, self.node, self.world) if one is not None}.values():
            communicator.close()
