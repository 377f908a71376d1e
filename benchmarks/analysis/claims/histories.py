"""Check the metric of a finished record and its history against the recipe and each other. Imports no torch."""

import math
from collections.abc import Iterator

from benchmarks.core.record import CellResult
from benchmarks.core.workloads import WORKLOADS

METRICS = {
    "digits": ("accuracy", True),
    "questions": ("f1", True),
    "bytes": ("perplexity", False),
    "cifar": ("top1", True),
    "imagenet": ("top1", True),
    "imagenet-half": ("top1", True),
    "squad": ("f1", True),
    "wikitext": ("perplexity", False),
}
"""The metric of each task, and whether more of it is better; a test compares with the tasks, which import torch."""
SHARES = ("accuracy", "top1", "f1", "exact_match")
"""Metrics in per cent of correct answers. Perplexity is the other kind: at least 1, and less is better."""


def wrong_history(record: CellResult) -> Iterator[str]:
    """Yield one line for each way in which the evaluations are not those of the training."""
    history = record.metric_history
    if not history or any(value is None for pair in history for value in pair):
        yield "metric_history: empty or null, so the metric was never evaluated"
        return
    taken = [int(step or 0) for step, _ in history]
    if taken != sorted(set(taken)) or taken[0] < 1 or taken[-1] != record.steps:
        yield f"metric_history: its steps, up to {taken[-1]}, are not those of a training of {record.steps}"
    if history[-1][1] != record.metric:
        yield f"metric: {record.metric} is not the end of metric_history, {history[-1][1]}"
    if (expected := _evaluations(record)) is not None and len(history) != expected:
        yield f"metric_history: {len(history)} evaluations, its recipe has {expected}"
    every = WORKLOADS[record.cell.model].evaluate_every
    if every and taken[:-1] != [*range(every, record.steps, every)]:
        yield f"metric_history: evaluations after the steps {str(taken)[:60]}, its recipe has one every {every} steps"


def _evaluations(record: CellResult) -> int | None:
    """Return the number of evaluations in a training; None if the recipe does not say."""
    workload = WORKLOADS[record.cell.model]
    if workload.evaluate_every:
        return math.ceil(record.steps / workload.evaluate_every)
    return None if record.cell.steps else workload.epochs


def wrong_metric(record: CellResult) -> Iterator[str]:
    """Yield one line for each value that the metric cannot have, and for a metric that is not the recipe's."""
    name, values = record.metric_name, [float(pair[1] or 0) for pair in record.metric_history]
    if name in SHARES and not (record.higher_is_better and min(values) >= 0 and max(values) <= 100):
        yield f"{name}: from 0 to 100 and higher is better; here up to {max(values):g}, {record.higher_is_better}"
    if name == "perplexity" and (record.higher_is_better or min(values) < 1):
        yield f"perplexity: 1 or more and lower is better; here from {min(values):g}, {not record.higher_is_better}"
    if (name, record.higher_is_better) != (recipe := METRICS[WORKLOADS[record.cell.model].task]):
        yield f"metric_name: {name}, higher_is_better {record.higher_is_better}; its recipe {recipe[0]}, {recipe[1]}"
