"""How many bytes a step may have alive beside the model states, from how its messages are made."""

from resireduce.core.optimizer import DistributedOptimizer
from resireduce.core.queue import planned_payload
from resireduce.core.update import largest_layer
from resireduce.planning.memory import waiting_bytes


def step_bounds(optimizer: DistributedOptimizer) -> dict[str, int]:
    """Bytes alive at most beside the model states, at any time of a step of `optimizer` in streamed mode.

    waiting_bytes: what is sent without compression, and waits for `step()`. dense_bytes: gradients and averaged ones:
    twice those of the largest layer (autograd makes the gradients of weight and bias together), and a message of small
    tensors with its parts. Tied parameters come on top: autograd holds their gradient from their last use to their
    first. local_bytes: this rank's compressed payloads, and, where they are merged, the largest message of them.
    gathered_bytes: all ranks' payloads of the tensors under way. node_bytes: with two levels, gradients that wait for
    the other ranks of the node, and the slices that come of them; twice the largest layer, none with one level.

    Holds in every step in which gradients arrive in the order of the first step, and in the first if that is the
    reverse order of the model's parameters. A gradient that comes late, or not at all on this rank, holds up those
    behind it: messages then wait for `step()`; so do gradients once a pass has waited for its node in vain, and, where
    ranks make payloads in rounds, those that no residual takes up. With
    `max_grad_norm` or a GradScaler all messages wait for the last one, so there is no bound but their sum.
    """
    queue, feedback = optimizer.queue, optimizer.feedback
    payloads = {slot: planned_payload(slot, feedback) for slot in queue.slots}
    gathered = [queue.gathered_nbytes(message, [payloads[slot] for slot in message]) for message in queue.messages]
    together = [message for message in queue.messages if len(message) > 1 and not message[0].small]
    packed = max((sum(payloads[slot].nbytes for slot in message) for message in together), default=0)
    small = sum(slot.nbytes for slot in queue.slots if slot.small)
    return {
        "waiting_bytes": waiting_bytes(optimizer),
        "dense_bytes": 2 * (largest_layer(queue.slots) + min(queue.bucket_bytes, small)),
        "local_bytes": packed + sum(payload.nbytes for slot, payload in payloads.items() if not slot.dense),
        "gathered_bytes": max(queue.gathered_limit, *gathered),
        "node_bytes": 0 if optimizer.levels.node is None else 2 * largest_layer(queue.slots),
    }
