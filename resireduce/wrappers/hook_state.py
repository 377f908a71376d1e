"""What the hook of a wrapper saves and loads: this rank's residuals, and the step number."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import UsageError, check_count

WITHIN = (
    "{what} within a backward pass, or after one that failed half-way: some residuals are of this pass, and others of "
    "the last; call it when backward() has returned, or start from a checkpoint"
)


class HookState(ABC):
    """The common base of the hooks of wrappers: residuals are saved and loaded between two backward passes.

    Args:
        feedback: compresses gradients, and holds their residuals.
    """

    def __init__(self, feedback: ErrorFeedback):
        self.feedback = feedback
        self.steps = 0
        """How many backward passes have averaged gradients."""
        self._is_resumed = False  # whether residuals were loaded, or a step was named, since the last exchange

    def residual_state_dict(self) -> dict[str, Tensor]:
        """Return this rank's residuals. They differ between ranks: save one file per rank.

        Raises UsageError within a backward pass, which has updated only some of them.
        """
        self._refuse_within_pass("residual_state_dict()")
        return self.feedback.state_dict(self.steps)

    def load_residual_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the `state` that this rank saved in a job of the same size: its residuals, and the step number.

        Raises ConfigError if they belong to another model, scheme or residual_dtype, and UsageError within a backward
        pass.
        """
        self._refuse_within_pass("load_residual_state_dict()")
        self.start_at(self.feedback.load_state_dict(state))

    def start_at(self, step: int) -> None:
        """Continue with step number `step`, counted from 0. Raises UsageError within a backward pass."""
        check_count("step", step, of="steps")
        self._refuse_within_pass("start_at()")
        self._is_resumed = True
        self._begin_step(step)

    @property
    @abstractmethod
    def _is_within_pass(self) -> bool:
        """Whether a backward pass is under way, or has failed half-way."""

    def _begin_step(self, step: int) -> None:
        self.steps = step
        self.feedback.begin_step(step)

    def _refuse_within_pass(self, what: str) -> None:
        if self._is_within_pass:
            raise UsageError(WITHIN.format(what=what))

    def _has_new_residuals(self) -> bool:
        """At the end of an exchange: whether there are residuals that were not loaded since the last exchange."""
        is_resumed, self._is_resumed = self._is_resumed, False
        return not is_resumed and bool(self.feedback.residual.tensors())
