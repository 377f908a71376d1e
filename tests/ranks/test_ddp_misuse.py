"""What a script may do to a model in DistributedDataParallel that compressed averages do not survive; what it is told.

Where it can be done right it is: expected is what plain torch computes, from the definition of error feedback.
"""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, UsageError
from tests.processes import on_processes
from tests.worlds import seeded

DENSITY = 0.05


class Branch(nn.Module):
    """`odd` is used if the second argument says so. Two large tensors, and small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.odd, self.head = nn.Linear(120, 120), nn.Linear(120, 120), nn.Linear(120, 4)

    def forward(self, x: Tensor, uses: bool = True) -> Tensor:
        x = self.first(x).tanh()
        return self.head(self.odd(x).tanh() if uses else x)


def loss(model: nn.Module, number: int, uses: bool = True, rank: int | None = None) -> Tensor:
    """The loss of batch `number` of this rank, or of another."""
    rank = dist.get_rank() if rank is None else rank
    x = torch.randn(6, 120, generator=torch.Generator().manual_seed(10 * number + rank))
    return model(x, uses).square().mean()


def hooked(
    model: nn.Module, **ddp: object
) -> tuple[DistributedDataParallel, resireduce.CompressionHook, torch.optim.Optimizer]:
    parallel = DistributedDataParallel(model, **ddp)  # type: ignore[arg-type]
    hook = resireduce.compress_ddp(parallel, "baseline", density=DENSITY)
    return parallel, hook, torch.optim.SGD(model.parameters(), 0.1)


def check_averages_of_a_branch_that_others_use(communicator: Communicator) -> None:
    """The rank that has averages of `odd`, and does not use it again, cannot send its part of them."""
    parallel, _, _ = hooked(seeded(Branch), find_unused_parameters=True)
    loss(parallel, 0).backward()
    if communicator.rank == 0:
        with pytest.raises(RuntimeError):  # waits for the other, which ends
            loss(parallel, 1).backward()
        return
    with pytest.raises(UsageError, match=r"'odd\.weight' was not used in this pass.*Accumulate within model"):
        loss(parallel, 1, uses=False).backward()


def check_averages_of_a_branch_that_nobody_uses(_: Communicator) -> None:
    """They stay, as for another optimizer, which takes its step in turn."""
    parallel, _, _ = hooked(seeded(Branch), find_unused_parameters=True)
    loss(parallel, 0).backward()
    held = parallel.module.odd.weight.grad
    before = held.clone()
    parallel.module.first.zero_grad()
    loss(parallel, 1, uses=False).backward()
    assert torch.equal(parallel.module.odd.weight.grad, before) and before.any()


def check_join(communicator: Communicator) -> None:
    """As with any hook, averages are of all ranks."""
    parallel, hook, optimizer = hooked(seeded(Branch))
    with parallel.join():
        for step in range(2 + communicator.rank):
            optimizer.zero_grad()
            loss(parallel, step).backward()
            optimizer.step()
    assert hook.steps == 3


def check_a_step_of_one_rank_alone(communicator: Communicator) -> None:
    """A state that one rank has loaded, and the other has not: a shared random choice would not be shared."""
    parallel, hook, _ = hooked(seeded(Branch))
    hook.start_at(3 * communicator.rank)
    with pytest.raises(ConfigError, match=r"number of the step, as load_residual_state_dict|another rank says which"):
        loss(parallel, 0).backward()


def check_a_velocity_of_one_rank_alone(communicator: Communicator) -> None:
    """A pass in which one rank alone uses a layer is refused: the other's velocity would neither be sent nor decay."""
    parallel = DistributedDataParallel(seeded(Branch), find_unused_parameters=True)
    resireduce.compress_ddp(parallel, "baseline", "dgc-momentum")
    loss(parallel, 0, uses=False).backward()
    with pytest.raises(UsageError, match=r"'odd\.weight' had a gradient on some ranks and none on others"):
        loss(parallel, 1, uses=communicator.rank == 0).backward()


def test_two_processes() -> None:
    """The last check ends the wrapper of one rank."""
    on_processes(
        2, check_join, check_a_step_of_one_rank_alone, check_a_velocity_of_one_rank_alone,
        check_averages_of_a_branch_that_nobody_uses, check_averages_of_a_branch_that_others_use,
    )  # fmt: skip


def check_states_are_refused(
    hook: resireduce.CompressionHook | resireduce.ShardedCompressionHook, state: dict[str, Tensor]
) -> None:
    for act in (hook.residual_state_dict, lambda: hook.load_residual_state_dict(state), lambda: hook.start_at(3)):
        with pytest.raises(UsageError, match="within a backward pass, or after one that failed half-way"):
            act()


def told(warnings: pytest.WarningsRecorder, text: str) -> int:
    return sum(text in str(one.message) for one in warnings)


@pytest.mark.parametrize("enabled", [False, True])
def test_a_scaler(alone: None, enabled: bool, recwarn: pytest.WarningsRecorder) -> None:
    parallel, _, optimizer = hooked(seeded(Branch))
    scaler = torch.amp.GradScaler("cpu", enabled=enabled, init_scale=8.0)
    for step in range(2):
        optimizer.zero_grad()
        scaler.scale(loss(parallel, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert told(recwarn, "a GradScaler has scaled the loss") == enabled


def test_a_parameter_that_is_frozen_after_the_model_was_wrapped(alone: None) -> None:
    parallel = DistributedDataParallel(seeded(Branch), find_unused_parameters=True)
    parallel.module.first.weight.requires_grad_(False)
    resireduce.compress_ddp(parallel)
    with pytest.raises(KeyError, match="Parameter containing"):
        loss(parallel, 0).backward()


@pytest.mark.parametrize("ignored", [False, True])
def test_a_parameter_that_is_unfrozen_later(alone: None, ignored: bool, recwarn: pytest.WarningsRecorder) -> None:
    """The wrapper does not notice, and averages the others alone."""
    model = seeded(Branch)
    model.first.weight.requires_grad_(False)
    if ignored:  # the script averages it
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["first.weight"])
    parallel, _, optimizer = hooked(model)
    for step in range(3):
        loss(parallel, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert told(recwarn, "'first.weight': trained, but unfrozen or added after") == (step > 1 and not ignored)
        if step == 1:
            model.first.weight.requires_grad_()


@pytest.mark.parametrize("loads", ["nothing", "residuals", "start_at"])
def test_residuals_that_are_forgotten_at_a_restart(alone: None, loads: str, recwarn: pytest.WarningsRecorder) -> None:
    parallel, hook, _ = hooked(seeded(Branch))
    optimizer = torch.optim.AdamW(parallel.parameters())
    loss(parallel, 0).backward()
    optimizer.step()
    saved, state = hook.residual_state_dict(), optimizer.state_dict()
    parallel, hook, _ = hooked(seeded(Branch))
    optimizer = torch.optim.AdamW(parallel.parameters())
    optimizer.load_state_dict(state)
    if loads == "residuals":
        hook.load_residual_state_dict(saved)
    elif loads == "start_at":
        hook.start_at(0)
    for step in range(2):
        loss(parallel, step).backward()
        optimizer.step()
    assert told(recwarn, "but not the residuals") == (loads == "nothing")


def test_states_are_saved_and_loaded_between_passes(alone: None) -> None:
    """A hook of the script runs when some buckets have left, and others have not."""
    parallel, hook, _ = hooked(seeded(Branch), bucket_cap_mb=0.01)
    loss(parallel, 0).backward()
    state = hook.residual_state_dict()
    parallel.module.first.register_full_backward_hook(lambda *_: check_states_are_refused(hook, state))
    loss(parallel, 1).backward()
    assert hook.steps == 2
