"""One rank of one way: trains a few steps, and says what it held, needed and sent: `python -m benchmarks beside`.

Memory is the kernel's count of this process's own pages (RssAnon, and VmHWM for the fullest moment), less what there
was before the model, when a small one had been trained in the same way. All that lives is in it, whoever allocated it:
buckets of DistributedDataParallel, buffers of gloo and of bitsandbytes, and activations, of a batch of 16 tokens.
"""

import gc
import os
import socket
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.training.beside.builders import Forward, Loop, build
from benchmarks.training.measure.tracker import peak_resident_bytes, reset_peak_resident, status_bytes
from benchmarks.training.measure_rank import join
from benchmarks.training.models.bert import bert_base, bert_questions
from benchmarks.training.models.gpt2 import gpt2_bytes, gpt2_medium

WARM_UP_STEPS = 3
"""Optimizer states exist after one step; PowerSGD compresses from the third."""
MEASURED_STEPS = 2


OWN_PAGES = "RssAnon"
"""This process's resident bytes that belong to no file: malloc's memory, and the interpreter's."""


def measured(settings: dict[str, str], folder: Path) -> dict[str, Any]:
    """Have the ranks meet, and return what this one found of the way and the model that the settings name."""
    torch.set_num_threads(1)
    join(folder)
    return measure(**settings)


def measure(way: str, model: str) -> dict[str, Any]:
    """Train in this `way`, and return the bytes of the fullest measured step."""
    _followed(*_trained(way, WARM_UP.get(model, model)))
    gc.collect()
    torch.manual_seed(0)
    before = status_bytes(OWN_PAGES)
    loop, forward = _trained(way, model)
    steps = [_step(loop, forward, before) for _ in range(MEASURED_STEPS)]
    found = {name: max(step[name] for step in steps) for name in steps[0]}
    with torch.device("meta"):
        parameters = sum(parameter.nbytes for parameter in MODELS[model][0]().parameters())
    return {"parameters_bytes": parameters, **found, **_followed(loop, forward)}


def _trained(way: str, model: str) -> tuple[Loop, Forward]:
    loop, forward = build(way, MODELS[model][0]()), MODELS[model][1]()
    for _ in range(WARM_UP_STEPS):
        loop.train(forward)
    return loop, forward


def _step(loop: Loop, forward: Forward, before: int) -> dict[str, int]:
    """Take one step, begun by all ranks together, and measure memory with gradients and without."""
    dist.barrier()
    loop.zero_grad()
    without_gradients, sent = status_bytes(OWN_PAGES), sent_bytes()
    others = status_bytes("VmRSS") - without_gradients
    reset_peak_resident()
    loss = forward(loop.model)
    activations = status_bytes(OWN_PAGES) - without_gradients
    loss.backward()
    del loss
    loop.step()
    return {
        "held_bytes": status_bytes(OWN_PAGES) - before,
        "without_gradients_bytes": without_gradients - before,
        "peak_bytes": peak_resident_bytes() - others - before,
        "forward_bytes": activations,
        "sent_bytes": sent_bytes() - sent,
    }


def _followed(loop: Loop, forward: Forward) -> dict[str, Any]:
    """Return sums over tensors, if the way can tell them: the states, and the fullest moment of a step."""
    if loop.held is None or loop.follow is None:
        return {}
    states = {kind: sum(tensor.nbytes for tensor in tensors) for kind, tensors in loop.held().items()}
    loop.zero_grad()
    loss = forward(loop.model)
    with loop.follow() as tracker:
        loss.backward()
        loop.step()
    return {"states_bytes": states, "states_peak_bytes": tracker.peak_bytes}


BYTES_SENT_AT = 200
"""Offset of `tcpi_bytes_sent` in the kernel's `struct tcp_info`; available since Linux 4.19."""


def sent_bytes() -> int:
    """Return the payload sent through the TCP connections that are open now, without headers, as counted by Linux."""
    total = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            copy = os.dup(int(entry))
        except OSError:  # closed meanwhile
            continue
        with closing(socket.socket(fileno=copy)) as found:
            if found.type != socket.SOCK_STREAM or found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            known = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += struct.unpack_from("=Q", known, BYTES_SENT_AT)[0] if len(known) >= BYTES_SENT_AT + 8 else 0
    return total


# --- The models on which ways are compared, and a batch so small that activations hardly count ---

TOKENS = 16
"""Tokens in the one sample of a rank's batch."""
CLASSES = 16


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(functional.relu(self.up(self.norm(x))))
        return out


class Stack(nn.Module):
    """An embedding, blocks and a linear head."""

    def __init__(self, words: int, width: int, blocks: int):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def _answers(words: int) -> Forward:
    tokens = torch.randint(words, (1, TOKENS))

    def forward(model: nn.Module) -> Tensor:
        out = model(input_ids=tokens)
        return functional.cross_entropy(torch.cat([out.start_logits, out.end_logits]), torch.tensor([1, 2]))

    return forward


def _classes(words: int) -> Forward:
    tokens, labels = torch.randint(words, (1, TOKENS)), torch.randint(CLASSES, (TOKENS,))
    return lambda model: functional.cross_entropy(model(tokens).flatten(0, 1), labels)


def _next_tokens(words: int, count: int) -> Forward:
    tokens = torch.randint(words, (1, count))

    def forward(model: nn.Module) -> Tensor:
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return forward


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Forward]]] = {
    "bert-base": (bert_base, lambda: _answers(30528)),
    "bert-questions": (bert_questions, lambda: _answers(768)),
    "gpt2-medium": (gpt2_medium, lambda: _next_tokens(50257, 2 * TOKENS)),
    "gpt2-bytes": (gpt2_bytes, lambda: _next_tokens(1024, 2 * TOKENS)),
    "stack": (lambda: Stack(7680, 1024, 8), lambda: _classes(7680)),
    "small-stack": (lambda: Stack(512, 64, 4), lambda: _classes(512)),
}
"""Each model's constructor and batch: large models are measured; small ones load all libraries beforehand."""
WARM_UP = {"bert-base": "bert-questions", "gpt2-medium": "gpt2-bytes", "stack": "small-stack"}
