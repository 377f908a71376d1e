"""Whether Triton's kernels are used for a tensor: on an NVIDIA GPU, once they have passed a check there.

Otherwise plain torch gives the same results. With RESIREDUCE_TRITON=0 they are not used.
"""

import logging
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "RESIREDUCE_TRITON"
"""Environment variable: with 0 no kernel in Triton is used."""
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 1 << 30
"""The most elements of a tensor: places are numbers of 32 bits. There is no least number: launching a kernel takes
about as long as launching one of torch's operations, of which it replaces several."""
PATIENCE_SECONDS = 3.0
"""How long kernels are compiled and checked before the log says so."""
CAPABILITY = (8, 0)
"""The oldest GPUs for which Triton is made: compute capability."""


def in_triton(*tensors: Tensor) -> bool:
    """Return whether Triton's kernels take `tensors`; the first decides by its size and dtype.

    The first call on a GPU compares the kernels with plain torch, which takes seconds; if they fail, it warns, once.
    """
    first = tensors[0]
    if first.device.type != DEVICE or first.dtype not in DTYPES or not 0 < first.numel() <= LARGEST:
        return False
    for one in tensors:  # not by all(): this is asked several times for each gradient
        if type(one) is not Tensor or not one.is_contiguous() or (one is not first and one.device != first.device):
            return False
    return os.environ.get(SWITCH) != "0" and works(first.device, first.dtype)


@cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether Triton is there, and its kernels give the bits of plain torch on `device` for tensors of `dtype`.

    This compiles them. If they fail, a warning says why.
    """
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
    if not capable or find_spec("triton") is None:
        return False
    with _told(f"kernels for {dtype} are being compiled for {device}, once for this machine: some 20 s"):
        reason = _failure(device, dtype)
    if reason is not None:
        text = f"kernels in Triton are not used on {device} for {dtype}: {reason}. Plain torch does the same"
        warnings.warn(f"{text}; {SWITCH}=0 is a way to say so beforehand", stacklevel=4)
    return reason is None


@contextmanager
def _told(text: str) -> Iterator[None]:
    """Return a context that logs `text` as a warning if it lasts PATIENCE_SECONDS: Python prints it by default."""
    timer = threading.Timer(PATIENCE_SECONDS, logging.getLogger("resireduce").warning, ["resireduce: %s", text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _failure(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why kernels cannot be used, by what self_check.py finds; None: they can."""
    try:
        from resireduce.kernels.gpu import self_check

        wrong = self_check.differing(device, dtype)
    except Exception as error:  # no C compiler, no place for compiled code, a version of Triton that is too new, ...
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return f"other results than plain torch: {', '.join(wrong)}" if wrong else None
