"""Top-k of all tensors of a bucket at once: their residuals, what is sent of them, and adding what has come.

A message holds what is sent of each tensor, one after the other, as `Payload` lays it out: values and int32 indices,
those of the wider dtype first, and zeros up to a multiple of 8 bytes.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from resireduce.kernels.on_gpu import LARGEST, in_triton
from resireduce.kernels.selection import largest_magnitudes

ALIGNMENT, INDEX_BYTES = 8, 4


@lru_cache(maxsize=512)
def message_places(ks: tuple[int, ...], dtype: torch.dtype) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return at which byte of a message the values, and the indices, of each tensor begin, and the message's bytes.

    ks: how many elements of each tensor are sent. dtype: of the values.
    """
    places, end, width = [], 0, dtype.itemsize
    for k in ks:
        values_first = width >= INDEX_BYTES
        places.append((end, end + width * k) if values_first else (end + INDEX_BYTES * k, end))
        end += -(-(width + INDEX_BYTES) * k // ALIGNMENT) * ALIGNMENT
    return tuple(places), end


def compress_topk_(
    gradients: Sequence[Tensor | None], residuals: Sequence[Tensor], ks: Sequence[int], message: Tensor
) -> Tensor:
    """Add `gradients` to `residuals`, and take out of each sum its largest magnitudes, which `message` then holds.

    Of equal magnitudes those with the highest indices are chosen; indices ascend; zeros are left in their places. On a
    GPU the number of launches does not depend on how many tensors there are.

    Args:
        gradients: contiguous, like the residuals. None: nothing is added.
        residuals: contiguous, of one dtype and device; of no NaN.
        ks: how many elements of each are sent: 1 to as many as it has.
        message: receives what is sent: 1-D uint8, of as many bytes as `message_places` says.

    Returns:
        1 for each tensor whose gradient holds NaN or infinity, in place of which zeros have been added, and 0 for each
        other: int32, on their device. The host does not wait for it.
    """
    if _in_triton([*residuals, *(one for one in gradients if one is not None)]):
        from resireduce.kernels.gpu import bucket

        return bucket.compress_topk_(gradients, residuals, ks, message)
    spoilt = torch.zeros(len(residuals), dtype=torch.int32, device=message.device)
    parts = _parts(message.zero_(), ks, residuals[0].dtype) if residuals else []
    for number, (gradient, residual, k, (values, indices)) in enumerate(
        zip(gradients, residuals, ks, parts, strict=True)
    ):
        flat = residual.view(-1)
        if gradient is not None:
            fine = gradient.isfinite().all()
            spoilt[number] = fine.logical_not()
            flat.add_(gradient.view(-1).where(fine, 0.0))
        chosen = largest_magnitudes(flat, k)
        values.copy_(flat[chosen])
        indices.copy_(chosen)
        flat.index_fill_(0, chosen, 0.0)
    return spoilt


def add_topk_(targets: Sequence[Tensor], ks: Sequence[int], message: Tensor, scale: float) -> None:
    """Add `scale` x each value in a rank's `message` to its place in `targets`: contiguous, of one dtype and device.

    ks, message: as for `compress_topk_`. On a GPU float32 takes one launch for all tensors.
    """
    if _in_triton(targets) and targets[0].dtype == torch.float32:
        from resireduce.kernels.gpu import bucket

        bucket.add_topk_(targets, ks, message, scale)
        return
    parts = _parts(message, ks, targets[0].dtype) if targets else []
    for target, (values, indices) in zip(targets, parts, strict=True):
        target.view(-1).index_add_(0, indices, values, alpha=scale)


def _in_triton(tensors: Sequence[Tensor]) -> bool:
    """Return whether kernels on a GPU take `tensors`: of one dtype, none empty, and of some 2^30 elements in all."""
    if not (tensors and in_triton(*tensors)):
        return False
    dtype = tensors[0].dtype
    alike = all(one.dtype == dtype and one.numel() for one in tensors)
    return alike and sum(one.numel() for one in tensors) < 2 * LARGEST


def _parts(message: Tensor, ks: Sequence[int], dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return the values and the indices of each tensor as views of `message`."""
    places, _ = message_places(tuple(ks), dtype)
    return [
        (
            message[at : at + dtype.itemsize * k].view(dtype),
            message[index_at : index_at + INDEX_BYTES * k].view(torch.int32),
        )
        for (at, index_at), k in zip(places, ks, strict=True)
    ]
