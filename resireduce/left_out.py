"""Trained parameters of a model that its optimizer does not hold, so that nobody averages their gradients."""

import warnings
import weakref
from collections.abc import Collection

from torch import nn

from resireduce.attach import is_distributed


class Outside:
    """The parameters of `model` that are trained and are none of `held`, by name; held weakly."""

    def __init__(self, model: nn.Module, held: Collection[str]):
        others = ((name, one) for name, one in model.named_parameters() if one.requires_grad and name not in held)
        self._parameters = [(name, weakref.ref(one)) for name, one in others]

    def warn(self) -> None:
        """Warn once of those that have a gradient by now, and that no other optimizer of the library averages."""
        found = [(name, reference()) for name, reference in self._parameters]
        names = [name for name, one in found if one is not None and one.grad is not None and not is_distributed(one)]
        self._parameters = []
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            warnings.warn(
                f"{names[0]!r}{more}: trained, but not by the optimizer given to resireduce.distribute(...), so that "
                "each rank has its own gradient of it: distribute the optimizer that holds it too, or average it "
                "yourself",
                stacklevel=3,
            )
