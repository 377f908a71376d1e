"""What ranks bring to distribute(), the same or not, and options of its own."""

from functools import partial
from typing import Any

import torch
from torch import nn

from resireduce.errors import ConfigError
from tests.habits.script import INPUTS, Net, Refused, Script, before_the_step, habit, with_optimizer

DIFFERENT = r"give all ranks the same"


def only_last(script: Script) -> bool:
    return script.ranks > 1 and script.rank == script.ranks - 1


@habit()
def every_rank_starts_elsewhere(script: Script) -> nn.Module:
    """Parameters that no seed made equal: all start from rank 0's."""
    model = script.net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * script.rank)
    script.train(model, script.sgd(model))
    return model


class Buffered(Net):
    """With running statistics, and a buffer that is a part of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = nn.BatchNorm1d(INPUTS)
        self.register_buffer("offset", torch.zeros(INPUTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.statistics(x) + self.offset)


@habit(build=Buffered)
def buffers_start_elsewhere(script: Script) -> nn.Module:
    """Values differ: rank 0's are taken; running statistics are each rank's own from then on."""
    model = script.net()
    model.offset.fill_(script.rank)
    model.statistics.running_mean.fill_(script.rank)
    script.train(model, script.sgd(model))
    model.eval()
    return model


@habit(both=Refused(rf"buffer.*{DIFFERENT}|buffer|differ between ranks", ConfigError), ranks=(2,))
def buffers_of_other_shapes(script: Script) -> nn.Module:
    """One rank has a longer one, or one more."""
    model = script.net()
    model.register_buffer("mask", torch.ones(3 + only_last(script)))
    script.sgd(model)
    return model


@habit(both=Refused(rf"SGD.*AdamW.*{DIFFERENT}|AdamW.*SGD.*{DIFFERENT}|differ between ranks", ConfigError), ranks=(2,))
def another_optimizer_on_one_rank(script: Script) -> nn.Module:
    """SGD and AdamW: one of them by a flag that is set on one machine only."""
    model = script.net()
    kind = torch.optim.AdamW if only_last(script) else torch.optim.SGD
    script.distribute(model, kind(model.parameters(), 1e-3))
    return model


@habit(both=Refused(rf"weight_decay.*{DIFFERENT}|{DIFFERENT}|differ between ranks", ConfigError), ranks=(2,))
def other_options_on_one_rank(script: Script) -> nn.Module:
    """Weight decay that is not the same."""
    model = script.net()
    script.distribute(model, torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.1 * only_last(script)))
    return model


@habit(both=Refused(rf"{DIFFERENT}|differ between ranks", ConfigError), ranks=(2,))
def groups_in_another_order_on_one_rank(script: Script) -> nn.Module:
    """Made from a set, which has no order."""
    model = script.net()
    groups = [{"params": list(model.blocks.parameters()), "lr": 0.1}, {"params": list(model.head.parameters())}]
    script.distribute(model, torch.optim.SGD(groups[::-1] if only_last(script) else groups, 0.01, momentum=0.9))
    return model


@habit(both=Refused(rf"{DIFFERENT}|differ between ranks", ConfigError), ranks=(2,))
def parameters_in_another_order_on_one_rank(script: Script) -> nn.Module:
    """The same, within one group."""
    model = script.net()
    parameters = list(model.parameters())
    script.distribute(model, torch.optim.SGD(parameters[::-1] if only_last(script) else parameters, 0.01))
    return model


@with_optimizer(settings={"warm_up_steps": 2})
def dense_at_first(script: Script, model: Any, optimizer: Any) -> None:
    """warm_up_steps."""
    script.train(model, optimizer, 5)


@with_optimizer(settings={"density": lambda step: (0.5, 0.1, 0.02)[min(step, 2)]})
def a_density_that_falls(script: Script, model: Any, optimizer: Any) -> None:
    """density as a function of the step."""
    script.train(model, optimizer, 5)


@with_optimizer(streamed=Refused(r"max_local_grad_norm", ConfigError), settings={"max_local_grad_norm": 0.05})
def local_gradients_are_clipped(script: Script, model: Any, optimizer: Any) -> None:
    """max_local_grad_norm: kept only."""
    script.train(model, optimizer)


IN_BACKWARD = {"compressor": "none", "scheme": "none", "update": "in_backward"}
NOT_KEPT = Refused(r"update", ConfigError)


@with_optimizer(kept=NOT_KEPT, wrapped=partial(torch.optim.AdamW, lr=1e-3), settings=IN_BACKWARD)
def updates_within_the_backward_pass(script: Script, model: Any, optimizer: Any) -> None:
    """update="in_backward", without compression."""
    script.train(model, optimizer, 4)


@before_the_step(
    streamed=Refused(r"lr.*between backward\(\) and step\(\)|in_backward"), kept=NOT_KEPT, settings=IN_BACKWARD
)
def the_rate_is_set_too_late_for_updates_within_the_backward_pass(
    script: Script, model: Any, optimizer: Any, step: int
) -> None:
    """update="in_backward", and lr set between backward() and step()."""
    optimizer.param_groups[0]["lr"] /= 2
