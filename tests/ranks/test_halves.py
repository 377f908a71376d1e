"""DeAR between processes, over gloo: with all that happens between two steps, and across a checkpoint."""

import copy
import io
from typing import Any

import torch
from torch import nn

import resireduce
from resireduce.comm.base import Communicator
from tests.processes import all_equal, on_processes
from tests.worlds import OPTIMIZERS, Net, loss_of, seeded

STEPS, SAVED = 30, 13
PLAIN = {"compressor": "none", "scheme": "none", "gradients": "kept"}
DEAR = PLAIN | {"merge": "dear-40000"}


def start() -> nn.Module:
    """A small net, the same on all ranks."""
    return seeded(lambda: Net(blocks=1))


class Run:
    """Training with a schedule of the learning rate, and an evaluation every fourth step."""

    def __init__(self, communicator: Communicator, name: str, options: dict[str, Any]):
        self.model = start()
        wrapped = OPTIMIZERS[name](list(self.model.parameters()))
        self.optimizer = resireduce.distribute(self.model, wrapped, backend=communicator, **options)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.rank, self.seen = communicator.rank, list[float]()

    def train(self, first: int, last: int) -> "Run":
        """Take the steps from `first` to before `last`."""
        for step in range(first, last):
            self.optimizer.zero_grad()
            loss_of(self.model, torch.Generator().manual_seed(100 * step + self.rank)).backward()
            self.optimizer.step()
            self.schedule.step()
            if step % 4 == 3:
                self.seen.append(self.evaluated())
        return self

    @torch.no_grad()
    def evaluated(self) -> float:
        """The loss in evaluation, of a batch that all ranks have."""
        self.model.eval()
        loss = loss_of(self.model, torch.Generator().manual_seed(7)).item()
        self.model.train()
        return loss

    def state(self) -> dict[str, Any]:
        """What a checkpoint has."""
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}
        return {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()} | {
            "residuals": self.optimizer.residual_state_dict()
        }

    def load(self, saved: bytes) -> "Run":
        """Go on from a checkpoint."""
        state = torch.load(io.BytesIO(saved), weights_only=False)
        for name, part in {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}.items():
            part.load_state_dict(state[name])
        self.optimizer.load_residual_state_dict(state["residuals"])
        return self


def numbers(run: Run) -> torch.Tensor:
    """All parameters and all tensors of the optimizer's state, as one."""
    of_each = run.optimizer.state_dict()["state"]
    states = [value for index in sorted(of_each) for value in of_each[index].values()]
    tensors = [*run.model.state_dict().values(), *(value for value in states if isinstance(value, torch.Tensor))]
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def checks(communicator: Communicator) -> None:
    for name in ("momentum", "adamw"):
        whole, halves = (Run(communicator, name, options).train(0, STEPS) for options in (PLAIN, DEAR))
        assert all_equal(halves.model) and len(halves.optimizer.messages) > 2
        if communicator.world_size == 2:  # a + b = b + a
            assert torch.equal(numbers(whole), numbers(halves)) and whole.seen == halves.seen
        else:  # rounding of sums of three, and what AdamW makes of it where gradients are near zero
            torch.testing.assert_close(torch.tensor(halves.seen), torch.tensor(whole.seen), rtol=1e-3, atol=0.0)
        saved = io.BytesIO()
        torch.save(Run(communicator, name, DEAR).train(0, SAVED).state(), saved)
        resumed = Run(communicator, name, DEAR).load(saved.getvalue()).train(SAVED, STEPS)
        assert torch.equal(numbers(resumed), numbers(halves)), "a checkpoint has the last step"


def check_sums_of_parts(communicator: Communicator) -> None:
    """Sums of halves are formed in the order of ranks, in any dtype."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        of_all = torch.randn(
            communicator.world_size, 4 * communicator.world_size, generator=torch.Generator().manual_seed(1)
        )
        of_all = of_all.to(dtype)
        expected = of_all[0].clone()
        for other in of_all[1:]:
            expected += other
        own = communicator.scatter_sum(of_all[communicator.rank].clone(), "sums").wait()
        assert torch.equal(own, expected.view(communicator.world_size, -1)[communicator.rank]) and own.dtype == dtype


def both(communicator: Communicator) -> None:
    check_sums_of_parts(communicator)
    checks(communicator)


def test_two_processes_train_bit_for_bit_as_with_whole_sums() -> None:
    on_processes(2, both)


def test_three_processes_train_as_with_whole_sums_but_for_rounding() -> None:
    on_processes(3, both)
