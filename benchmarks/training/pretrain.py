"""Train a model densely in one process, once, on its task's pretraining part: the starting point of all its cells."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.core.checks import integer
from benchmarks.core.files import replacing, writable
from benchmarks.core.progress import Progress, Report
from benchmarks.core.registry import MODELS, TASKS
from benchmarks.core.workloads import WORKLOADS, Workload
from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

SEED = 0
"""Seed of all pretraining: seeds vary the training, not its starting point."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--model", required=True, help="model to train, one that has pretrain_steps in its workload")
    parser.add_argument("--output", required=True, type=Path, help="file for the weights (.pt)")
    # One thread by default: the same weights on any number of cores, and two models at once do not wait for each other.
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; changes the last bits (default: 1)")


def _batches(count: int, size: int) -> Iterator[Any]:
    """Yield indices of random batches without end, each sample once an epoch, the last incomplete batch left out."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order.split(size)[: count // size]


def pretrain(workload: Workload, report: Report) -> dict[str, Any]:
    """Train densely with AdamW, warm-up over a tenth of the steps and cosine decay to zero; return the state dict.

    `report` is called with a line of progress every few seconds.
    """
    import torch

    from benchmarks.training.tasks.task import Setting

    task = load(TASKS[workload.task])(Setting(phase="pretrain"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = load(MODELS[workload.model])()
    steps = workload.pretrain_steps
    optimizer = torch.optim.AdamW(model.parameters(), workload.pretrain_learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, workload.pretrain_learning_rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    progress = Progress(report)
    model.train()
    for step, indices in zip(range(1, steps + 1), _batches(len(task), workload.pretrain_batch), strict=False):
        loss = task.loss(model, task.batch(indices))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if progress.is_due() or step == steps:
            so_far = f"loss {loss.item():.3f}, {progress.seconds:.0f} s"
            report(f"pretrain {workload.model}: step {step}/{steps}, {so_far}")
    metric = task.metrics_from(task.evaluate(model, 0, 1))[task.metric]
    report(f"pretrain {workload.model}: {task.metric} {metric:.2f} on the held-out part")
    return model.state_dict()


def main(args: argparse.Namespace) -> int:
    """Write the pretrained weights; return 0. Raises ConfigError for input that cannot be used."""
    workload = WORKLOADS[choose("model", args.model, WORKLOADS)]
    if not workload.pretrain_steps:
        raise ConfigError(f"model: {args.model!r} starts from scratch; run its cells without weights")
    threads = integer("threads", args.threads, 1, 1024)
    writable("output", args.output)
    import torch

    torch.set_num_threads(threads)
    state = pretrain(workload, lambda line: print(line, flush=True))
    with replacing(args.output) as file:
        torch.save(state, file)
    return 0
