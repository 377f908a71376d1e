"""The payload of a gradient that is made in parts, and never there as a whole."""

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
    """Return what is sent of a gradient with its residual, and leave the rest to that; all parts are made twice.

    To see what is to be sent, from the last to the first; and to take it out, and leave the rest to the residual, from
    the first to the last, twice where the residual looks first. Raises NonFiniteGradient before that is touched.

    Args:
        compressor, residual: of tensor `name`.
        gradient: returns that of some rows, a new contiguous tensor with the same bits each time.
        rows: all of the tensor, each part beginning with a multiple of 64 elements.
        like: has the shape, dtype and device of tensor `name`.
        step: its number, which seeds how the rest is rounded.
    """
    width = like.shape[1:].numel()
    selection = compressor.selection(like)
    for part in reversed(rows):
        grad = gradient(part)
        check_finite(grad, name)
        selection.add(residual.compensate_part_(grad, name, part.start * width).view(-1), part.start * width)
        del grad
    indices = selection.indices()
    del selection
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
