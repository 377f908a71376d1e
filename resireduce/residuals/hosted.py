"""Residuals in the host's memory: a GPU holds one of them only while it is being used."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import Tensor

from resireduce.residuals.stored import Stored


class Hosted(Stored):
    """What `near` would hold on its device, held in the host's memory instead, pinned if the device is a GPU.

    Copies in both directions run on a stream of their own, in parallel to the backward pass: to the device by
    `prefetch`, before the gradient has come; to the host by `set_`, while the backward pass goes on.

    Args:
        near: made on the device of the gradients; what it holds is moved.
    """

    def __init__(self, near: Stored):
        tensors = near.tensors()
        self._device = next(iter(tensors.values())).device
        self._far = near.over({name: _on_host(tensor) for name, tensor in tensors.items()})
        self._near: Stored | None = None

    def prefetch(self) -> None:
        """Start copying to the device, if that has not been done yet."""
        if self._near is None:
            with _beside(self._device):
                self._near = self._far.over(
                    {name: self._like(tensor).copy_(tensor, non_blocking=True) for name, tensor in self._tensors()}
                )

    def add_to_(self, target: Tensor) -> Tensor:
        """Add what is stored to `target`, once it has come from the host; return `target`."""
        return self._come().add_to_(target)

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return what is stored, on the device, as a tensor of `dtype` that must not be changed."""
        return self._come().read(dtype)

    def release(self) -> None:
        """Free the copy on the device."""
        self._near = None

    def room(self, dtype: torch.dtype) -> Tensor | None:
        """Return the memory of the copy on the device, if it can hold a value of `dtype`; `set_` must follow."""
        if self._near is None:
            self._near = self._far.over({name: self._like(tensor) for name, tensor in self._tensors()})
        return self._near.room(dtype)

    def set_(self, value: Tensor, source: torch.Generator | None) -> None:
        """Encode `value` on the device, and start copying the result to the host."""
        near = self._near or self._far.over({name: self._like(tensor) for name, tensor in self._tensors()})
        near.set_(value, source)
        self._near = None
        with _beside(self._device, after=True):
            for name, tensor in near.tensors().items():
                self._far.tensors()[name].copy_(tensor, non_blocking=True)
                _used(tensor)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors on the host, after all copies to and from them have finished."""
        if self._device.type == "cuda":
            _stream(self._device).synchronize()
        self._near = None
        return self._far.tensors()

    def over(self, tensors: Mapping[str, Tensor]) -> Stored:
        """Return an object that holds `tensors` in the same form, on whatever device they are."""
        return self._far.over(tensors)

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return list(self._far.tensors().items())

    def _like(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)

    def _come(self) -> Stored:
        """Return the copy on the device, which work launched from now on may use."""
        self.prefetch()
        assert self._near is not None
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_stream(_stream(self._device))
            for tensor in self._near.tensors().values():
                tensor.record_stream(torch.cuda.current_stream(self._device))
        return self._near


def _on_host(tensor: Tensor) -> Tensor:
    """Return zeros like `tensor` in the host's memory, pinned if it is on a GPU; without storage if it has none."""
    where = "meta" if tensor.is_meta else "cpu"
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=where, pin_memory=tensor.is_cuda)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _beside(device: torch.device, after: bool = False) -> AbstractContextManager[object]:
    """Return a context for copies on their own stream; with `after`, they wait for everything launched before."""
    if device.type != "cuda":
        return nullcontext()
    if after:
        _stream(device).wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(_stream(device))


def _used(tensor: Tensor) -> None:
    """Keep the memory of `tensor` from being given to another tensor before the copy is over."""
    if tensor.is_cuda:
        tensor.record_stream(_stream(tensor.device))
