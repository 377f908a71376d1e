"""The snippets of docs/trainers.md, as they stand there, on two ranks."""

import copy
import functools
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError, UsageError
from tests.processes import all_equal, on_processes
from tests.worlds import same, seeded

GUIDE = Path(__file__).parents[2] / "docs" / "trainers.md"
PASSES = 2
"""Backward passes for one step, in every snippet."""

ARGUMENTS = {
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": PASSES, "num_train_epochs": 1, "seed": 0,
    "lr_scheduler_type": "constant", "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    "logging_strategy": "no", "learning_rate": 1e-3, "optim": "adamw_torch",
}  # fmt: skip
TRAINER = {
    "accelerator": "cpu", "devices": 2, "max_epochs": 1, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""What a reader would add for Hugging Face's TrainingArguments and Lightning's Trainer, beside the guide's subject."""


def snippet(section: str, gradients: str) -> str:
    """The code under a heading of the guide: the first block is streamed, the second kept."""
    (text,) = re.findall(
        rf"^## {section}\n(.*?)(?=^## |\Z)", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[["streamed", "kept"].index(gradients)]


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 104, "n_head": 2, "vocab_size": 150, "n_positions": 8}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def tokens() -> list[dict[str, Tensor]]:
    """24 samples: 3 batches of 4 for each of two ranks, so that the last step has one pass only."""
    ids = torch.randint(150, (24, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(**batch).loss


def play(code: str) -> tuple[nn.Module, nn.Module, list[dict[str, Tensor]]]:
    """Run a snippet: the model before it and after it, and the batches that this rank's model was given."""
    import lightning
    import transformers
    from accelerate.state import AcceleratorState, GradientState

    model = seeded(gpt2)
    start, seen = copy.deepcopy(model), []
    model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    arguments = functools.partial(transformers.TrainingArguments, **ARGUMENTS)
    trainer = functools.partial(lightning.Trainer, **TRAINER)
    try:
        with patch("transformers.TrainingArguments", arguments), patch("lightning.Trainer", trainer):
            exec(code, {"model": model, "dataset": tokens(), "loss": loss})
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    return start, model, seen


def by_hand(model: nn.Module, seen: list[dict[str, Tensor]], scale: float, decay: float) -> nn.Module:
    """What a loop without a trainer makes of `model` with the same batches."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
    optimizer = resireduce.distribute(model, optimizer, density=0.01, max_grad_norm=1.0)
    for first in range(0, len(seen), PASSES):
        batches = seen[first : first + PASSES]
        for batch in batches:
            with nullcontext() if batch is batches[-1] else optimizer.no_sync():
                (loss(model, batch) * scale).backward()
        optimizer.step()
        assert optimizer.grad_norm > 1.0, "else clipping changes nothing"
    return model


TRAINERS = {"Hugging Face Trainer": (2, 0.0), "Accelerate": (1 / PASSES, 0.01), "Lightning": (1 / PASSES, 0.01)}
"""What a trainer multiplies the loss with (Hugging Face's by the world's size, for a model that knows the number of
tokens of all ranks and passes), and the weight decay of its AdamW."""

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


def check_snippets(communicator: Communicator) -> None:
    """Streamed, kept and a loop by hand give the same parameters, on all ranks."""
    for trainer, (scale, decay) in TRAINERS.items():
        trained = []
        for gradients in ("streamed", "kept"):
            start, model, seen = play(snippet(trainer, gradients))
            assert all_equal(model) and not same(model, start) and len(seen) == 3, (trainer, gradients)
            trained.append(model)
        assert same(*trained), trainer
        assert same(trained[0], by_hand(start, seen, scale, decay)), trainer


def check_forgotten(communicator: Communicator) -> None:
    """A trainer that clips or wraps all the same is stopped."""
    for trainer, parts in FORGOTTEN.items():
        for part, (forgotten, cure) in parts.items():
            code = snippet(trainer, "streamed")
            assert part in code
            with pytest.raises((ConfigError, UsageError)) as error:
                play(code.replace(part, forgotten))
            errors = [error.value, error.value.__context__]  # Lightning cleans up, which is an error too
            assert any(re.search(cure, str(one)) for one in errors), (trainer, forgotten, errors)


def check_all(communicator: Communicator) -> None:
    rank, size = str(communicator.rank), str(communicator.world_size)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": "0"}
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }  # not connected to
    os.environ |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for check in (check_snippets, check_forgotten):
            check(communicator)
        os.chdir("/")


def test_two_processes() -> None:
    on_processes(2, check_all)
