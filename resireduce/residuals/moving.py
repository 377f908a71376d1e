"""A stored block of rows that is read and written some rows at a time, in the memory of one block."""

from collections import deque

import torch
from torch import Tensor


def between(rows: Tensor, first: int, last: int, n_rows: int) -> slice:
    """Return where ascending 1-D `rows` hold numbers from `first` up to, and without, `last`.

    Without storage they are assumed to be spread evenly over `n_rows`.
    """
    if rows.is_meta:
        return slice(len(rows) * first // n_rows, len(rows) * last // n_rows)
    borders = torch.tensor([first, last], dtype=rows.dtype, device=rows.device)
    return slice(*torch.searchsorted(rows, borders).tolist())


class Moving:
    """Puts the newly chosen rows of a matrix in the places of the old ones, once these have been read; until then they
    wait. The most that wait is the largest excess of new over old rows before any row: few, if both are similar.

    Args:
        values: the block of the old rows, 2-D, which becomes that of the new ones.
        old: numbers of the old rows: 1-D, ascending.
        new: as many of the new ones, ascending.
        columns: numbers of the columns that the block holds of the new rows; None: all.
        n_rows: rows of the matrix.
    """

    def __init__(self, values: Tensor, old: Tensor, new: Tensor, columns: Tensor | None, n_rows: int):
        self.rows, self.columns = new, columns
        self._values, self._old, self._n_rows = values, old, n_rows
        self._waiting: deque[Tensor] = deque()
        self._written = 0

    def write(self, part: Tensor, first: int) -> bool:
        """Store what is chosen of 2-D `part`, the rows from number `first` on; old rows up to its end have been read.

        Parts come in order. Return whether this was the last.
        """
        last = first + len(part)
        chosen = part.index_select(0, self.rows[between(self.rows, first, last, self._n_rows)] - first)
        self._waiting.append(chosen if self.columns is None else chosen.index_select(1, self.columns))
        read = between(self._old, 0, last, self._n_rows).stop
        while self._waiting and self._written < read:
            waiting = self._waiting.popleft()
            fitting = waiting[: read - self._written]
            self._values[self._written : self._written + len(fitting)] = fitting
            self._written += len(fitting)
            if len(fitting) < len(waiting):
                self._waiting.appendleft(waiting[len(fitting) :])
        return last == self._n_rows
