"""Traces one training step of a model: its operations, and the order in which its gradients arrive.

It runs on the meta device: nothing is computed, and no memory is taken.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.core.cell import Cell
from benchmarks.core.paths import ROOT
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.build import make_task
from resireduce.grouping import compressible
from resireduce.pipeline import find_grouping
from resireduce.planning.models import find_builder
from resireduce.scheme import build_compressor

Operation = tuple[int, int]
"""Floating-point operations, and bytes that are read and written."""


def trace(name: str, batch: int | None = None) -> dict[str, Any]:
    """Return plain values about one step of model `name`, on `batch` samples; None: as many as its recipe says.

    names, shapes, kinds: of the gradients in the order of their arrival; kind is grouped, specific, other, or dense for
    those that are sent uncompressed. forward: its operations, [flops, bytes] each; backward: the operations between
    each gradient and the one before it. activations_bytes: what the forward pass saves for the backward pass, except
    parameters. batch: samples, 0 for a model without a recipe, of which only names, shapes and kinds, in the model's
    reverse order, are known. optimizer: the recipe's, or sgd. Raises ConfigError if there is no such model.
    """
    with torch.device("meta"):
        model = find_builder(name)()
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
    compressed, recipe = compressible(model), WORKLOADS.get(name)
    grouping = find_grouping(model, "auto", compressed)
    kinds = dict.fromkeys(compressed, "other") | dict.fromkeys(grouping.grouped, "grouped")
    kinds |= dict.fromkeys(grouping.specific, "specific")
    found: dict[str, Any] = {"forward": [], "backward": [[] for _ in parameters], "activations_bytes": 0, "batch": 0}
    order = [*reversed(parameters)]
    if recipe is not None:
        found |= _run(model, name, batch or recipe.batch_per_rank)
        arrived = found.pop("arrived")
        order = arrived + [one for one in order if one not in arrived]
        found["backward"] += [[] for _ in order[len(arrived) :]]
    return {
        "model": name,
        "names": order,
        "shapes": [list(parameters[one].shape) for one in order],
        "kinds": [kinds.get(one, "dense") for one in order],
        "optimizer": "sgd" if recipe is None else recipe.optimizer,
        **found,
    }


class _Operations(TorchDispatchMode):
    """Counts what every operation computes, reads and writes; a view does nothing.

    Models ask whether all values of their masks are true: without values, the answer is yes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.since: list[Operation] = []
        """The operations since `taken` was last called."""

    def taken(self) -> list[Operation]:
        """Return the operations since the last call."""
        found, self.since = self.since, []
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype == torch.bool or 1
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves((args, kwargs, out)) if isinstance(one, Tensor)]
        if not func.is_view and tensors:
            count = flop_registry.get(func.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=out) if count else 0
            self.since.append((int(flops), sum(one.nbytes for one in tensors)))
        return out


def _run(model: nn.Module, name: str, batch: int) -> dict[str, Any]:
    """Return what was traced of one step of `model`."""
    cell = Cell(model=name, compressor="none", scheme="none", data="synthetic" if WORKLOADS[name].data else "real")
    task = make_task(cell, ROOT / "data")
    inputs = {key: one.to("meta") for key, one in task.batch(torch.arange(batch) % len(task)).items()}
    arrived: list[str] = []
    backward: list[list[Operation]] = []
    operations, known = _Operations(), {_storage(one) for one in model.parameters()}
    saved: list[Tensor] = []  # held, so that no storage is freed and its address reused

    def arrives(name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            arrived.append(name)
            backward.append(operations.taken())

        return hook

    def pack(tensor: Tensor) -> Tensor:
        """Note a tensor whose storage is neither the model's nor known to be saved."""
        if _storage(tensor) not in known:
            known.add(_storage(tensor))
            saved.append(tensor)
        return tensor

    for of, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(arrives(of))
    with operations:
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = task.loss(model, inputs)
        forward = operations.taken()
        loss.backward()
    seen = {"forward": forward, "backward": backward, "arrived": arrived}
    return seen | {"activations_bytes": sum(one.untyped_storage().nbytes() for one in saved), "batch": batch}


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def payload_of(compressor: str, density: float, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the bytes of one rank's messages for float32 gradients of `shapes`, by the `compressor` of that name.

    Also returns their collective, and whether they are equally long on all ranks. density: share of the elements that
    is sent, if the compressor selects. Lengths that depend on values are those that a plan assumes. Raises ConfigError
    for an unknown compressor or an invalid density.
    """
    chosen = build_compressor(compressor, density)
    different = dict.fromkeys(map(tuple, shapes))
    sizes = {shape: chosen.compress(torch.empty(shape, device="meta"), "w", 0).nbytes for shape in different}
    return {
        "bytes": [sizes[tuple(shape)] for shape in shapes],
        "collective": chosen.collective,
        "equal_sizes": chosen.equal_sizes,
    }
