"""What a model will need and save: the bytes of its states, tensor by tensor, foreseen or measured.

Here is one such tensor, told in plain values, without torch.
"""

from dataclasses import dataclass

STATES = ("parameters", "gradients", "residuals", "optimizer_states")
"""The kinds of model state that an item can be of."""


@dataclass(frozen=True)
class Item:
    """A tensor that one rank holds at a step boundary."""

    state: str
    """The kind of model state, one of STATES."""
    name: str
    """The parameter it belongs to, as the model calls it; of a shared residual, the group's first member."""
    part: str
    """What it is of that parameter. Empty: the parameter itself, or its gradient. Residuals: the kind, and which tensor
    of it (full, weighted, rows_columns, rows_columns.rows, full.codes, full.scales), or what a compressor remembers
    (compressor.stages). Optimizer states: the key (exp_avg), or velocity for momentum that a compressor keeps."""
    shape: tuple[int, ...]
    dtype: str
    """The name of the dtype that torch has for it, without "torch."."""
    nbytes: int
    members: tuple[str, ...] = ()
    """All parameters that share it, where several do."""


def sums(items: list[Item]) -> dict[str, int]:
    """Return the bytes of `items` by state, for all of STATES."""
    return {state: sum(item.nbytes for item in items if item.state == state) for state in STATES}
