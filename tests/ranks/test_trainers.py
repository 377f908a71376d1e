"""The snippets of docs/trainers.md on two ranks: what they train and log, and what is said if a part is forgotten."""

import re

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, UsageError
from tests.processes import all_equal, on_processes
from tests.ranks.trainers import TRAINERS, by_hand, change, play, run_checks, snippet
from tests.ranks.trainers_resumed import check_resumed, check_second_trainer, check_second_training
from tests.worlds import Net, loss_of, same, seeded

CLIPS, WRAPS = "give max_grad_norm to resireduce.distribute", "DistributedDataParallel|no_sync"
FORGOTTEN = {
    "Hugging Face Trainer": {
        "max_grad_norm=0": ("max_grad_norm=1.0", CLIPS),
        "self.accelerator.prepare_model(self.model, evaluation_mode=True)": ("pass", WRAPS),
    },
    "Accelerate": {
        "optimizer.step()": ("accelerator.clip_grad_norm_(model.parameters(), 1.0); optimizer.step()", CLIPS),
        "evaluation_mode=True": ("evaluation_mode=False", WRAPS),
    },
    "Lightning": {
        "gradient_clip_val=None": ("gradient_clip_val=1.0", CLIPS),
        "strategy=Streamed()": ("strategy='ddp'", WRAPS),
    },
}
"""Parts of the streamed snippets, what stands there if they are forgotten, and the cure that the error names."""


def check_snippets() -> None:
    """Streamed, kept and a loop by hand give the same parameters, on all ranks; the log has the norms of that loop."""
    for trainer in TRAINERS:
        trained = []
        for gradients in ("streamed", "kept"):
            start, model, seen = play(snippet(trainer, gradients))
            assert all_equal(model) and not same(model, start) and len(seen) == 3, (trainer, gradients)
            trained.append(model)
            assert same(model, by_hand(start, seen, trainer, gradients)[0]), (trainer, gradients)
        assert same(*trained), trainer


def check_norms() -> None:
    """Hugging Face's log has the norm of each step before clipping, and that alone with a limit of infinity."""
    for gradients in ("streamed", "kept"):
        logs = {'"out", ': '"out", logging_strategy="steps", logging_steps=1, '}
        code = change(snippet("Hugging Face Trainer", gradients), logs)
        start, model, seen = play(code, names=(names := {}))
        _, norms = by_hand(start, seen, "Hugging Face Trainer", gradients)
        assert _logged_norms(names) == (norms if gradients == "streamed" else pytest.approx(norms)), gradients
        _, other, _ = play(change(code, {"max_grad_norm=1.0": "max_grad_norm=float('inf')"}), names=names)
        assert _logged_norms(names)[0] == pytest.approx(norms[0]) and not same(model, other), gradients


def _logged_norms(names: dict[str, object]) -> list[float]:
    return [line["grad_norm"] for line in names["trainer"].state.log_history if "loss" in line]


def check_forgotten() -> None:
    """A trainer that clips or wraps all the same is stopped."""
    for trainer, parts in FORGOTTEN.items():
        for part, (forgotten, cure) in parts.items():
            with pytest.raises((ConfigError, UsageError)) as error:
                play(change(snippet(trainer, "streamed"), {part: forgotten}))
            errors = [error.value, error.value.__context__]  # Lightning cleans up, which is an error too
            assert any(re.search(cure, str(one)) for one in errors), (trainer, forgotten, errors)


def check_own_loop(communicator: Communicator) -> None:
    """The loop without a trainer trains as `distribute` does with kept gradients, in the optimizer that it has."""
    code, batches = snippet("DistributedDataParallel", "streamed"), [4 + communicator.rank, 2, 8 + communicator.rank]
    model, other = seeded(Net), seeded(Net)

    def loss(model: nn.Module, batch: int) -> Tensor:
        return loss_of(model, torch.Generator().manual_seed(batch))

    exec(code, {"model": model, "batches": batches, "loss": loss})
    plain = torch.optim.AdamW(other.parameters(), lr=1e-3)
    optimizer = resireduce.distribute(other, plain, "baseline", gradients="kept", max_grad_norm=1.0)
    for batch in batches:
        optimizer.zero_grad()
        loss(other, batch).backward()
        optimizer.step()
    assert same(model, other) and all_equal(model) and not same(model, seeded(Net))


def check_all(communicator: Communicator) -> None:
    check_own_loop(communicator)
    recipes = (check_snippets, check_norms, check_resumed, check_second_training, check_second_trainer)
    run_checks(communicator, (*recipes, check_forgotten))


def test_two_processes() -> None:
    on_processes(2, check_all)
