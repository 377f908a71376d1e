"""Where a step asks the device for a value, so that the host waits for it; and graphs of CUDA, which cannot ask."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import resireduce
from resireduce import pieces
from resireduce.core.feedback import Finiteness
from resireduce.scheme import COMPRESSORS, SCHEMES
from tests.gpu.loops import batches, distributed, net, step

ASKS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero")
FITTED = {
    "moments": "a threshold is found on the host, from a few numbers",
    "few_reaching": "how many pass decides what is sent, or whether the threshold is changed",
    "not_above": "a number of the host, on a CPU alone",
}
SIDCO = FITTED | {
    "magnitudes": "later stages are fitted to what exceeds the one before",
    "compress_with": "the number of stages is on the device, where states are held",
}
PACKED = {
    "encode": "the width that takes fewest bits decides how they lie, and how many these are the length of the message",
    "unpack": "how many a message holds is written in it",
    "decode": "where codes end is found by looking for ones",
}
BY_DESIGN: dict[str, dict[str, str]] = {
    "every": {"failure": "once a step, whether a gradient was not finite"},
    "threshold": {
        "few_reaching": "how many elements are sent is not known before",
        "not_above": FITTED["not_above"],
    },
    "dgc": {
        "few_reaching": "candidates are counted; they are looked for anew if they are too many",
        "select": "a threshold of zero needs no second look",
    },
    "dgc-momentum": {"few_reaching": "as dgc", "select": "as dgc", "packed": "zeros after rounding are left out"},
    "dgc-simple": {"few_reaching": "as dgc"},
    **dict.fromkeys(("gaussian", "redsync", "redsync-trim"), FITTED),
    **dict.fromkeys(("sidco-exp", "sidco-gp", "sidco-gamma"), SIDCO),
    "adtopk-threshold": {
        "few_reaching": "as threshold",
        "compress_with": "the threshold is compared as a number of the host",
        "largest_without_zeros": "zeros are left out",
    },
    "ok-topk": {
        "few_reaching": "how many pass decides whether the threshold is changed",
        "not_above": FITTED["not_above"],
        "_selected": "thresholds, and when they were found, are on the device, where states are held",
        "agree": "when regions were shared out is on the device, too",
        "counts": "how many elements each rank is sent is what an exchange is told",
        "_common": "how many sums come back decides whether their threshold is changed",
        "reached_by": "a threshold is a number of the host",
        "largest_without_zeros": "as adtopk-threshold",
    },
    "demo": {"compress": "whether a difference could overflow, which is looked at only then"},
    "topk+packed": PACKED,
    "dgc+packed": PACKED | {"few_reaching": "as dgc", "select": "as dgc"},
    "qsgd": {"compress": "whether squares have overflowed, so that another norm is needed"},
    "qsgd-max": {"compress": "as qsgd"},
}
"""What asks, and why: by the compressor, and of all. Fewer are welcome."""


@pytest.fixture(autouse=True)
def _nothing_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU stands for a device, in a rehearsal."""
    monkeypatch.setattr(pieces, "HOSTS", ("meta",))


class Asked(TorchDispatchMode):
    """Notes which function of the library asks for a value of a tensor on the device."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self.places = device, set[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        here = any(isinstance(one, Tensor) and one.device.type == self.device.type for one in tree_leaves(args))
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.partition("::")[2]
        leaves = isinstance(result, Tensor) and here and result.device.type != self.device.type
        if here and (name.startswith(ASKS) or leaves):
            place = _place()
            if place is not None:
                self.places.add(place)
        return result


def _place() -> str | None:
    """The innermost function of the library that is being run."""
    frame = sys._getframe()
    while frame is not None:
        if "/resireduce/" in frame.f_code.co_filename.replace("\\", "/"):
            return frame.f_code.co_name
        frame = frame.f_back
    return None


@contextmanager
def refused(device: torch.device) -> Iterator[None]:
    """Within it CUDA raises where the host would wait for the device."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def third_step(device: torch.device, within: AbstractContextManager[object], **options: Any) -> None:
    """Take a step within something, after two in which the order and states are made."""
    model = net(device)
    optimizer = distributed(model, **options)
    first, second, third, *_ = batches(device)
    step(model, optimizer, first)
    step(model, optimizer, second)
    with within:
        step(model, optimizer, third)


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_only_what_is_named_asks(device: torch.device, compressor: str, gradients: str) -> None:
    scheme = "none" if compressor == "none" else "w+2d"
    allowed = {*BY_DESIGN["every"], *BY_DESIGN.get(compressor, {})}
    asked = Asked(device)
    third_step(device, asked, compressor=compressor, scheme=scheme, gradients=gradients)
    assert asked.places <= allowed


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
@pytest.mark.parametrize("residual_dtype", [None, "int4"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_else_waits(
    device: torch.device, scheme: str, residual_dtype: str | None, gradients: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the question away that ends a step, whether a gradient was not finite, CUDA itself finds none."""
    monkeypatch.setattr(Finiteness, "failure", lambda self: None)
    third_step(device, refused(device), scheme=scheme, residual_dtype=residual_dtype, gradients=gradients)


def test_a_graph_of_a_step_is_refused_or_works(device: torch.device) -> None:
    """One clear error, or a replay that trains: not a step that is recorded in part."""
    if device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    model = net(device)
    optimizer = distributed(model, optimizer=lambda p: torch.optim.AdamW(p, 1e-3, capturable=True))
    made = batches(device)
    beside = torch.cuda.Stream()
    with torch.cuda.stream(beside):
        for batch in made[:3]:
            step(model, optimizer, batch)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=beside):
            step(model, optimizer, made[3])
    except resireduce.errors.UsageError as error:
        assert "graph" in str(error)
        return
    before = [parameter.clone() for parameter in model.parameters()]
    graph.replay()
    torch.cuda.synchronize()
    assert not all(torch.equal(now, was) for now, was in zip(model.parameters(), before, strict=True))
