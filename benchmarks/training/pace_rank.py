"""One rank that trains several cells of one model in turn, and times them, for `benchmarks.micro.pace`."""

import gc
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from benchmarks.core.cell import Cell
from benchmarks.core.prepared import find_root
from benchmarks.core.progress import counted
from benchmarks.training.build import build
from benchmarks.training.measure_rank import in_turn, join, meet
from benchmarks.training.place import choose_place, nodes_of, settle_arithmetic
from benchmarks.training.trainer import Trainer
from resireduce.comm.base import Communicator, Handle, Partition
from resireduce.comm.local import LocalCommunicator, PretendCommunicator
from resireduce.comm.nodes import Levels
from resireduce.comm.torch import TorchCommunicator
from resireduce.core.messages import Message, Payload, Summed
from resireduce.merging.profile import TIMED_STEPS
from resireduce.merging.rules import TIMED

# --- Inputs of a simulated step, each timed alone, but on all ranks at once, as they share the machine ---

STEPS = 3
"""Steps in each sample of passes, on which everything simulated rests."""


class Inputs:
    """Samples of all inputs, for all forms in `cells`, which all train one model on the same ranks."""

    def __init__(self, cells: Sequence[Cell]):
        world = TorchCommunicator()
        flat = next(cell for cell in cells if cell.hierarchy == "flat")
        by_node = next((cell for cell in cells if cell.hierarchy == "node"), None)
        self._passes = {cell.hierarchy: Passes(cell) for cell in (flat, by_node) if cell is not None}
        levels: dict[str, Communicator] = {"flat": world}
        if by_node is not None:
            found = Levels.of(world, nodes_of(by_node))
            levels |= {"between": found.between} | ({} if found.node is None else {"in_node": found.node})
        self._collectives = collectives(levels)
        peers = sorted({levels[name].world_size for name in levels if name != "in_node"})
        lossy = {(cell.compressor, cell.density): cell for cell in cells if cell.compressor != "none"}
        self._compression = {form: Compression(cell, peers) for form, cell in lossy.items()}
        self.rounds: list[Mapping[str, Any]] = []
        """The results of each sample, as plain values."""

    def sample(self) -> None:
        """Time everything once; the order of passes alternates, since the first runs on the most rested machine."""
        order = [*self._passes.items()][:: 1 if len(self.rounds) % 2 else -1]
        compression = [
            {"compressor": form[0], "density": form[1], "tensors": timed.sample()}
            for form, timed in self._compression.items()
        ]
        messages = {name: sample_of(one) for name, one in self._collectives.items()}
        self.rounds.append(
            {
                "passes": {hierarchy: [passes.sample() for _ in range(STEPS)] for hierarchy, passes in order},
                "compression": compression,
                "messages": messages,
                "copied_bytes_per_second": copying(),
            }
        )


class Compression:
    """Times the error feedback of one cell's compressor, without sending anything.

    `peers`: numbers of payloads that are averaged; each number is timed.
    """

    def __init__(self, cell: Cell, peers: Sequence[int]):
        alone = replace(cell, backend="local", world_size=1, hierarchy="flat", ranks_per_node=None, merge="none")
        self.trainer = build(alone, LocalCommunicator(), None, find_root())
        self._peers, self._step = peers, 0
        batch = self.trainer.batch(next(self.trainer.indices()), 0)
        self.trainer.train_step(0, batch)  # in the first step, memory is new
        feedback = self.trainer.optimizer.feedback
        own = torch.Generator().manual_seed(0)
        self._gradients = {
            name: torch.randn(parameter.shape, generator=own)
            for name, parameter in self.trainer.model.named_parameters()
            if name not in feedback.dense
        }

    def sample(self) -> list[dict[str, Any]]:
        """Return for each tensor its elements, the seconds to compress it, and those to average, by payload count.

        A compressor whose payloads are summed on their way has one payload, the sum.
        """
        feedback, found = self.trainer.optimizer.feedback, []
        self._step += 1
        feedback.begin_step(self._step)
        meet()
        for name, values in self._gradients.items():
            grad = values.clone()
            start = time.perf_counter()
            feedback.finiteness.check(grad, name)
            message = feedback.compress({name: grad}, self._step)
            compress = time.perf_counter() - start
            assert isinstance(message, Message)
            (payload,), peers = message.payloads, [1] if isinstance(message, Summed) else self._peers
            averaging = {str(count): self._average(payload, name, count) for count in peers}
            found.append({"elements": values.numel(), "compress_seconds": compress, "average_seconds": averaging})
        feedback.states.commit()
        return found

    def _average(self, payload: Payload, name: str, count: int) -> float:
        compressor = self.trainer.optimizer.feedback.compressor_of(name)
        start = time.perf_counter()
        into = torch.empty(payload.shape, dtype=payload.dtype)
        compressor.combine_(into, [payload] * count, 1 / count)
        return time.perf_counter() - start


class Silent(PretendCommunicator):
    """One of the ranks, which takes no time for collectives: sums are its own tensors, of no use but for timing."""

    def split(self, *partitions: Partition) -> list[Communicator]:
        """Return a silent communicator of as many ranks as the first part of each of `partitions` has."""
        return [Silent(len(parts[0])) for parts in partitions]

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Return a handle whose result is `tensor` as it is."""
        return Handle(lambda: tensor)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Return a handle whose result is `tensor`, once for each rank."""
        return Handle(lambda: [tensor] * self.world_size)


class Passes:
    """Times steps of one rank that sends nothing, without compression: passes, the library's own work, the update.

    By node the library does more work: gradients are distributed within the node, and averages reassembled.
    """

    def __init__(self, cell: Cell):
        dense = replace(cell, compressor="none", density=1.0, scheme="none", merge="none")
        self.trainer = build(dense, Silent(cell.world_size), None, find_root())
        self._arrived: dict[str, float] = {}
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.trainer.model.named_parameters()}
        backward = self.trainer.backward

        def note(parameter: Tensor) -> None:
            self._arrived[names[parameter]] = time.perf_counter()

        def marked(loss: Tensor) -> None:
            self._began = time.perf_counter()
            backward(loss)
            self._ended = time.perf_counter()

        for parameter in names:
            parameter.register_post_accumulate_grad_hook(note)
        self.trainer.backward = marked  # type: ignore[method-assign]

    def sample(self) -> dict[str, Any]:
        """Return the seconds from the start of one step to the begin and end of the backward pass, and to its end.

        Also returns `arrived_seconds`, when each gradient arrived, by name.
        """
        self.trainer.model.train()
        self._arrived = {}
        indices = next(iter(self.trainer.indices()))
        meet()
        start = time.perf_counter()
        self.trainer.train_step(0, self.trainer.batch(indices, 0))
        over = time.perf_counter()
        meet()
        return {
            "forward_seconds": self._began - start,
            "arrived_seconds": {name: at - start for name, at in self._arrived.items()},
            "backward_seconds": self._ended - start,
            "step_seconds": over - start,
        }


COPIED, COPIES = 1 << 16, 50
"""Elements that are copied to measure the speed of memory, and how often."""


def copying() -> float:
    """Return the bytes per second that every rank reads and writes when all copy memory at the same time."""
    source, target = torch.zeros(COPIED), torch.empty(COPIED)
    meet()
    start = time.perf_counter()
    for _ in range(COPIES):
        target.copy_(source)
    return 2 * 4 * COPIED * COPIES / (time.perf_counter() - start)


REDUCED_BYTES = (256, 1 << 14, 1 << 17, 1 << 19)
"""Bytes of a dense tensor: from a bias to the largest of a small model."""
GATHERED_BYTES = (64, 1 << 12, 1 << 14, 1 << 16, 1 << 17)
"""Bytes of one rank's payload: from that of a small tensor to all of a small model's in one message."""
IN_TURN, AT_ONCE = 3, 6
"""Numbers of collectives that wait for each other, and that are launched together."""


@dataclass(frozen=True)
class Collective:
    """A collective, all_reduce or all_gather, among the ranks of `communicator`, of tensors of sizes in bytes."""

    communicator: Communicator
    kind: str
    dtype: torch.dtype
    sizes: Sequence[int]

    def launch(self, nbytes: int, number: int = 0) -> Handle[Any]:
        """Begin it with a tensor of this size."""
        tensor = torch.zeros(nbytes // self.dtype.itemsize, dtype=self.dtype)
        handle: Handle[Any] = getattr(self.communicator, self.kind)(tensor, f"timed.{self.kind}.{number}")
        return handle

    def begin(self) -> float:
        """Return when a small one is done, and ranks begin: closer to simultaneous than their return from `meet`."""
        meet()
        self.launch(self.sizes[0]).wait()
        return time.perf_counter()


def collectives(levels: Mapping[str, Communicator]) -> dict[str, Collective]:
    """Return the collectives that steps need on each of the `levels`, by name: "level kind".

    all_reduce_half is for float16, whose sums take processors longer.
    """
    found, half = {}, [size // 2 for size in REDUCED_BYTES]
    for level, communicator in levels.items():
        found[f"{level} all_reduce"] = Collective(communicator, "all_reduce", torch.float32, REDUCED_BYTES)
        found[f"{level} all_reduce_half"] = Collective(communicator, "all_reduce", torch.float16, half)
        found[f"{level} all_gather"] = Collective(communicator, "all_gather", torch.uint8, GATHERED_BYTES)
    return found


def sample_of(collective: Collective) -> list[dict[str, Any]]:
    """Return for each size its bytes, and the seconds of a collective: in turn, at once, and of processor time."""
    rows = []
    for size in collective.sizes:
        start = collective.begin()
        for number in range(IN_TURN):
            collective.launch(size, number).wait()
        in_turn = (time.perf_counter() - start) / IN_TURN
        start, busy = collective.begin(), time.process_time()
        for handle in [collective.launch(size, number) for number in range(AT_ONCE)]:
            handle.wait()
        at_once, busy = (time.perf_counter() - start) / AT_ONCE, (time.process_time() - busy) / AT_ONCE
        rows.append({"bytes": size, "in_turn": in_turn, "at_once": at_once, "processor": busy})
    return rows


# --- The steps that are timed ---

T = TypeVar("T")
WARM_UP_STEPS = 3
TIMED_WARM_UP_STEPS = WARM_UP_STEPS + 1 + TIMED_STEPS
"""Warm-up steps for rules that merge by the times of the first steps, so that these are over."""


def measured(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Time the rounds; return their seconds, a list for each cell.

    `merged` has how many messages each cell sends, and the costs by which a rule has merged them; `inputs`, if the
    settings ask for them, this rank's samples of the inputs of a simulated step, one before each round.
    """
    cells = [Cell.from_dict(values) for values in settings["cells"]]
    rank, place = int(os.environ["RANK"]), choose_place()
    torch.set_num_threads(cells[0].threads)
    if place.device.type == "cuda":
        torch.cuda.set_device(place.device)
        settle_arithmetic(place.device)
    if cells[0].world_size > 1:
        join(folder, place.process_group)
    trainers = _built(cells, place.device, rank)
    inputs = Inputs(cells) if settings["inputs"] else None
    if inputs is not None:
        inputs.sample()
        inputs.rounds.clear()  # in the first sample, memory and threads are new

    def rounds() -> Iterator[int]:
        for number in _told(rank, f"{cells[0].model}: rounds", range(settings["rounds"])):
            if inputs is not None:
                inputs.sample()
            yield number

    seconds = in_turn([partial(_train, trainer, settings["steps"]) for trainer in trainers], rounds())
    merged = []
    for trainer in trainers:
        messages, costs = trainer.optimizer.messages, trainer.optimizer.costs
        merged.append({"messages": len(messages), "costs": None if costs is None else vars(costs)})
    return {"seconds": seconds, "merged": merged, "inputs": None if inputs is None else inputs.rounds}


def _built(cells: Sequence[Cell], device: torch.device, rank: int) -> list[Trainer]:
    """Build all cells, and train them until what the first steps set up is there."""
    trainers = []
    for cell in _told(rank, f"{cells[0].model}: settings prepared", cells):
        communicator = LocalCommunicator() if cell.backend == "local" else TorchCommunicator()
        trainer = build(cell, communicator, None, find_root(), device)
        _train(trainer, TIMED_WARM_UP_STEPS if cell.merge in TIMED else WARM_UP_STEPS)
        trainers.append(trainer)
    gc.collect()
    gc.freeze()  # to go through all that imports have made takes longer than a round, and would fall on any cell
    return trainers


def _told(rank: int, what: str, items: Sequence[T]) -> Iterable[T]:
    """Return the items; rank 0 tells how many are done, if it takes long."""
    return counted(what, items, len(items)) if rank == 0 else items


def _train(trainer: Trainer, steps: int, number: int = 0) -> float:
    """Return the seconds of `steps` steps, from when all ranks are ready to when all are done, in any round."""
    trainer.model.train()
    meet()
    started = time.perf_counter()
    for step, indices in enumerate(islice(trainer.indices(), steps)):
        trainer.train_step(step, trainer.batch(indices, step))
    meet()
    return time.perf_counter() - started
