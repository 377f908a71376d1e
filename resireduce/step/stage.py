"""Stages: how far the gradient of one parameter has come within a step."""

from enum import Enum


class Stage(Enum):
    """How far the gradient of one parameter has come within a step. AFTER lists which stages may follow each."""

    OPEN = "no backward pass has reached it, or what passes have brought lies in `.grad`"
    ABSORBED = "the residual has absorbed earlier passes; between passes the guard stands in `.grad`"
    SPOILT = "an earlier pass brought NaN or infinity: what the others bring is let go"
    LAST = "the last pass is over, and what it left in `.grad` is being taken"
    TAKEN = "this rank has a gradient of it, and the average may be put into `.grad`"
    GUARDED = "this rank has a gradient of it, and the guard stands in `.grad`"
    DROPPED = "the last pass is over, and one brought NaN or infinity: this rank has no gradient of it"

    __hash__ = object.__hash__  # identity suffices; Enum's own is called eight times for each gradient


AFTER = {
    Stage.OPEN: {Stage.ABSORBED, Stage.SPOILT, Stage.LAST, Stage.TAKEN, Stage.DROPPED},
    Stage.ABSORBED: {Stage.ABSORBED, Stage.SPOILT, Stage.LAST, Stage.TAKEN, Stage.DROPPED},
    Stage.SPOILT: {Stage.DROPPED},
    Stage.LAST: {Stage.TAKEN, Stage.DROPPED},
    Stage.TAKEN: {Stage.GUARDED},
    Stage.GUARDED: {Stage.TAKEN},
    Stage.DROPPED: set[Stage](),
}
"""Which stages may follow each stage within a step; a new step begins with OPEN. `step()` takes gradients that no
backward pass has sent."""

OVER = frozenset({Stage.LAST, Stage.TAKEN, Stage.GUARDED, Stage.DROPPED})
"""Stages after the last pass."""
HERE = frozenset({Stage.TAKEN, Stage.GUARDED})
"""Stages in which this rank has a gradient."""
