"""Reads the pickles that CIFAR is published as, without executing anything in them. Imports no torch.

A pickle names functions that its reader then calls; CIFAR's name three of NumPy. Here stand-ins replace these and only
note their arguments; the array is made afterwards from bytes, shape and type, if these are consistent.
Any other name is refused (Python's documentation of pickle, "Restricting Globals").
"""

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.data.dataset import first_line


class _NoObject:
    """Stands for numpy.ndarray, which only occurs as an argument."""


class _Dtype:
    """Stands for numpy.dtype: a name and flags."""

    def __init__(self, name: Any, *flags: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and the like, which do not matter for single bytes."""


class _Array:
    """Stands for numpy.core.multiarray._reconstruct, and for the empty array that it returns."""

    def __init__(self, kind: Any, shape: Any, name: Any) -> None:
        self.array: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or dtype.name not in (b"u1", "u1") or type(content) is not bytes:
            raise pickle.UnpicklingError("it has an array that is not of unsigned bytes")
        if not all(type(length) is int and length >= 0 for length in shape) or math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"it has an array of shape {shape} and {len(content)} bytes")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _NoObject,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which CIFAR's do not; nothing was executed"
            ) from None


def read_pickle(content: bytes, name: str) -> dict[bytes, Any]:
    """Read a dictionary of bytes, numbers, lists and arrays of unsigned bytes, as Python 2 wrote it.

    Args:
        content: the pickle.
        name: of the file, for messages.

    Raises:
        ValueError: one line, for anything else.
    """
    try:
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a pickle can make its reader raise anything
        raise ValueError(f"{name} is no pickle that CIFAR could be: {first_line(error)}") from None
    if type(value) is not dict:
        raise ValueError(f"{name} holds an object of type {type(value).__name__}, allowed is a dictionary")
    return {key: item.array if isinstance(item, _Array) else item for key, item in value.items()}
