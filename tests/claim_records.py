"""Records for claims, made by arithmetic: those of a world in which every claim holds, and contrary ones."""

import math
import re
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from zlib import crc32

from benchmarks.analysis.claims.claim import Scope
from benchmarks.analysis.claims.sound import load_planned, planned_bytes, wrong_seconds
from benchmarks.analysis.load_run import STRETCHES, Hole, Run
from benchmarks.core.cell import Cell
from benchmarks.core.record import BYTE_FIELDS, CellResult
from benchmarks.core.sample_counts import planned_steps, steps_per_second
from benchmarks.core.workloads import WORKLOADS

HELD_OUT = {("resnet-digits", "accuracy"): 449, ("vgg-digits", "accuracy"): 449}
"""Number of held-out answers by small model and metric; the metric is a share of this number."""
LEVELS = {"accuracy": 95.0, "top1": 73.0, "f1": 86.0, "perplexity": 15.0}
LOSSES = {"none": 6.0, "baseline": 0.05, "w+2d": 0.12, "a": 1.0, "w": 0.3, "2d": 0.4, "partial": 0.3}
"""Relative losses of schemes in per cent, so that every claim about accuracy holds."""


def metric_name(model: str) -> str:
    task = WORKLOADS[model].task
    names = {"digits": "accuracy", "questions": "f1", "squad": "f1", "bytes": "perplexity"}
    return names.get(task, "perplexity" if "wikitext" in task else "top1")


def states(cell: Cell) -> dict[str, int]:
    """As `plan` says; of schemes that no claim about bytes is of, full residuals."""
    planned = load_planned()[cell.model]
    residuals = planned_bytes(cell, "residuals_bytes")
    found = {
        "parameters_bytes": planned.parameters_bytes,
        "gradients_bytes": planned.gradients_bytes if cell.gradients == "kept" else 0,
        "residuals_bytes": planned.residuals_bytes["baseline"] if residuals is None else residuals,
        "optimizer_states_bytes": planned.optimizer_states_bytes,
    }
    total = sum(found.values())
    return found | {
        "total_bytes": total,
        "in_flight_bytes": 0,
        "peak_states_bytes": total,
        "peak_resident_bytes": total,
    }


def history(cell: Cell, steps: int, metric: float) -> list[list[float]]:
    """Evaluations as the recipe has them, the last one of the metric."""
    recipe = WORKLOADS[cell.model]
    by_epochs = 1 if cell.steps else recipe.epochs or 1
    count = math.ceil(steps / recipe.evaluate_every) if recipe.evaluate_every else by_epochs
    every = recipe.evaluate_every or steps // count
    name = f"{cell.compressor}{cell.density}{of_scheme(cell)}{cell.seed}"
    own = [Random(f"{name}.{one}").random() / 10 for one in range(count)]
    early = [[every * one, answered(cell, metric * (0.6 + own[one] + 0.3 * one / count))] for one in range(1, count)]
    return [*early, [steps, metric]]


def of_scheme(cell: Cell) -> str:
    return f"{cell.scheme}{cell.options}{cell.residual_dtype}"


def answered(cell: Cell, metric: float) -> float:
    """The nearest metric that a whole number of held-out answers gives, where the metric is a share of them."""
    count = HELD_OUT.get((cell.model, metric_name(cell.model)))
    return metric if count is None else round(metric * count / 100) * 100 / count


def times(cell: Cell, steps: int, slower: float) -> dict[str, Any]:
    """Seconds a step, of which a record keeps 400 means at most; no two cells take as long, in steps or phases."""
    random = Random(cell.name)
    cycle = [(1 + 1e-4 * random.random()) * (0.05 + 0.0001 * one) for one in range(7)]
    count = steps if steps < 2 * STRETCHES else STRETCHES
    slower *= 1.5 if cell.compressor == "none" else 1.0
    seconds = [slower * cycle[step % 7] for step in range(count)]
    wall = 1.1 * sum(seconds) * steps / count
    speed = steps_per_second(seconds)
    found = {"steps": steps, "step_seconds": seconds, "steps_per_second": speed, "wall_seconds": wall}
    step = median(seconds)
    update = (0.1 + 0.5 * random.random()) * step
    return found | {"phase_seconds": {"forward_backward": step - update, "update": update, "step": step}}


def origin(cell: Cell) -> dict[str, Any]:
    """Provenance of a rank's facts and of the workflow: on a GPU for each rank, or on a CPU, all at once elsewhere."""
    on_gpu, ranks, own = bool(WORKLOADS[cell.model].data), cell.world_size, f"{crc32(cell.name.encode()):08x}"
    group = ("nccl" if on_gpu else "gloo") if cell.backend == "torch" else None
    known = {"date": "2026-01-02T03:04:05+00:00", "commit": "c1", "cpu": "Example CPU", "packages": {"torch": "2.13"}}
    return known | {
        "device": "Example GPU" if on_gpu else "cpu",
        "cuda": "12.6" if on_gpu else None,
        "device_memory_bytes": 2**36 if on_gpu else None,
        "gpu_uuids": [f"GPU-{own}-{rank}" if on_gpu else None for rank in range(ranks)],
        "process_group": group,
        "data_hash": f"data of {cell.model}",
        "backend": cell.backend,
        "threads": cell.threads,
        "ranks_per_host": {f"node{node}-{own}": ranks // (cell.nodes or 1) for node in range(cell.nodes or 1)},
        "content": {"cell": cell.to_dict(), "resireduce": "r1", "benchmarks": "b1", "packages": "torch 2.13"},
    }


def diverged(cell: Cell, reason: str = "the loss was nan in step 61 of 200", **change: Any) -> CellResult:
    """What a training on digits leaves that diverged in its 61st step."""
    random = Random(cell.name)
    ranks = [{"rank": rank, "status": "diverged", "reason": reason, "steps": 60} for rank in range(cell.world_size)]
    values = {
        "steps": 60,
        "step_seconds": [0.05 + 0.001 * random.random() for _ in range(60)],
        "wall_seconds": 4.0,
        "metric_history": [[50, 10.0]],
        "failure": {"rank": 0, "step": 61, "phase": "forward"},
        "per_rank": ranks,
        "provenance": origin(cell),
    }
    return CellResult(cell=cell, status="diverged", reason=reason, **(values | change))


def in_answers(cell: Cell, count: int, level: float, loss: float) -> float:
    """A metric that is a share of so many answers: seeds move all schemes alike, and others than full residuals lose
    an answer more in every third seed."""
    steady = cell.scheme == "baseline" or dict(cell.options).get("row_ratio") == 0.75
    third = cell.seed % 3 == crc32(of_scheme(cell).encode()) % 3 and not steady
    answers = [round(count * level / 100 * share / 100) for share in (100, loss, 0.3 * cell.seed)]
    return (answers[0] - answers[1] - answers[2] - third) * 100 / count


def loss_of(cell: Cell) -> float:
    options = dict(cell.options)
    if cell.compressor == "none":
        return 0.0
    if cell.scheme == "d":
        return {0.75: 0.5, 0.5: 1.0, 0.25: 4.2}[options.get("row_ratio", 0.5)]
    if cell.scheme == "member":
        return 5.0 if options.get("smallest") else 1.5
    return -0.2 if cell.residual_dtype == "int4" else LOSSES[cell.scheme]


def make(cell: Cell, *, worse: float = 0.0, spread: float = 0.0, slower: float = 1.0, **change: Any) -> CellResult:
    """An ok record; worse by so many per cent, more or less by spread from seed to seed, slower so many times.

    Seeds move all schemes alike, and each of them a little.
    """
    name = metric_name(cell.model)
    noise = crc32(f"{cell.scheme}{cell.options}{cell.residual_dtype}{cell.seed}".encode()) % 100 / 10_000
    loss = loss_of(cell) + worse + spread * (cell.seed - 1) + 0.3 * cell.seed + noise
    metric = LEVELS[name] * (1 + loss / 100 * (1 if name == "perplexity" else -1))
    if (count := HELD_OUT.get((cell.model, name))) is not None:
        metric = in_answers(cell, count, LEVELS[name], loss_of(cell) + worse + spread * (cell.seed - 1))
    steps = planned_steps(cell)[0] or 20
    near, far = {"wasserstein": 0.1, "jensen_shannon": 0.02}, {"wasserstein": 0.3, "jensen_shannon": 0.1}
    values = {
        "metric": metric,
        "metric_history": history(cell, steps, metric),
        **times(cell, steps, slower),
        "observations": {"distributions": distances(near, far)} if cell.observe else {},
        "provenance": origin(cell),
        **states(cell),
        **change,
    }
    named: dict[str, Any] = {"metric_name": name, "higher_is_better": name != "perplexity"}
    values = named | {"metrics": {str((named | values)["metric_name"]): values["metric"]}} | values
    return CellResult(cell=cell, status="ok", **({"per_rank": ranks(cell, values)} | values))


def distances(within: dict[str, Any], between: dict[str, Any]) -> dict[str, Any]:
    """What is observed of residuals so far apart: two groups of three members, which differ a little in the first."""
    own = [{**within, "wasserstein": share * within["wasserstein"], "pairs": 3} for share in (0.9, 1.1)]
    groups = [{"within": one, "between": {**between, "pairs": 9}} for one in own]
    return {"bins": {}, "groups": groups, "within": within, "between": between}


def ranks(cell: Cell, values: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank of a record holds, all alike, and its phases, which take each rank other times."""
    each = {name: values[name] for name in BYTE_FIELDS}
    phases = values["phase_seconds"].items()
    return [
        {**each, "phase_seconds": {name: seconds * (1 + rank / 1e6) for name, seconds in phases}}
        for rank in range(cell.world_size)
    ]


def listed() -> dict[str, str]:
    """Verdicts that docs/claims.md lists of claims at odds with themselves, with arithmetic or with the plan."""
    text = (Path(__file__).parents[1] / "docs/claims.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9.-]+)` \| (reproduced|not reproduced) \|", text, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "each once"
    return dict(rows)


def role_cells(scope: Scope, role: str, seeds: Iterable[int] = (0, 1, 2)) -> list[Cell]:
    """The cells of a role of a scope, of all its models."""
    return [Cell(model=model, seed=seed, **scope.roles[role]) for model in scope.models for seed in seeds]


def run_of(results: Iterable[CellResult], holes: Iterable[tuple[Cell, str, str]] = ()) -> Run:
    """A run that lies on no disk: results, and (cell, status, reason) of what is missing."""
    found = {result.cell: result for result in results}
    missing = {cell: Hole(cell.name, status, reason, "make run") for cell, status, reason in holes}
    whole = [one for one in found.values() if one.steps < 2 * STRETCHES]
    doubts = {one.cell: why for one in whole if (why := wrong_seconds(one))}
    return Run(Path("no-such-folder/x"), [*found, *missing], found, missing, [], doubts=doubts)


def wasted(cell: Cell, copies: float) -> dict[str, int]:
    """Bytes of the cell with residuals that are larger by so many copies of the model."""
    plain = states(cell)
    more = int(copies * plain["parameters_bytes"])
    return {name: value + more * (name in WASTE) for name, value in plain.items()}


WASTE = ("residuals_bytes", "total_bytes", "peak_states_bytes", "peak_resident_bytes")
