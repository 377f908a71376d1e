"""A workload's optimizer, before it is distributed."""

from fnmatch import fnmatchcase

import torch
from torch import nn

from benchmarks.core.workloads import Workload
from benchmarks.training.bert_adam import BertAdam
from resireduce.optim import DGCSGD


def make_optimizer(workload: Workload, model: nn.Module, corrects_momentum: bool = False) -> torch.optim.Optimizer:
    """Make a recipe's optimizer for the model's parameters; those in `no_decay` have no weight decay.

    Args:
        workload: the recipe.
        model: already on its device.
        corrects_momentum: whether the compressor applies momentum to gradients; SGD then applies it to the decay alone.
    """
    groups = _groups(workload, model)
    if workload.optimizer == "sgd":
        rate, momentum, nesterov = workload.learning_rate, workload.momentum, workload.nesterov
        if corrects_momentum:
            return DGCSGD(groups, rate, decay_momentum=momentum, nesterov=nesterov)
        return torch.optim.SGD(groups, rate, momentum=momentum, nesterov=nesterov)
    if workload.optimizer == "bert-adam":
        return BertAdam(groups, workload.learning_rate)
    return torch.optim.AdamW(groups, workload.learning_rate)


def _groups(workload: Workload, model: nn.Module) -> list[dict[str, object]]:
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        spared = any(fnmatchcase(name, pattern) for pattern in workload.no_decay)
        (others if spared else decayed).append(parameter)
    groups = [(decayed, workload.weight_decay), (others, 0.0)]
    # The fused form needs no temporaries: torch's default on a GPU makes some as large as all parameters, in the
    # fullest moment of a step. On CPUs it is the fastest, most of all for AdamW with the zeros that compression leaves.
    return [{"params": members, "weight_decay": decay, "fused": True} for members, decay in groups if members]
