"""The rows of the comparison of compressors: one for each setting of a run whose cells observed `contraction`."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from benchmarks.analysis.load_run import Run
from benchmarks.analysis.statistics import Interval, interval, paired
from benchmarks.analysis.table import by_seed
from benchmarks.core.cell import Cell
from benchmarks.core.checks import is_number
from benchmarks.core.record import CellResult
from resireduce.errors import ConfigError

OBSERVED = "contraction"
SEEN = {"contraction": "contraction", "cosine": "cosine", "density": "density_sent"}
"""Observed quantity of each step, and its column: the mean over seeds of the median over steps."""
HELD = ("residuals_bytes", "optimizer_states_bytes", "total_bytes", "peak_states_bytes")


def rivals_rows(run: Run) -> list[dict[str, Any]]:
    """Return a row for each finished setting. Raises ConfigError if a cell did not observe what rows need.

    A row has: model, compressor, scheme, density; seeds; metric_name, higher_is_better, metrics by seed, metric_mean
    and its half_width; lost_mean, lost_half_width and pairs, by how much the metric is worse than that of training
    without compression, seed by seed (None where that has not finished); sent_bytes of a rank's step, dense_bytes of
    them of small tensors; contraction, cosine and density_sent; the most bytes held; step_seconds.
    """
    found = run.settings().items()
    check_observed(result for _, results in found for result in results)
    dense = {setting.model: by_seed(results) for setting, results in found if setting.compressor == "none"}
    return [rivals_row(setting, results, dense.get(setting.model, {})) for setting, results in found if results]


def rivals_row(setting: Cell, results: Sequence[CellResult], dense: dict[int, float]) -> dict[str, Any]:
    """Return the row of one setting, as in `rivals_rows`, from its `results`; `dense`: metrics to compare with.

    Observed values are None if any of the results lacks them.
    """
    named = {name: getattr(setting, name) for name in ("model", "compressor", "scheme", "density")}
    return {**named, **_metric(results, dense), **_observed(results), **_cost(results)}


def _metric(results: Sequence[CellResult], dense: dict[int, float]) -> dict[str, Any]:
    first = results[0]
    names = {"metric_name": first.metric_name, "higher_is_better": first.higher_is_better}
    return names | compared(by_seed(results), dense, first.higher_is_better)


def compared(metrics: dict[int, float], dense: dict[int, float], higher_is_better: bool | None) -> dict[str, Any]:
    """Return a row's metrics by seed, their mean, and the loss against the metrics of `dense`."""
    value, sign = interval(list(metrics.values())), 1 if higher_is_better else -1
    lost = interval([sign * one for one in paired(dense, metrics)]) or Interval(float("nan"), None, 0)
    assert value is not None
    return {
        "seeds": len(metrics),
        "metrics": metrics,
        "metric_mean": value.mean,
        "metric_half_width": value.half_width,
        "lost_mean": lost.mean if lost.n else None,
        "lost_half_width": lost.half_width,
        "pairs": lost.n,
    }


def _observed(results: Sequence[CellResult]) -> dict[str, Any]:
    """Return the observed values: the median over the steps of each seed, averaged over seeds."""
    seen = [_points(result) for result in results]
    if not all(seen):
        return dict.fromkeys(("sent_bytes", "dense_bytes", *SEEN.values()))
    found: dict[str, Any] = {
        "sent_bytes": _mean([median(point["bytes"] for point in points) for points in seen]),
        "dense_bytes": results[0].observations[OBSERVED]["dense_bytes"],
    }
    for name, column in SEEN.items():
        known = [[point[name] for point in points if point[name] is not None] for points in seen]
        found[column] = _mean([median(values) for values in known]) if all(known) else None
    return found


def check_observed(results: Iterable[CellResult]) -> None:
    """Raise ConfigError for the first cell that did not observe what rows need."""
    for result in results:
        if not _points(result):
            raise ConfigError(
                f"{result.cell.name}: it did not observe {OBSERVED!r}; give observe: [{OBSERVED}] in the run's config"
            )


def _points(result: CellResult) -> list[dict[str, Any]]:
    """Return the steps that a cell observed; [] if any part is missing, since a record may hold anything."""
    seen = result.observations.get(OBSERVED, {})
    points = seen.get("points")
    if not isinstance(points, list) or not is_number(seen.get("dense_bytes")):
        return []
    return points if all(map(_is_whole, points)) else []


def _is_whole(point: Any) -> bool:
    if not isinstance(point, dict) or not is_number(point.get("bytes")):
        return False
    return all(name in point and (point[name] is None or is_number(point[name])) for name in SEEN)


def _cost(results: Sequence[CellResult]) -> dict[str, Any]:
    held = {name: max(getattr(result, name) for result in results) for name in HELD}
    timed = [median(result.step_seconds) for result in results if result.step_seconds]
    return held | {"step_seconds": _mean(timed) if timed else None}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
