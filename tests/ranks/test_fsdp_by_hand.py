"""Units that are reduced by hand, outside of all backward passes, as torch's pipelines do after their microbatches."""

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import resireduce
from resireduce.comm.base import Communicator
from tests.processes import on_processes
from tests.ranks.fsdp import Sharded, compressed, mesh_of, same_values, train
from tests.ranks.test_fsdp_misuse import needs_zeros
from tests.worlds import Block, loss_of, seeded

STEPS, WIDTH = 3, 72


def reduce_by_hand(model: nn.Module) -> None:
    """Do as a stage of torch.distributed.pipelining does after its last microbatch."""
    model.set_requires_gradient_sync(True)  # type: ignore[operator]
    state = fully_shard.state(model)  # type: ignore[attr-defined]
    for one in state._state_ctx.all_states:
        groups = getattr(one, "_fsdp_param_groups", None)
        for group in groups if groups is not None else [one._fsdp_param_group]:
            group.post_backward()
    if hasattr(state._state_ctx, "manual_backward_finalization_active"):  # torch 2.15: which way the pass ends
        state._state_ctx.manual_backward_finalization_active = False
    state._root_post_backward_final_callback()


class Dropping(Sharded):
    """Leaves out a block in every second pass."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        y = self.norm(self.first(x))
        for block in self.blocks if self.passes % 2 else self.blocks[1:]:
            y = block(y)
        return self.head(y)


@pytest.mark.parametrize("makes_zeros", [False, pytest.param(True, marks=needs_zeros)])
@pytest.mark.parametrize("build", [Sharded, Dropping])
@pytest.mark.parametrize("compressor", ["topk", "randomk"])
def test_steps_are_those_of_passes(alone: None, build: type[nn.Module], compressor: str, makes_zeros: bool) -> None:
    """Choices that follow from the number of the step are made anew in each, and a warm-up ends."""
    mesh, found = mesh_of(1, 1), []
    for by_hand in (False, True):
        model, hook = compressed(mesh, build, scheme="baseline", compressor=compressor, warm_up_steps=1)
        if makes_zeros:
            model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
        optimizer, generator = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            model.set_requires_gradient_sync(not by_hand)  # type: ignore[operator]
            loss_of(model, generator).backward()
            if by_hand:
                reduce_by_hand(model)
            optimizer.step()
            optimizer.zero_grad()
        state = hook.residual_state_dict()
        assert hook.steps == STEPS
        train(model, steps=1)
        found.append((model, state))
    (first, of_passes), (second, by_hand_state) = found
    assert same_values(first, second)
    assert all(torch.equal(by_hand_state[name], tensor) for name, tensor in of_passes.items())


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(WIDTH) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)
        return y


def pipelined(mesh: DeviceMesh, compress: bool) -> nn.Module:
    """Train one stage of a pipeline of two, with FSDP's hybrid or with `compress_fsdp` without compression."""
    number = mesh["stage"].get_local_rank()
    model = seeded(Stage)
    part = mesh["shard"] if compress else mesh["replicate", "shard"]
    for block in model.blocks:
        fully_shard(block, mesh=part)
    fully_shard(model, mesh=part)
    hook = resireduce.compress_fsdp(model, mesh["replicate"], "none", "none") if compress else None
    stage = PipelineStage(model, number, 2, torch.device("cpu"), group=mesh["stage"].get_group())
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    optimizer, generator = torch.optim.SGD(model.parameters(), 0.1), torch.Generator().manual_seed(dist.get_rank() // 2)
    for _ in range(STEPS):
        x, y = torch.randn(2, 4, 5, WIDTH, generator=generator)
        schedule.step(*([] if number else [x]), target=y if number else None)
        optimizer.step()
        optimizer.zero_grad()
    assert hook is None or hook.steps == STEPS
    return model


def check_pipeline(_: Communicator) -> None:
    mesh = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("replicate", "stage", "shard"))
    assert same_values(pipelined(mesh, True), pipelined(mesh, False))


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.10"),
    reason="torch 2.9 aborts in a pipeline of a part of the ranks, over Gloo, with plain models too",
)
def test_two_replicas_of_a_pipeline_of_two_stages() -> None:
    on_processes(4, check_pipeline)
