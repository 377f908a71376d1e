"""What needs processes of its own: DistributedDataParallel around the model, groups of ranks, disagreement."""

import copy
import itertools
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, UsageError
from tests.habits.script import MODES, Net, Script
from tests.processes import on_processes
from tests.worlds import seeded

FLAGS: tuple[dict[str, object], ...] = (
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
)

OUT = "model out of DistributedDataParallel|DistributedDataParallel, .* out of it"


def script(gradients: str, backend: str = "torch") -> Script:
    def distribute(model: nn.Module, optimizer: torch.optim.Optimizer, **options: object) -> object:
        return resireduce.distribute(model, optimizer, backend=backend, **options)  # type: ignore[arg-type]

    return Script(dist.get_rank(), dist.get_world_size(), gradients, seeded(Net), distribute, library=True)


def check_wrapped_by_ddp(_: Communicator) -> None:
    """The trainer wraps the model after it was distributed: the first step ends in the error, whatever the flags."""
    options = itertools.cycle([{}, {"compressor": "none"}, {"backward_passes_per_step": 2}, {"max_grad_norm": 1.0}, {}])
    for (gradients, flags), more in zip(itertools.product(MODES, FLAGS), options, strict=False):
        one = script(gradients)
        model = one.net()
        optimizer = one.sgd(model, **more)
        parallel = DistributedDataParallel(model, **flags)  # type: ignore[arg-type]
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(UsageError, match=OUT):
            for step in range(more.get("backward_passes_per_step", 1)):  # type: ignore[call-overload]
                one.loss(parallel, step).backward()
            optimizer.step()
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items()), (gradients, flags)


def check_wrapped_by_ddp_before(_: Communicator) -> None:
    """The model within the wrapper is given, and the wrapper is trained."""
    for gradients, flags in itertools.product(MODES, FLAGS):
        one = script(gradients)
        parallel = DistributedDataParallel(one.net(), **flags)  # type: ignore[arg-type]
        with pytest.raises((UsageError, ConfigError), match="DistributedDataParallel"):
            optimizer = one.sgd(parallel.module)
            one.loss(parallel, 0).backward()
            optimizer.step()


def check_fork(_: Communicator) -> None:
    """A process that was forked says so at the first gradient; the other one goes on."""
    for gradients in MODES:
        one = script(gradients)
        model = one.net()
        optimizer = one.sgd(model)
        one.train(model, optimizer, 1)
        loss = one.loss(model, 1)  # its graph was made before
        with patch("os.getpid", return_value=-1):
            with pytest.raises(UsageError, match=r"forked after.*call distribute\(\) in each of those"):
                optimizer.zero_grad()
            with pytest.raises(UsageError, match="this process was forked after"):
                optimizer.step()
            if gradients == "streamed":
                with pytest.raises(UsageError, match="this process was forked after"):
                    loss.backward()
        one.train(model, optimizer, 1)


def check_shards(_: Communicator) -> None:
    """ZeroRedundancyOptimizer trains as the class within, also from a checkpoint: it then has None as some states."""
    for gradients in MODES:
        one, models = script(gradients), []
        begun = torch.optim.AdamW(one.net().parameters(), lr=0.01)
        for parameter in begun.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        begun.step()
        for kind in (torch.optim.AdamW, partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.AdamW)):
            models.append(one.net())
            optimizer = kind(models[-1].parameters(), lr=0.01)
            optimizer.load_state_dict(copy.deepcopy(begun.state_dict()))
            one.train(models[-1], one.distribute(models[-1], optimizer), 3)
        assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def test_two_processes() -> None:
    on_processes(2, check_fork, check_shards, check_wrapped_by_ddp_before, check_wrapped_by_ddp)
