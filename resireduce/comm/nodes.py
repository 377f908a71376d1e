"""The ranks of each node, the two levels of communicators, and how the ranks of a node share a tensor."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from resireduce.comm.base import Communicator, Partition
from resireduce.comm.local import LocalCommunicator
from resireduce.errors import ConfigError, warn


def find_nodes(communicator: Communicator, hierarchy: object) -> Partition:
    """Return the ranks of each node, ascending, nodes in the order of their first ranks; the same on all ranks, which
    call it together.

    hierarchy: "node": ranks with the same node number in one step of Slurm, or otherwise with the same host name and
        Linux's boot id, share a node. Or the lists of ranks themselves.
    """
    if isinstance(hierarchy, list | tuple):
        ranks = [rank for node in hierarchy if isinstance(node, list | tuple) for rank in node]
        if sorted(map(repr, ranks)) != sorted(map(repr, range(communicator.world_size))):
            raise ConfigError(
                f"hierarchy: {hierarchy!r} is not allowed with {communicator.world_size} ranks; give the ranks of each "
                "node, every rank once, such as [[0, 1], [2, 3]]"
            )
        nodes = tuple(sorted(tuple(sorted(node)) for node in hierarchy))
    else:
        # What was started within one task of a step of Slurm, as by torchrun, has other numbers than the step.
        slurm = os.environ
        numbers = slurm.get("SLURM_PROCID"), slurm.get("SLURM_STEP_NUM_TASKS")
        is_task = numbers == (str(communicator.rank), str(communicator.world_size))
        step = f"{slurm.get('SLURM_JOB_ID')}.{slurm.get('SLURM_STEP_ID')}" if is_task else ""
        boot = Path("/proc/sys/kernel/random/boot_id")  # tells machines of one name apart
        machine = f"{socket.gethostname()} {boot.read_text() if boot.exists() else ''}"
        word = bytearray(f"{step}/{slurm.get('SLURM_NODEID', '')}/{machine}".encode())
        mine = torch.frombuffer(word, dtype=torch.uint8).to(communicator.control_device)
        rows = communicator.all_gather(mine, "resireduce.start.nodes", equal_sizes=False).wait()
        known = [bytes(row.tolist()).decode().split("/", 2) for row in rows]
        is_one_step = len({step for step, _, _ in known}) == 1 and known[0][0]
        said = [node if is_one_step else machine for _, node, machine in known]
        nodes = tuple(tuple(rank for rank, one in enumerate(said) if one == word) for word in dict.fromkeys(said))
    sizes = {len(node) for node in nodes}
    if len(sizes) > 1:
        told = "; ".join(f"ranks {', '.join(map(str, node))}" for node in nodes)
        raise ConfigError(
            f"hierarchy: nodes must have equally many ranks, and these have {min(sizes)} to {max(sizes)} ({told}); "
            "start as many on each, or give hierarchy='flat'"
        )
    return nodes


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
        if world.world_size > 1 and nodes and 1 in (len(nodes), len(nodes[0])):
            warn(
                f"hierarchy: {len(nodes)} nodes of {len(nodes[0])} ranks were found, so that two levels change nothing "
                "between these: give hierarchy='flat', or the ranks of each node, such as [[0, 1], [2, 3]]"
            )
        if not nodes or len(nodes[0]) == 1:
            return cls(world, None, world)
        if len(nodes) == 1:
            (node,) = world.split(nodes)
            return cls(world, node, LocalCommunicator())
        node, between = world.split(nodes, tuple(zip(*nodes, strict=True)))
        return cls(world, node, between)

    @property
    def place(self) -> Mapping[str, int]:
        """Which rank this is: its number among all and, with two levels, its node, and its number there."""
        place = {"rank": self.world.rank, "world_size": self.world.world_size}
        if self.node is not None:
            place |= {"node": self.between.rank, "place": self.node.rank, "ranks_per_node": self.node.world_size}
        return place

    def close(self) -> None:
        """Release the channels of the collectives to other communicators."""
        for communicator in {self.between, self.node or self.world, self.world}:
            communicator.close()


@dataclass(frozen=True)
class NodeSlices:
    """The slices of a tensor of `shape` for `count` ranks, one behind the other; the first may be one unit longer.

    A unit is a row, so that a slice of a matrix is a matrix; or an element, of a tensor with fewer rows than ranks, or
    with none in a row.
    Nothing is padded but messages, and the slice of a rank for which no element is left, which is one zero.
    """

    shape: torch.Size
    """Shape of the whole tensor."""
    count: int
    """Ranks that share it."""

    @property
    def _by_rows(self) -> bool:
        return len(self.shape) > 0 and 0 not in self.shape and self.shape[0] >= self.count

    @property
    def sizes(self) -> list[int]:
        """Elements of the tensor that each rank owns."""
        units = self.shape[0] if self._by_rows else self.shape.numel()
        unit = self.shape[1:].numel() if self._by_rows else 1
        return [(units // self.count + (place < units % self.count)) * unit for place in range(self.count)]

    @property
    def width(self) -> int:
        """Elements of the longest slice, which each has in a message."""
        return max(1, self.sizes[0])

    def shape_of(self, place: int) -> torch.Size:
        """Return the shape of the slice of the rank at `place`, counted from 0: rows of the tensor, or 1-D."""
        size = self.sizes[place]
        return torch.Size((size // self.shape[1:].numel(), *self.shape[1:]) if self._by_rows else (max(1, size),))

    def spread(self, tensor: Tensor) -> Tensor:
        """Return contiguous `tensor` as rows, one for each rank, [count, width]: a view, if all slices are equal."""
        flat, rows = tensor.view(-1), self.count * self.width
        if flat.numel() == rows:
            return flat.view(self.count, self.width)
        spread = flat.new_zeros(self.count, self.width)
        for row, part in zip(spread, flat.split(self.sizes), strict=True):
            row[: part.numel()] = part
        return spread

    def own(self, row: Tensor, place: int) -> Tensor:
        """Return the slice of the rank at `place` in its 1-D `row` of a message: a view."""
        shape = self.shape_of(place)
        return row[: shape.numel()].view(shape)

    def padded(self, own: Tensor) -> Tensor:
        """Return the slice `own` of a rank as its row of a message, 1-D; a view, if it is as long as that."""
        flat = own.reshape(-1)
        return flat if flat.numel() == self.width else torch.cat((flat, flat.new_zeros(self.width - flat.numel())))

    def joined(self, rows: Tensor) -> Tensor:
        """Return the tensor whose slices are in `rows`, [count, width]; a view, if all slices are equal."""
        if self.shape.numel() == rows.numel():
            return rows.reshape(self.shape)
        return torch.cat([row[:size] for row, size in zip(rows, self.sizes, strict=True)]).view(self.shape)
