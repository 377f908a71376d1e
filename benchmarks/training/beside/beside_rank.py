"""One rank of one way: trains a few steps, and says what it held, needed and sent: `python -m benchmarks beside`.

Memory is the kernel's count of this process's own pages (RssAnon, and VmHWM for the fullest moment), less what there
was before the model, when a small one had been trained in the same way. All that lives is in it, whoever allocated it:
buckets of DistributedDataParallel, buffers of gloo and of bitsandbytes, and activations, of a batch of 16 tokens.
"""

import gc
import os
import socket
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.training.beside.builders import Loop, build
from benchmarks.training.beside.plain_models import MODELS, WARM_UP, Forward
from benchmarks.training.measure.tracker import peak_resident_bytes, reset_peak_resident, status_bytes
from benchmarks.training.measure_rank import join

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
