"""Estimate what one cell will take, from records of cells like it; without any, there is no estimate."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.analysis.budget.speeds import Speed
from benchmarks.analysis.grouping import grouped
from benchmarks.core.cell import Cell
from benchmarks.core.sample_counts import planned_steps
from benchmarks.core.workloads import WORKLOADS


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of one cell; None is not known."""

    cell: Cell
    steps: int | None
    hours: float | None = None
    """Wall time."""
    processor_hours: float | None = None
    """GPU hours (ranks x hours); on a CPU, core hours (ranks x threads x hours)."""
    record_bytes: float | None = None
    checkpoint_bytes: int | None = None
    """Disk space while the cell runs."""
    basis: str = "not known"
    """How the estimate was made: measured, scaled from other records, or not known and why."""
    sources: tuple[str, ...] = ()
    """Where the records behind the estimate are."""
    at_least: bool = True
    """Whether the hours leave something out."""


@dataclass(frozen=True)
class Like:
    """Records of cells that are like the one to estimate."""

    speeds: list[Speed]
    basis: str
    left_out: bool = False
    """Whether communication is left out."""


class Recorded:
    """All records of one device, indexed for lookup."""

    def __init__(self, speeds: Iterable[Speed]):
        those = [(_work(speed.cell), speed) for speed in speeds]
        self._by_work = grouped(those)
        self._by_ranks = grouped(((work, speed.cell.world_size), speed) for work, speed in those)
        self._by_setting = grouped(((work, _setting(speed.cell)), speed) for work, speed in those)

    def like(self, cell: Cell) -> Like | None:
        """Return the records most like a cell: of its own setting, its own model, or another number of ranks."""
        work = _work(cell)
        if exact := self._by_setting.get((work, _setting(cell))):
            return Like(exact, f"measured{_inputs(exact)}")
        if same_ranks := self._by_ranks.get((work, cell.world_size)):
            return Like(same_ranks, f"measured with other schemes or options{_inputs(same_ranks)}")
        # On a CPU ranks share the cores, so records of another number of ranks say nothing.
        sizes = {speed.cell.world_size for speed in self._by_work.get(work, []) if speed.on_gpu}
        if not sizes:
            return None
        nearest = min(sizes, key=lambda size: abs(size - cell.world_size))
        found = [speed for speed in self._by_ranks[work, nearest] if speed.on_gpu]
        ranks = "1 rank" if nearest == 1 else f"{nearest} ranks"
        basis = f"scaled from {ranks}: the same time a step, further communication left out{_inputs(found)}"
        return Like(found, basis, left_out=True)


def estimate(cell: Cell, recorded: Recorded) -> Estimate:
    """Return the estimated cost of a cell on the device of the records."""
    steps, more = planned_steps(cell)
    if steps is None:
        return Estimate(cell, None, basis="not known: how many steps")
    like = recorded.like(cell)
    if like is None:
        return Estimate(cell, steps, basis="not known: no record of this model and batch")
    speeds = like.speeds
    seconds = steps / mean(speed.steps_per_second for speed in speeds) + mean(speed.other_seconds for speed in speeds)
    processors = cell.world_size * (1 if speeds[0].on_gpu else mean(speed.threads for speed in speeds))
    sizes = [speed.record_bytes / speed.steps for speed in speeds if speed.record_bytes and speed.steps]
    # With another number of ranks, a checkpoint would have other residuals.
    checkpoints = [speed.checkpoint_bytes for speed in speeds if speed.checkpoint_bytes and not like.left_out]
    return Estimate(
        cell=cell,
        steps=steps,
        hours=seconds / 3600,
        processor_hours=processors * seconds / 3600,
        record_bytes=mean(sizes) * steps if sizes else None,
        checkpoint_bytes=max(checkpoints, default=None),
        basis="; ".join(text for text in (like.basis, more and f"more steps, as {more}") if text),
        sources=tuple(sorted({speed.source for speed in speeds})),
        at_least=bool(like.left_out or more),
    )


def _inputs(speeds: list[Speed]) -> str:
    return ", on synthetic inputs" if all(speed.cell.data == "synthetic" for speed in speeds) else ""


def _work(cell: Cell) -> tuple[object, ...]:
    """Return the fields that affect the time of a step most."""
    workload = WORKLOADS[cell.model]
    return cell.model, cell.batch_per_rank or workload.batch_per_rank, cell.length or workload.length


def _setting(cell: Cell) -> Cell:
    """Return the cell without the fields that do not affect the time of its step."""
    return replace(cell, seed=0, steps=None, data="real", released=(), observe=(), batch_per_rank=None, length=None)
