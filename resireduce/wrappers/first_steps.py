"""Mistakes around a wrapper's hook, looked for in the first steps: dropped averages, GradScaler, forgotten residuals.

In plain training a gradient that is dropped has no effect. With error feedback its pass, perhaps one of another model,
has left in residuals what was not sent, and later steps send it.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from resireduce.errors import warn
from resireduce.orphaned import objects
from resireduce.resumed import FORGOTTEN, Resumed

LOOKS, TELLS, WATCHED, SHARE = 60, 3, 16, 0.25
"""LOOKS: exchanges that are looked at. TELLS: how many of them must have been dropped for a warning. WATCHED: how many
parameters show it. SHARE: the share of these that must show it, since some may have averages of zero or a learning rate
of 0."""


class FirstSteps:
    """Warns if `zero_grad()` has dropped averages several times before a step used them, if a GradScaler is used, and
    if an optimizer goes on from a checkpoint, at any time, whose residuals were not loaded.

    Fused optimizers do not tell autograd that they change a parameter, hence the comparison of values.

    Args:
        parameters: functions that return the parameters whose averages are exchanged, or this rank's shards of them,
            the smallest first.
    """

    def __init__(self, parameters: Sequence[Callable[[], Tensor]]):
        self._parameters = tuple(parameters[:WATCHED])
        self._looks, self._dropped = LOOKS, 0
        self._then: list[tuple[int, Tensor] | None] = []
        self._resumed: list[Resumed] = []

    @torch.no_grad()
    def end(self, exchanged: Sequence[bool], is_new: bool) -> None:
        """At the end of an exchange: remember the values of each parameter for which `exchanged` is True.

        is_new: whether there are residuals that were not loaded, and no step was named, since the last exchange.
        """
        if self._looks == LOOKS:
            _warn_of_scaler()
            self._find_optimizers()
        forgotten = [one.has_forgotten() for one in self._resumed]
        if is_new and any(forgotten):
            warn(FORGOTTEN)
        if self._looks:
            self._looks -= 1
            pairs = zip(self._parameters, exchanged, strict=False)
            self._then = [(one()._version, _local(one()).clone()) if was else None for one, was in pairs]

    @torch.no_grad()
    def begin(self) -> None:
        """When the first gradient after an exchange is about to be added to `.grad`: warn if averages were dropped."""
        then, self._then = self._then, []
        dropped = sum(_is_dropped(one(), was) for one, was in zip(self._parameters, then, strict=False) if was)
        if not dropped or dropped < SHARE * len(then):
            return
        self._dropped += 1
        if self._dropped == TELLS:
            self._looks = 0
            warn(
                "averages of a backward pass were dropped, by zero_grad(), before a step of the optimizer, while "
                "residuals keep what was not sent of that pass, and send it later. If it was the pass of another model "
                "(of a GAN's generator through its discriminator), call requires_grad_(False) on this one for its "
                "time; steps that you skip on purpose need no cure"
            )

    def _find_optimizers(self) -> None:
        """Find the optimizers of these parameters, before the first average, and watch from which state they go on."""
        own = {one() for one in self._parameters}
        for optimizer in objects(torch.optim.Optimizer):
            # An optimizer that passes on another's groups has none of its own.
            groups = vars(optimizer).get("param_groups") or ()
            if any(not own.isdisjoint(group["params"]) for group in groups):
                self._resumed.append(Resumed(optimizer, own))


def _is_dropped(parameter: Tensor, then: tuple[int, Tensor]) -> bool:
    """Whether `parameter` is as it was, by version and values, and its average is no longer in `.grad`."""
    version, values = then
    return parameter._version == version and torch.equal(_local(parameter), values) and not _is_left(parameter.grad)


def _is_left(grad: Tensor | None) -> bool:
    return grad is not None and bool(_local(grad).any())


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a DTensor, and any other tensor as it is."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()


def _warn_of_scaler() -> None:
    """Warn if a GradScaler of this process has scaled a loss."""
    if any(one.is_enabled() and one._scale is not None for one in objects(torch.amp.GradScaler)):
        warn(
            "a GradScaler has scaled the loss: residuals hold scaled errors, which are added to gradients of another "
            "scale whenever it changes, and an overflow ends training. Use bfloat16, which needs no scaling, or "
            "resireduce.distribute(..., grad_scaler=resireduce.GradScaler(...)) without the wrapper"
        )
