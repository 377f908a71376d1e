"""How many bytes a step may have alive beside the model states, from the model and its messages alone."""

from torch import nn

from resireduce.compressors.base import Compressor
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.grouping import is_small
from resireduce.scheme import build_compressor


def step_bounds(
    model: nn.Module, optimizer: DistributedOptimizer, compressor: str | Compressor, density: float, ranks: int = 1
) -> dict[str, int]:
    """Bytes alive at most beside the model states, at any time of a step of `optimizer` in streamed mode.

    waiting_bytes: what is sent without compression, and waits for `step()`. dense_bytes: gradients and averaged ones:
    twice those of the largest layer, or bucket (autograd makes gradients of weight and bias together), and a message of
    small tensors with its parts. Tied parameters come on top: autograd holds their gradient from the last use to the
    first. local_bytes: this rank's compressed payloads, and, where they are merged, the largest message of them.
    gathered_bytes: all ranks' payloads of the tensors under way: a message, or a sixteenth of the gradients.

    Holds in every step in which gradients arrive in the order of the first step, and in the first if that is the
    reverse order of the model's parameters.
    """
    made = build_compressor(compressor, density) if isinstance(compressor, str) else compressor
    sizes = {name: one.nbytes for name, one in model.named_parameters()}
    like = {name: one.to("meta") for name, one in model.named_parameters() if not is_small(one)}
    like = {} if made.lossless else {name: one for name, one in like.items() if made.compresses(one.shape)}
    payloads = {name: made.compress(one.detach(), name, 0).nbytes for name, one in like.items()}
    messages = [sum(payloads.get(name, 0) for name in names) for names in optimizer.messages]
    layers: dict[str, int] = {}
    for name, nbytes in sizes.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + nbytes
    buckets = [sum(sizes[name] for name in names) for names in optimizer.messages if names[0] in payloads]
    dense = sum(nbytes for name, nbytes in sizes.items() if name not in payloads)
    small = sum(one.nbytes for one in model.parameters() if is_small(one))
    return {
        "waiting_bytes": 0 if optimizer.updates_in_backward else dense,
        "dense_bytes": 2 * (max(*layers.values(), *buckets) + small),
        "local_bytes": sum(payloads.values()) + (max(messages) if len(messages) < len(payloads) else 0),
        "gathered_bytes": max(sum(sizes.values()) // 16, ranks * max(messages)),
    }
