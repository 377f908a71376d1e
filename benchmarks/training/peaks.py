"""The fullest moment of a step with activations, as a GPU's allocator has it, to be compared with `plan --batch`.

`python -m benchmarks.training.peaks MODEL --device D --output FILE [--tiny]` trains a few steps in each way, with and
without activation checkpointing, with two batch sizes. `python -m benchmarks.training.peaks --beside-plan FILE` plans
the same, on any machine, for a file of such records, or of the one-GPU check.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.core.devices import DEVICES
from benchmarks.core.files import load_json, save_json
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.models.example import sample_of
from benchmarks.training.place import settle_arithmetic
from resireduce.api import distribute
from resireduce.plan import plan
from resireduce.planning import fullest
from resireduce.planning.fullest import blocks_of, choices
from resireduce.scheme import load
from resireduce.settings import Settings

STEPS = 3
"""The last is measured: optimizer states and the order of messages are there."""
LEFT_OUT = ("full residuals, streamed", "int8 residuals, streamed", "no compression, streamed")
"""Choices of a plan that are not measured: others tell as much."""
WITHIN = 0.05
"""How far a plan may be from what was held."""
FUSED = {"fused": True}
ASKED = "as asked"
"""The choice that a plan calls so: the defaults of `distribute`."""
Way = tuple[str, Settings, Any, dict[str, Any]]


def ways(model: str) -> list[Way]:
    """Return the choices that are measured: in words, settings, and the name and arguments of the optimizer."""
    optimizer, other = ("sgd", "adamw") if WORKLOADS[model].optimizer == "sgd" else ("adamw", "sgd")
    asked = Settings(backend="local")
    found = choices(asked, optimizer, FUSED)
    left_out = (*LEFT_OUT, f"as asked, {other}")
    return [(ASKED, asked, optimizer, FUSED), *(way for way in found if way[0] not in left_out)]


def measured(name: str, device: torch.device, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each way, batch and form of activations of the model called `name`: the bytes that were held.

    On a CPU, which has no such allocator, they are None. tiny: the smallest batch alone.
    """
    recipe = WORKLOADS[name]
    settle_arithmetic(device)
    with device:
        model = load(MODELS[name])()
    for batch in (1,) if tiny else (recipe.batch_per_rank, max(1, recipe.batch_per_rank // 2)):
        for checkpointed in (False, True) if blocks_of(model) else (False,):
            for way in ways(name):
                row = {"model": name, "batch": batch, "checkpoint": checkpointed, "choice": way[0]}
                try:
                    yield row | {"held_bytes": held(model, name, batch, checkpointed, way), "reason": None}
                except torch.OutOfMemoryError as error:
                    yield row | {"held_bytes": None, "reason": f"{error}".splitlines()[0]}
                model.zero_grad()


def held(model: nn.Module, name: str, batch: int, checkpointed: bool, way: Way) -> int | None:
    """Return the most bytes that were allocated at once in the last of a few steps."""
    _, given, kind, arguments = way
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wrapped = fullest.make_optimizer(kind, trained, arguments, given)
    task, inputs = sample_of(name, batch, trained[0].device)
    on_gpu = trained[0].is_cuda
    with ExitStack() as stack:
        for block in blocks_of(model) if checkpointed else ():
            anew = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
            stack.enter_context(patch.object(block, "forward", anew))
        optimizer = stack.enter_context(distribute(model, wrapped, **vars(given)))
        for _ in range(STEPS):
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            task.loss(model, inputs).backward()
            optimizer.step()
    return torch.cuda.max_memory_allocated() if on_gpu else None


def beside_plan(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield each of `rows` that has bytes with those that a plan has: `planned_bytes`, and their ratio."""
    plans: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        place = row["model"], row["batch"]
        if row["held_bytes"] is None:
            continue
        if place not in plans:
            optimizer = ways(row["model"])[0][2]
            of_model = plan(
                load(MODELS[row["model"]]), optimizer=optimizer, optimizer_args=FUSED, world_size=1, batch=row["batch"]
            )
            plans[place] = {one["choice"]: one for one in of_model["choices"]}
        planned = plans[place][row["choice"]]["checkpointed_fullest_bytes" if row["checkpoint"] else "fullest_bytes"]
        yield row | {"planned_bytes": planned, "ratio": planned / row["held_bytes"]}


def compare(path: Path) -> int:
    """Print a line for each row of a file beside its plan; return 1 if a plan is not within 5 %."""
    values = load_json(path)
    results = [case["result"] for case in values["cases"] if case["result"]] if "cases" in values else [values]
    rows = [row for one in results for row in one["rows"]]
    wrong = 0
    for row in beside_plan(rows):
        wrong += abs(row["ratio"] - 1) > WITHIN
        form = "checkpointed" if row["checkpoint"] else "plain"
        sizes = f"held {row['held_bytes']:,}, planned {row['planned_bytes']:,} ({row['ratio'] - 1:+.1%})"
        print(f"{row['model']}, batch {row['batch']}, {form}, {row['choice']}: {sizes}", flush=True)
    print(f"{wrong} of {len(rows)} rows are not within {WITHIN:.0%}")
    return bool(wrong)


def main() -> int:
    """Measure a model, and write what was held; or compare a file with plans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", choices=MODELS, metavar="MODEL")
    parser.add_argument("--device", default="cuda", choices=DEVICES)
    parser.add_argument("--tiny", action="store_true", help="the smallest batch, to try it out")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--beside-plan", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.beside_plan is not None:
        return compare(args.beside_plan)
    if args.model is None or args.output is None:
        parser.error("give MODEL and --output, or --beside-plan")
    rows = list(measured(args.model, torch.device(args.device), args.tiny))
    save_json({"rows": rows}, args.output)
    print(f"{args.model}: {len(rows)} peaks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
