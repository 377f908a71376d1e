"""A slot for each parameter that is trained."""

from collections.abc import Mapping

from torch import nn

from resireduce.comm.base import Communicator
from resireduce.error_feedback import ErrorFeedback
from resireduce.grouping import is_small
from resireduce.node_slices import NodeSlices
from resireduce.step.shared import prepare
from resireduce.step.slot import Slot
from resireduce.streamed_away import guards


def make_slots(
    parameters: Mapping[str, nn.Parameter],
    feedback: ErrorFeedback,
    node: Communicator | None = None,
    shares: bool = False,
) -> list[Slot]:
    """Return a slot for each of `parameters`, by name in the order of the model, as `feedback` compresses them.

    node: the ranks that share each gradient, each compressing its slice; None: this rank compresses all of it.
    shares: whether all dense tensors may share a message, and not only small ones.
    """
    prepare()
    guard = guards(dict(parameters))
    slots = []
    for index, (name, parameter) in enumerate(parameters.items()):
        dense = not feedback.keeps_residual(name)
        slices = None if node is None else NodeSlices(parameter.shape, node.world_size)
        place = 0 if node is None else node.rank
        small = dense and (is_small(parameter) or (shares and not feedback.merges(name)))
        slots.append(Slot(index, name, parameter, dense, small, guard[name], slices, place))
    return slots
