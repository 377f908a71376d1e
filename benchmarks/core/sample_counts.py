"""Sample counts of the published data sets, from which a budget computes steps; and the measured rate of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.core.cell import Cell
from benchmarks.core.workloads import WORKLOADS, Schedule


@dataclass(frozen=True)
class Count:
    """Number of training samples of a data set, or of its tokens, several of which make one sample."""

    number: int
    unit: str
    at_least: str = ""
    """Why there are more, if there are."""


COUNTS = {
    "cifar10": Count(50_000, "images"),
    "cifar100": Count(50_000, "images"),
    "imagenet": Count(1_281_167, "images"),
    "squad": Count(87_599, "questions", "one question on a long paragraph makes several samples"),
    "wikitext-2": Count(2_088_628, "tokens", "words are counted, of which byte pairs make more tokens"),
    "wikitext-103": Count(103_227_021, "tokens", "words are counted, of which byte pairs make more tokens"),
}
"""By name of the data set: Krizhevsky 2009; Russakovsky et al. 2015; Rajpurkar et al. 2016; Merity et al. 2017."""


def planned_steps(cell: Cell) -> tuple[int | None, str]:
    """Return a cell's optimizer steps (None if not known), and why there may be more ("" if there are not)."""
    workload = WORKLOADS[cell.model]
    fixed = cell.steps or workload.steps
    if fixed:
        return fixed, ""
    count = COUNTS.get(cell.data_name or "")
    if count is None or cell.data == "synthetic":
        return None, ""
    samples = count.number // (cell.length or workload.length or 1) if count.unit == "tokens" else count.number
    try:
        return Schedule(workload, samples, cell.world_size, None, cell.batch_per_rank).steps, count.at_least
    except ValueError:  # fewer samples than one batch of all ranks
        return None, ""


WARMUP_STEPS = 10
"""Steps that are not counted, because memory is still being allocated and the launch order learnt."""


def steps_per_second(step_seconds: Sequence[float]) -> float:
    """Return the rate of the median step after warm-up (after the first half, if there are fewer than twice as many).

    It is the median, since other work on the machine slows some steps down.
    """
    return 1 / median(step_seconds[min(WARMUP_STEPS, len(step_seconds) // 2) :])
