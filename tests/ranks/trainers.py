"""Runs the snippets of docs/trainers.md, as they stand there: what the tests of the page share."""

import copy
import functools
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator

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

TRAINERS = {"Hugging Face Trainer": (2, 0.0), "Accelerate": (1 / PASSES, 0.01), "Lightning": (1 / PASSES, 0.01)}
"""What a trainer multiplies the loss with (Hugging Face's by the world's size, for a model that knows the number of
tokens of all ranks and passes), and the weight decay of its AdamW."""


def snippet(section: str, which: str) -> str:
    """The code under a heading of the guide: the first block is streamed, the second kept, the third resumes."""
    (text,) = re.findall(
        rf"^## {section}\n(.*?)(?=^## |\Z)", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[["streamed", "kept", "resumed"].index(which)]


def change(code: str, parts: Mapping[str, str]) -> str:
    """The `code` with each of these `parts` replaced, which must all be there."""
    for part, other in parts.items():
        assert part in code, part
        code = code.replace(part, other)
    return code


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 104, "n_head": 2, "vocab_size": 150, "n_positions": 8}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def tokens(samples: int) -> list[dict[str, Tensor]]:
    """For two ranks that take 4 at once."""
    ids = torch.randint(150, (samples, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(**batch).loss


def play(
    code: str, samples: int = 24, names: dict[str, object] | None = None
) -> tuple[nn.Module, nn.Module, list[dict[str, Tensor]]]:
    """Run a snippet, with `names` beside: the model before and after, and the batches that this rank's was given."""
    import lightning
    import transformers
    from accelerate.state import AcceleratorState, GradientState

    model = seeded_gpt2()
    start, seen = copy.deepcopy(model), []
    model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(kwargs), with_kwargs=True)
    arguments = functools.partial(transformers.TrainingArguments, **ARGUMENTS)
    trainer = functools.partial(lightning.Trainer, **TRAINER)
    names = {} if names is None else names
    names |= {"model": model, "dataset": tokens(samples), "loss": loss, "seen": seen}
    try:
        with patch("transformers.TrainingArguments", arguments), patch("lightning.Trainer", trainer):
            exec(code, names)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    return start, model, seen


def seeded_gpt2() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return gpt2()


def by_hand(
    model: nn.Module, seen: list[dict[str, Tensor]], trainer: str, gradients: str
) -> tuple[nn.Module, list[float]]:
    """What a loop without the trainer makes of `model` with the same batches, and the norms of its steps."""
    scale, decay = TRAINERS[trainer]
    model, norms = copy.deepcopy(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=decay)
    optimizer = resireduce.distribute(model, optimizer, density=0.01, max_grad_norm=1.0, gradients=gradients)
    for first in range(0, len(seen), PASSES):
        batches = seen[first : first + PASSES]
        for batch in batches:
            with nullcontext() if batch is batches[-1] else optimizer.no_sync():
                (loss(model, batch) * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(optimizer.grad_norm.item())
    assert max(norms) > 1.0, "else clipping changes nothing"
    return model, norms


@contextmanager
def shared_folder() -> Iterator[None]:
    """All ranks in rank 0's folder, where nothing else is."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        os.chdir(folder[0])
        yield
        os.chdir(before)
        dist.barrier()


def run_checks(communicator: Communicator, checks: tuple[Callable[[], None], ...]) -> None:
    """Each in a folder of its own, and in the environment that torchrun would set up."""
    rank, size = str(communicator.rank), str(communicator.world_size)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "GROUP_RANK": "0"}
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }  # not connected to
    os.environ |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    for check in checks:
        with shared_folder():
            check()
