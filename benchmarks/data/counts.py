"""How many training samples the published data sets have: what a budget reckons with before any data are there."""

from dataclasses import dataclass

from benchmarks.cell import Cell
from benchmarks.data.cifar import CIFAR10, CIFAR100
from benchmarks.data.squad import SQUAD
from benchmarks.workloads import WORKLOADS, Schedule


@dataclass(frozen=True)
class Count:
    """Training samples of a data set, or tokens, of which a sample takes some."""

    number: int
    unit: str
    at_least: str = ""
    """Why there are more, if there are."""


COUNTS = {
    "cifar10": Count(CIFAR10.train_count, "images"),
    "cifar100": Count(CIFAR100.train_count, "images"),
    "imagenet": Count(1_281_167, "images"),
    "squad": Count(SQUAD.train_count, "questions", "one question on a long paragraph makes several samples"),
    "wikitext-2": Count(2_088_628, "tokens", "words are counted, of which byte pairs make more tokens"),
    "wikitext-103": Count(103_227_021, "tokens", "words are counted, of which byte pairs make more tokens"),
}
"""By name of the data set: Krizhevsky 2009; Russakovsky et al. 2015; Rajpurkar et al. 2016; Merity et al. 2017."""


def planned_steps(cell: Cell) -> tuple[int | None, str]:
    """Return a cell's optimizer steps, and why there may be more ("" if not); None if the number is not known."""
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
