"""The payload of a gradient that is made in parts, and is never there as a whole."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.compressors.sparse import SentParts
from resireduce.finiteness import check_finite
from resireduce.payload import Payload
from resireduce.residuals.base import Residual


def payload_of_parts(
    compressor: Compressor,
    residual: Residual,
    gradient: Callable[[slice], Tensor],
    rows: Sequence[slice],
    like: Tensor,
    name: str,
    step: int,
) -> Payload:
    """Return the payload of a gradient with its residual, and store the rest in the residual; parts are made twice.

    They are made once from last to first, to select what is sent, and once from first to last, to take that out and
    store the rest; the latter twice if the residual looks first. Raises NonFiniteGradient before the residual is
    touched.

    Args:
        compressor, residual: those of tensor `name`.
        gradient: returns the gradient of some rows, a new contiguous tensor with the same bits each time.
        rows: slices that cover the tensor, each beginning at a multiple of 64 elements.
        like: has the shape, dtype and device of tensor `name`.
        step: the step number, which seeds random rounding of the rest.
    """
    width = like.shape[1:].numel()
    indices = _selected(compressor, residual, gradient, rows, like, name)
    source = residual.source(name, like, step)

    def go_through(use: Callable[[Tensor, str, int], None]) -> SentParts:
        sent = SentParts(indices, like)
        for part in rows:
            left = residual.compensate_part_(gradient(part), name, part.start * width)
            use(sent.take_out(left, part.start * width, compressor), name, part.start * width)
            del left
        return sent

    if residual.looks_first(name):
        go_through(residual.look_at_part)
        residual.end_look(name, like, step)
    return go_through(partial(residual.update_part, source=source)).payload()


def _selected(
    compressor: Compressor,
    residual: Residual,
    gradient: Callable[[slice], Tensor],
    rows: Sequence[slice],
    like: Tensor,
    name: str,
) -> Tensor:
    """Return the flat indices of what is sent of the gradient with its residual, whose parts are made from the last to
    the first. Raises NonFiniteGradient."""
    width = like.shape[1:].numel()
    selection = compressor.selection(like)
    for part in reversed(rows):
        grad = gradient(part)
        check_finite(grad, name)
        selection.add(residual.compensate_part_(grad, name, part.start * width).view(-1), part.start * width)
        del grad
    return selection.indices()
