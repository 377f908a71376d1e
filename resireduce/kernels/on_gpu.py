"""Whether Triton's kernels are used for a tensor: on an NVIDIA GPU, once they have shown there that they are right.

Else plain torch has the same results. RESIREDUCE_TRITON=0 says that they are not to be used.
"""

import os
import warnings
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

SWITCH = "RESIREDUCE_TRITON"
"""Environment variable: 0 says that no kernel in Triton is to be used."""
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALLEST, LARGEST = 1 << 16, 1 << 30
"""Elements of a tensor that is worth it, and the most whose places are numbers of 32 bits, with some to spare."""
CAPABILITY = (8, 0)
"""The oldest GPUs for which Triton is made: compute capability."""


def in_triton(*tensors: Tensor) -> bool:
    """Return whether Triton's kernels take `tensors`, of which the first says how large they are and of which dtype.

    The first time on a GPU this compares them with plain torch, which takes seconds; if they fail there, a warning
    says so, once.
    """
    first = tensors[0]
    if first.device.type != DEVICE or first.dtype not in DTYPES or not SMALLEST <= first.numel() <= LARGEST:
        return False
    ordinary = all(type(one) is Tensor and one.is_contiguous() for one in tensors)
    here = all(one.device == first.device for one in tensors)
    return ordinary and here and os.environ.get(SWITCH) != "0" and works(first.device, first.dtype)


@cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether Triton is there and its kernels have the bits of plain torch on `device`, for tensors of `dtype`.

    They are compiled for that. If they fail, a warning says why.
    """
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
    if not capable or find_spec("triton") is None:
        return False
    try:
        from resireduce.kernels.gpu.self_check import differing

        wrong = differing(device, dtype)
    except Exception as error:  # no C compiler, no place for compiled code, a version of Triton that is too new, ...
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    else:
        if not wrong:
            return True
        reason = f"other results than plain torch: {', '.join(wrong)}"
    warnings.warn(
        f"kernels in Triton are not used on {device} for {dtype}: {reason}. Plain torch does the same; "
        f"{SWITCH}=0 is a way to say so beforehand",
        stacklevel=2,
    )
    return False
