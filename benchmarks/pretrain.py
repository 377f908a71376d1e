"""Train a model densely in one process, once, on its task's pretraining part: the starting point of all its cells."""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.checks import integer
from benchmarks.files import writable
from benchmarks.models import MODELS
from benchmarks.tasks import TASKS
from benchmarks.workloads import WORKLOADS, Workload
from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

SEED = 0
"""The same for every cell: what varies between seeds is the training, not where it starts."""
PROGRESS_SECONDS = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--model", required=True, help="model to train, one that has pretrain_steps in its workload")
    parser.add_argument("--output", required=True, type=Path, help="file for the weights (.pt)")
    # One by default: the same weights on any number of cores, and two models at once do not wait for each other.
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; changes the last bits (default: 1)")


def find_workload(model: str) -> Workload:
    """Return the recipe of a model that is pretrained. Raises ConfigError for one that is not, or is unknown."""
    workload = WORKLOADS[choose("model", model, WORKLOADS)]
    if not workload.pretrain_steps:
        raise ConfigError(f"model: {model!r} starts from scratch; run its cells without weights")
    return workload


def _batches(count: int, size: int) -> Iterator[Any]:
    """Yield indices of random batches without end, each sample once an epoch, the last incomplete batch left out."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.split(size)[: count // size]


def pretrain(workload: Workload, report: Callable[[str], None]) -> dict[str, Any]:
    """Train densely with AdamW, warm-up over a tenth of the steps and cosine decay to zero.

    Args:
        workload: the recipe.
        report: called with a line of progress every few seconds.

    Returns:
        The state dict.
    """
    import torch

    from benchmarks.tasks.base import Setting

    task = load(TASKS[workload.task])(Setting(phase="pretrain"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = load(MODELS[workload.model])()
    steps = workload.pretrain_steps
    optimizer = torch.optim.AdamW(model.parameters(), workload.pretrain_learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, workload.pretrain_learning_rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    started = reported = time.monotonic()
    model.train()
    for step, indices in zip(range(1, steps + 1), _batches(len(task), workload.pretrain_batch), strict=False):
        loss = task.loss(model, task.batch(indices))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if time.monotonic() - reported > PROGRESS_SECONDS or step == steps:
            reported = time.monotonic()
            report(
                f"pretrain {workload.model}: step {step}/{steps}, loss {loss.item():.3f}, {reported - started:.0f} s"
            )
    metric = task.metrics_from(task.evaluate(model, 0, 1))[task.metric]
    report(f"pretrain {workload.model}: {task.metric} {metric:.2f} on the held-out part")
    return model.state_dict()


def main(args: argparse.Namespace) -> int:
    """Write the pretrained weights; return 0. Raises ConfigError for input that cannot be used."""
    workload, threads = find_workload(args.model), integer("threads", args.threads, 1, 1024)
    writable("output", args.output)
    import torch

    torch.set_num_threads(threads)
    state = pretrain(workload, lambda line: print(line, flush=True))
    partial = args.output.with_name(f"{args.output.name}.{os.getpid()}.partial")
    torch.save(state, partial)
    partial.replace(args.output)
    return 0
