"""Counts what the host does for a GPU in a step of the library; `benchmarks.micro.operations_command` has it counted.

No GPU is needed. Gradients have the shapes of a model, and no storage; the library takes them for tensors on a GPU, and
every operation that torch dispatches, and every kernel in Triton that would be launched, is counted.
"""

import itertools
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from resireduce import distribute, pieces
from resireduce.comm.base import Handle
from resireduce.comm.local import PretendCommunicator
from resireduce.kernels import ops
from resireduce.kernels.gpu import blocks, bucket, one_pass
from resireduce.planning.fullest import Made
from resireduce.planning.models import find_builder

WAYS: dict[str, dict[str, Any]] = {
    "none": {"compressor": "none", "scheme": "none"},
    "fp16": {"compressor": "fp16", "scheme": "baseline"},
    "topk": {"compressor": "topk", "scheme": "baseline"},
    "block8": {"compressor": "block8", "scheme": "baseline"},
    "w+2d": {"compressor": "topk", "scheme": "w+2d"},
}
"""What is counted for each model: settings of `distribute`, beside its defaults."""
RANKS = 2
"""World size that the library is told: each rank receives the payloads of so many."""
STEPS = 4
"""The last is counted: buckets are in their final order, and ranks no longer compare parameters."""
KERNELS = {
    bucket: (
        *("_look_for_non_finite", "_blank_spoilt", "_histogram", "_count_selected", "_write_selected", "_add_sent"),
        *("_sum_chunks", "_fold"),
    ),
    blocks: ("_encode_blocks", "_add_blocks"),
    one_pass: ("_cross", "_decode_add", "_encode"),
}
"""All kernels that are launched, by their modules."""
NO_LAUNCH = {f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "promote_types")}
"""Operations that launch nothing, beside views: they take memory, or only look at dtypes."""


class Dispatched(TorchDispatchMode):
    """Within it, counts operations by name; of tensors without storage, what is read is 0 everywhere: all is fine."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        """All operations that torch dispatches."""
        self.launching: Counter[str] = Counter()
        """Operations and kernels that a GPU has to execute: no views, allocations, or questions about dtypes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket._qualified_op_name, kwargs or {}
        if not name.startswith("profiler::"):
            self.operations[name] += 1
            self.launching[name] += not (func.is_view or name in NO_LAUNCH)
        if name == "aten::_to_copy" and args[0].is_meta and str(kwargs.get("device")) == "cpu":
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)

    def launched(self, kernel: str) -> None:
        """Count a kernel in Triton."""
        self.operations[kernel] += 1
        self.launching[kernel] += 1


class Ranks(PretendCommunicator):
    """Ranks whose collectives dispatch nothing, and are counted."""

    messages = 0

    def all_reduce(self, tensor: Tensor, name: str) -> Handle[Tensor]:
        """Return `tensor`, or what all ranks agree on: they do, in all that they compare."""
        self.messages += 1
        return super().all_reduce(tensor, name) if tensor.is_cpu else Handle(lambda: tensor)

    def all_gather(self, tensor: Tensor, name: str, equal_sizes: bool = True) -> Handle[Sequence[Tensor]]:
        """Return `tensor` in place of what each rank has sent."""
        self.messages += 1
        return Handle(lambda: [tensor] * self.world_size)


class Idle(torch.optim.SGD):
    """An optimizer whose steps dispatch nothing."""

    step_is_separable = True

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""


def count(model: nn.Module, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is dispatched and launched in a step of `model`, which is distributed with these `settings`.

    The backward pass of the model and the update of parameters are not counted, and neither is what collectives do.
    `operations` and `launches` are by name.
    """
    plain = [nn.Parameter(one.detach()) for one in model.parameters() if one.requires_grad]
    with Dispatched() as of_autograd:
        _backward(plain)
    trained = [one for one in model.parameters() if one.requires_grad]
    ranks = Ranks(RANKS)
    with distribute(model, Idle(trained, lr=0.1), backend=ranks, **settings) as optimizer:
        optimizer.feedback.finiteness.waits_for = ()  # as on a GPU, which the host asks once a step
        for _ in range(STEPS):
            optimizer.zero_grad()
            ranks.messages = 0
            bucket._table.cache_clear()  # as where gradients have other addresses in each step
            with _on_gpu(seen := Dispatched()), seen:
                _backward(trained)
                optimizer.step()
        buckets = len(optimizer.messages)
    return {
        "tensors": len(trained),
        "buckets": buckets,
        "messages": ranks.messages,
        "operations": dict(sorted((seen.operations - of_autograd.operations).items())),
        "launches": dict(sorted((seen.launching - of_autograd.launching).items())),
    }


def _backward(parameters: Sequence[Tensor]) -> None:
    torch.autograd.backward([Made.apply(one) for one in parameters])


@contextmanager
def _on_gpu(seen: Dispatched) -> Iterator[None]:
    """Within it the library takes tensors without storage for those of a GPU, whose kernels `seen` counts."""
    numbers: dict[int, int] = {}
    fresh = itertools.count(1)

    def address(tensor: Tensor) -> int:
        """Return another number for each tensor without storage, and each place in it; none has it again."""
        storage = tensor.untyped_storage()
        if storage._cdata not in numbers:
            numbers[storage._cdata] = next(fresh)
            weakref.finalize(storage, numbers.pop, storage._cdata)
        return (numbers[storage._cdata] << 40) + int(tensor.storage_offset()) * tensor.element_size()

    def standing_for(kernel: str) -> Mapping[Any, Callable[..., None]]:
        """Return what is launched with any grid: `kernel[grid](...)`."""
        return defaultdict(lambda: lambda *_, **__: seen.launched(kernel))

    with ExitStack() as stack:
        replaced: list[tuple[Any, str, Any]] = [
            (ops, "DEVICE", "meta"),
            (ops, "works", lambda *_: True),
        ]
        replaced += [(pieces, "HOSTS", ()), (Tensor, "data_ptr", address)]
        for module, names in KERNELS.items():
            replaced += [(module, name, standing_for(name)) for name in names]
        for target, name, value in replaced:
            stack.enter_context(patch.object(target, name, value))
        yield


def counted(model: str) -> list[dict[str, Any]]:
    """Return a row for each of WAYS, of a step of the model of that name."""
    rows = []
    for way, settings in WAYS.items():
        with torch.device("meta"):
            made = find_builder(model)()
        rows.append({"model": model, "way": way, **count(made, settings)})
    return rows
