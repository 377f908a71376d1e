"""Inputs and loss of a step of each model, those of its recipe, without data: `plan --batch` takes them."""

import sys
from functools import cache, partial

import torch
from torch import Tensor, nn

from benchmarks.core.registry import MODELS, TASKS
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.tasks.task import Batch, Setting, Task
from resireduce.scheme import load


def give_inputs(module: str) -> None:
    """Give each builder in this module, a name of sys.modules, its `inputs`: a function of model and batch size."""
    for name, place in MODELS.items():
        if place.startswith(f"{module}:"):
            builder = getattr(sys.modules[module], place.partition(":")[2])
            builder.inputs = partial(example_loss, name)


def example_loss(name: str, model: nn.Module, batch: int) -> Tensor:
    """Return the loss of `model`, built as `name`, of a `batch` of its recipe's samples, on the model's device.

    A mask of padding is given for each pair of tokens, as the model makes it of real samples: without storage, none of
    which is known to be padded, it would make none.
    """
    task, sample = _sample(name)
    device = next(model.parameters()).device
    inputs = {key: torch.empty((batch, *one.shape[1:]), dtype=one.dtype, device=device) for key, one in sample.items()}
    if (mask := inputs.get("attention_mask")) is not None:
        inputs["attention_mask"] = mask.new_empty((batch, 1, mask.shape[1], mask.shape[1]), dtype=torch.bool)
    return task.loss(model, inputs)


def sample_of(name: str, batch: int, device: torch.device) -> tuple[Task, Batch]:
    """Return the task of the model called `name`, and a `batch` of its recipe's samples on `device`, with values."""
    task, _ = _sample(name)
    with torch.device("cpu"):
        inputs = task.batch(torch.zeros(batch, dtype=torch.long))
    return task, {key: one.to(device) for key, one in inputs.items()}


@cache
def _sample(name: str) -> tuple[Task, Batch]:
    workload = WORKLOADS[name]
    setting = Setting(data=workload.data, synthetic=workload.data is not None, length=workload.length)
    with torch.device("cpu"):
        task: Task = load(TASKS[workload.task])(setting)
        return task, task.batch(torch.zeros(1, dtype=torch.long))
