"""Records for claims, made by arithmetic: those of a world in which every claim holds, and contrary ones."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.cell import Cell
from benchmarks.claims.claim import Scope
from benchmarks.claims.load import load_claims
from benchmarks.record import CellResult
from benchmarks.report.load import Hole, Run
from benchmarks.workloads import WORKLOADS

SHARED = {  # elements that w and 2d save (docs of the bookkeeping: three adjacent layers, half of rows and columns)
    "resnet50": (14_065_664, 0),
    "vgg19": (12_976_128, 77_070_336),
    "bert-base": (56_623_104, 17_584_128),
    "bert-large": (201_326_592, 23_445_504),
    "gpt2-medium": (201_326_592, 38_597_632),
    "gpt2-large": (471_859_200, 48_247_040),
}
SMALL_PARAMETERS, SMALL_SHARED = 1_000_000, {"vgg-digits": (200_000, 470_000)}
LEVELS = {"accuracy": 95.0, "top1": 73.0, "f1": 86.0, "perplexity": 15.0}
LOSSES = {"none": 6.0, "baseline": 0.05, "w+2d": 0.12, "a": 1.0, "w": 0.3, "2d": 0.4, "partial": 0.3}
"""Relative losses of schemes in per cent, so that every claim about accuracy holds."""


def metric_name(model: str) -> str:
    task = WORKLOADS[model].task
    names = {"digits": "accuracy", "questions": "f1", "squad": "f1", "bytes": "perplexity"}
    return names.get(task, "perplexity" if "wikitext" in task else "top1")


def elements(cell: Cell) -> tuple[int, int]:
    """Parameters, and what is left of residuals."""
    counts = load_claims().counts.get(cell.model)
    parameters = counts.parameters if counts else SMALL_PARAMETERS
    full = counts.residuals if counts else SMALL_PARAMETERS - 10_000
    w, two = SHARED.get(cell.model) or SMALL_SHARED.get(cell.model, (500_000, 170_000))
    saved = {"w": w, "2d": two, "w+2d": w + two, "none": full}.get(cell.scheme, 0)
    return parameters, (full - saved) // (8 if cell.residual_dtype == "int4" else 1)


def states(cell: Cell) -> dict[str, int]:
    parameters, residuals = (4 * count for count in elements(cell))
    copies = 1 if WORKLOADS[cell.model].optimizer == "sgd" else 2
    found = {
        "parameters_bytes": parameters,
        "gradients_bytes": parameters if cell.gradients == "kept" else 0,
        "residuals_bytes": residuals,
        "optimizer_states_bytes": copies * parameters,
    }
    total = sum(found.values())
    return found | {
        "total_bytes": total,
        "in_flight_bytes": 0,
        "peak_states_bytes": total,
        "peak_resident_bytes": total,
    }


def loss_of(cell: Cell) -> float:
    options = dict(cell.options)
    if cell.compressor == "none":
        return 0.0
    if cell.scheme == "d":
        return 1.0 if options.get("row_ratio", 0.5) == 0.5 else 4.2
    if cell.scheme == "member":
        return 5.0 if options.get("smallest") else 1.5
    return 0.01 if cell.residual_dtype == "int4" else LOSSES[cell.scheme]


def make(cell: Cell, *, worse: float = 0.0, spread: float = 0.0, slower: float = 1.0, **change: Any) -> CellResult:
    """An ok record; worse by so many per cent, more or less by spread from seed to seed, slower so many times.

    Seeds move all schemes alike, and each of them a little.
    """
    name = metric_name(cell.model)
    noise = crc32(f"{cell.scheme}{cell.options}{cell.residual_dtype}{cell.seed}".encode()) % 100 / 10_000
    loss = loss_of(cell) + worse + spread * (cell.seed - 1) + 0.3 * cell.seed + noise
    metric = LEVELS[name] * (1 + loss / 100 * (1 if name == "perplexity" else -1))
    seconds = [slower * (0.05 + 0.0001 * (step % 7)) for step in range(40)]
    seen = {"wasserstein": 0.1, "jensen_shannon": 0.02, "pairs": 3}, {"wasserstein": 0.3, "jensen_shannon": 0.1}
    device = "Example GPU" if WORKLOADS[cell.model].data else "cpu"
    observed = {"bins": {}, "groups": [], "within": seen[0], "between": seen[1]}
    values = {
        "metric": metric,
        "metric_history": [[1, metric / 2], [2, metric]],
        "steps_per_second": 1 / (sum(seconds) / len(seconds)),
        "wall_seconds": 100.0 * slower,
        "step_seconds": seconds,
        "observations": {"distributions": observed} if cell.observe else {},
        "provenance": {"commit": "c1", "cpu": "Example CPU", "device": device, "packages": {"torch": "2.13"}},
        **states(cell),
        **change,
    }
    return CellResult(
        cell=cell, status="ok", metric_name=name, higher_is_better=name != "perplexity", steps=2, **values
    )


def role_cells(scope: Scope, role: str, seeds: Iterable[int] = (0, 1, 2)) -> list[Cell]:
    """The cells of a role of a scope, of all its models."""
    return [Cell(model=model, seed=seed, **scope.roles[role]) for model in scope.models for seed in seeds]


def run_of(results: Iterable[CellResult], holes: Iterable[tuple[Cell, str, str]] = ()) -> Run:
    """A run that lies on no disk: results, and (cell, status, reason) of what is missing."""
    found = {result.cell: result for result in results}
    missing = {cell: Hole(cell.name, status, reason, "make run") for cell, status, reason in holes}
    return Run(Path("no-such-folder/x"), [*found, *missing], found, missing, [])


def wasted(cell: Cell, copies: float) -> dict[str, int]:
    """Bytes of the cell with residuals that are larger by so many copies of the model."""
    plain = states(cell)
    more = int(copies * plain["parameters_bytes"])
    return {**plain, "residuals_bytes": plain["residuals_bytes"] + more, "total_bytes": plain["total_bytes"] + more}
