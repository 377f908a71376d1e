"""What the hooks of DistributedDataParallel and of FSDP2 have in common."""

import gc
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.comm.base import Communicator
from resireduce.core.bucket import Bucket, Slot, in_buckets, make_slots
from resireduce.core.messages import Message, Payload
from resireduce.core.optimizer import Resumable
from resireduce.core.step import Unscaled
from resireduce.errors import warn
from resireduce.forms import under_way
from resireduce.pipeline import build_feedback, find_compressor
from resireduce.settings import Settings
from resireduce.start import agree
from resireduce.watchers import OtherSteps, Resumed


class HookState(Resumable):
    """The common base of the hooks of wrappers, which want their gradients back before `backward()` returns.

    Messages leave as `UnderWay` has room for them. Residuals are saved and loaded between backward passes.

    It takes the options `given` to its call. `reason`: why nobody averages the gradients of other tensors of `model`
    than `parameters` and `ignored`, and the cure. The rest is that of `build_feedback`.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        communicator: Communicator,
        reason: str,
        ignored: Iterable[Tensor] = (),
        slices: Mapping[str, nn.Parameter] | None = None,
        **of_shards: Any,
    ):
        settings = Settings(**given, gradients="kept")
        lossy = find_compressor(settings)
        feedback, _ = build_feedback(model, parameters, lossy, communicator, settings, slices, **of_shards)
        own = parameters if slices is None else {name: one for name, one in slices.items() if one.numel()}
        self.feedback, self.slots = feedback, make_slots(own, feedback)
        feedback.finiteness.waits_for = {slot.parameter.device.type for slot in self.slots}  # no step asks later
        self._others = OtherSteps(model, [*ignored, *parameters.values()], reason)
        self._under_way = under_way(feedback, self.slots)
        self._targets: deque[Sequence[Tensor]] = deque()  # where the averages of each message belong
        self.resumed, self._is_known = Resumed(feedback.residual), False
        self.steps = 0

    def _look_around(
        self, parameters: Iterable[Tensor], values: Mapping[str, str], beside: Communicator | None = None
    ) -> None:
        """Compare steps and `values` of ranks, and look for scalers and optimizers of `parameters` that have come."""
        number = "number of the step, as load_residual_state_dict() or start_at() has set it"
        agree({**values, number: self.steps}, self.feedback.communicator, beside=beside)
        if any(one.is_enabled() and one._scale is not None for one in objects(torch.amp.GradScaler)):
            warn(
                "a GradScaler has scaled the loss: residuals hold scaled errors, which are added to gradients of "
                "another scale whenever it changes, and an overflow ends training. Use bfloat16, which needs no "
                "scaling, or resireduce.distribute(..., grad_scaler=resireduce.GradScaler(...)) without the wrapper"
            )
        own = {id(one) for one in parameters}
        for one in objects(torch.optim.Optimizer):
            groups = vars(one).get("param_groups") or ()  # one that passes on another's has none of its own
            if any(id(parameter) in own for group in groups for parameter in group["params"]):
                self.resumed.watch(one)
        self._is_known = True

    def _take(self, slot: Slot, grad: Tensor) -> Tensor | None:
        """Return what is to be compressed of a gradient, which is looked at for NaN; None: this rank has none."""
        self.feedback.finiteness.check(grad, slot.name)
        if self.feedback.compressor_of(slot.name).lossless:
            return grad.contiguous()
        # A group's residual may hold an error until its turn comes, and averages come into this memory before.
        return grad.clone(memory_format=torch.contiguous_format)

    def _send(self, views: Mapping[Slot, Tensor], whole: Tensor) -> None:
        """Launch the messages of gradients, `views` of the `whole` of the wrapper, which receive the averages."""
        slots = sorted(views, key=lambda slot: -slot.index)  # last to first, as groups of residuals want them
        if slots and all(self.feedback.compressor_of(slot.name).lossless for slot in slots):
            # Nothing can be left unsent: one all-reduce in the memory of `whole`, as without a hook, once that has been
            # looked at for NaN, and momentum corrected in it.
            for slot in slots:
                self.feedback.compress({slot.name: self._take(slot, views[slot])}, self.steps)
            dense = self.feedback.compressor_of(slots[0].name)
            message = dense.message([slots[0].name], [Payload.pack(whole, like=whole)])
            self._launch(Bucket(slots, message), [whole])
            return
        for bucket in in_buckets(slots, None, self.feedback):
            gradients = {slot.name: self._take(slot, views[slot]) for slot in bucket.slots}
            bucket.message = self.feedback.compress(gradients, self.steps)
            self._launch(bucket, [views[slot] for slot in bucket.slots])

    def _launch(self, bucket: Bucket, targets: Sequence[Tensor]) -> None:
        while not self._under_way.has_room(bucket):
            self._receive()
        self._under_way.launch(bucket)
        self._targets.append(targets)

    def _receive(self) -> None:
        bucket, targets = self._under_way.popleft(), self._targets.popleft()
        message = bucket.message
        assert isinstance(message, Message)
        averages = self.feedback.receive(
            message,
            range(len(targets)),
            lambda place: targets[place] if targets[place].is_contiguous() else message.room(place),
        )
        for target, average in zip(targets, averages, strict=True):
            if average is not target:
                target.copy_(average)

    def _receive_all(self) -> None:
        self._under_way.end_rounds(Unscaled())
        while self._targets:
            self._receive()

    def _end_step(self) -> None:
        self.feedback.end_step(self.steps)
        self.feedback.states.commit()
        self.resumed.after_step()
        self.steps += 1
        self.feedback.begin_step(self.steps)


def objects(kind: type) -> list[Any]:
    """Return all objects of class `kind`, written in Python, in this process. They are found as those that refer to it:
    a list of all objects would also hold tuples that other threads are still filling."""
    kinds = [kind]
    for one in kinds:
        kinds += type.__subclasses__(one)  # whose own are looked for in turn
    return [one for one in gc.get_referrers(*kinds) if type(one) in kinds]
