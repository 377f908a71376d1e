"""PowerSGD: Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019."""

from dataclasses import dataclass

import torch
from torch import Tensor

from resireduce.compressors.base import Agreeing, State, checked, count
from resireduce.core.messages import Payload, Rounds
from resireduce.errors import is_number
from resireduce.pieces import generator, row_pieces


def orthonormal(rows: Tensor) -> Tensor:
    """Return a new matrix whose rows span what those of `rows` do, orthonormal, in the same order and dtype.

    A row that depends on those before it, or is zero, becomes zero. Gram and Schmidt's projection is done twice, since
    once leaves nearly dependent rows far from orthogonal. Elements may be so small or large that their squares leave
    the dtype's range. There is no product of matrices, which autocast would round, and the host does not wait for the
    device.
    """
    largest = rows.abs().amax(1, keepdim=True)
    scaled, basis = rows / torch.where(largest > 0, largest, 1), torch.zeros_like(rows)
    smallest = 10 * torch.finfo(rows.dtype).eps  # a row of which projection leaves less depends on the others
    for number, row in enumerate(scaled):
        before, left = basis[:number], row
        for _ in range(2):
            left = left - (before * (before * left).sum(1, keepdim=True)).sum(0)
        length = torch.linalg.vector_norm(left)
        basis[number] = torch.where(length > smallest * torch.linalg.vector_norm(row), left / length, 0)
    return basis


@dataclass(frozen=True)
class PowerSGD(Agreeing):
    """Sends two narrow matrices, P = M Q and then M^T P, which all-reduces sum: M is the gradient, Q the last M^T P.

    Algorithm 1, with warm start: P and M^T P have `rank` columns, and those of P are made orthonormal after it has been
    summed, so that the result, P x the average of P^T M, is the average gradient projected onto them. M has shape[0]
    rows. A rank keeps M - P P^T M, which is 0 if M has rank `rank` or less. Sums are formed in float32 at least. If a
    step would set a column of Q to zero, as a gradient of zeros does, that column stays as it was.
    """

    rank: int = count(2, 1, "columns")
    """Columns of each matrix, at most the smaller side of the gradient."""
    min_compression_rate: float = checked(2.0, lambda rate: is_number(rate) and rate > 0, "a number greater than 0")
    """How many times larger than its payload a tensor must be; others are sent dense, and have no residual."""

    def compresses(self, shape: torch.Size) -> bool:
        rows, columns = _sides(shape)
        return (rows + columns) * self._width(shape) * self.min_compression_rate < rows * columns

    def state(self, shape: torch.Size, like: Tensor) -> State:
        """Return the transpose of the initial Q, drawn from a normal distribution, in float32 at least.

        It has a row for each column of what is sent, since products with rows are several times as fast on a CPU.
        """
        size, dtype = (self._width(shape), _sides(shape)[1]), torch.promote_types(like.dtype, torch.float32)
        host = like.device if like.is_meta else torch.device("cpu")  # so that it is the same on all devices
        drawn = torch.randn(size, dtype=dtype, device=host, generator=generator(host, type(self).__name__, 0))
        return {"q": drawn.to(like.device)}

    def agree(self, grad: Tensor, name: str, step: int, state: State) -> Rounds:
        """Sum P over all ranks; return P^T M of this `grad`, with P, which all ranks know by then; all transposed."""
        matrix = grad.view(_sides(grad.shape))
        q = orthonormal(state["q"])
        asked = q.new_empty(len(q), len(matrix))
        for rows in row_pieces(matrix):
            product = q.new_empty(rows.stop - rows.start, len(q)).addmm_(matrix[rows].to(q.dtype), q.T, beta=0)
            asked[:, rows] = product.T
        p = orthonormal((yield asked))
        own = torch.zeros_like(q)
        for rows in row_pieces(matrix):
            own.addmm_(p[:, rows], matrix[rows].to(q.dtype))
        if grad.dtype == torch.float16:  # no element of what is sent or kept may exceed its range
            least, most = grad.aminmax()
            room = torch.finfo(grad.dtype).max - torch.maximum(-least, most).to(own.dtype)
            reach = torch.linalg.vector_norm(p, dim=0).amax() * torch.linalg.vector_norm(own, dim=0).amax()
            own.mul_(torch.where(reach > room, room / reach, 1))
        return Payload.pack(own.view(-1), like=grad, known=p, rounds_bytes=p.nbytes)

    def learn_(self, state: State, payload: Payload) -> None:
        """Store `payload`, the sum over all ranks, in `state`, as Q of the next step."""
        _, q = _factors(payload)
        state["q"].copy_(torch.where(q.any(1, keepdim=True), q, state["q"]))

    def add_(self, dense: Tensor, payload: Payload, scale: float = 1.0) -> Tensor:
        p, q = _factors(payload)
        matrix, limit = dense.view(_sides(dense.shape)), torch.finfo(dense.dtype).max
        for rows in row_pieces(matrix):
            product = q.new_empty(matrix[rows].shape).addmm_(p[:, rows].T, q, beta=0)
            matrix[rows].add_(product.clamp_(-limit, limit).to(dense.dtype), alpha=scale)
        return dense

    def _width(self, shape: torch.Size) -> int:
        return min(self.rank, *_sides(shape))


def _sides(shape: torch.Size) -> tuple[int, int]:
    """Return the rows and columns of a tensor of `shape`, taken as a matrix."""
    return shape[:1].numel(), shape[1:].numel()


def _factors(payload: Payload) -> tuple[Tensor, Tensor]:
    """Return the transpose of P, and what the payload holds, a matrix of as many rows."""
    assert payload.known is not None
    return payload.known, payload.buffer.view(len(payload.known), -1)
