"""`resireduce.compress_ddp`: kept gradients for a model in DistributedDataParallel, even if a trainer has wrapped it.

The wrapper works as usual: it collects gradients in buckets, hands each bucket to the hook while the backward pass is
still running, and leaves the averages in `.grad` when `backward()` returns. Clipping, `no_sync()` and any optimizer
work on them as usual.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from resireduce.comm.torch import TorchCommunicator
from resireduce.compressors.base import Compressor
from resireduce.core.slot import accumulation_node
from resireduce.errors import ConfigError, UsageError, warn
from resireduce.grouping import Grouping
from resireduce.pipeline import build_feedback, find_compressor
from resireduce.scheme import Scheme
from resireduce.settings import Settings
from resireduce.watchers import Outside, is_distributed
from resireduce.wrappers.comm_hook import CONVERTED, CompressionHook

UNKNOWN = (
    "unfrozen or added after DistributedDataParallel(...), which does not know it, so that each rank has its own "
    "gradient of it: do that before the model is wrapped, or wrap it anew"
)
ASSIGNED = (
    "the model no longer has all parameters that DistributedDataParallel averages, as load_state_dict(assign=True) "
    "replaces them, and each rank trains the new ones by itself: leave assign out, or load before the model is wrapped"
)


def compress_ddp(
    model: DistributedDataParallel,
    scheme: str | Scheme = "w+2d",
    compressor: str | Compressor = "topk",
    density: float | Callable[[int], float] = 0.01,
    groups: str | Grouping | Mapping[str, object] = "auto",
    residual_dtype: str | None = None,
    dense: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    residual_device: str | None = None,
    warm_up_steps: int = 0,
) -> CompressionHook:
    """Make `model` average compressed gradients over the ranks of its process group, with error feedback.

    It does the same arithmetic as `resireduce.distribute(..., gradients="kept")`, for trainers that wrap the model
    themselves: bit for bit on two ranks; on more, an all-reduce may round in another order. Call it once, before the
    first backward pass. Parameter names are those of the wrapped model, without "module.".

    Args:
        model: in DistributedDataParallel, without a communication hook, or an optimizer in its backward pass.
        scheme, compressor, density, groups, residual_dtype, dense, options, residual_device, warm_up_steps: as in
            `resireduce.distribute`. With a compressor that corrects momentum (dgc-momentum) the optimizer must have
            none, which the hook cannot check.

    Raises ConfigError, before anything is changed, for a setting that cannot be used. `backward()` raises
    NonFiniteGradient on the rank that meets NaN or infinity; the others wait for it, as for any rank that fails.
    GradScaler therefore cannot be used (a warning), since its scaled gradients overflow at times; bfloat16 needs none.
    UsageError of `backward()` says what an unfrozen parameter, `join()`, or a pass without `no_sync()` made wrong.
    """
    given = {name: value for name, value in locals().items() if name != "model"}
    settings = Settings(**given, gradients="kept")
    parameters = _parameters(model)
    lossy = find_compressor(settings)
    communicator = TorchCommunicator(model.process_group, shares=True)
    feedback, _ = build_feedback(model.module, parameters, lossy, communicator, settings)
    hook = CompressionHook(parameters, feedback)
    hook.refuse = partial(_refuse_join, weakref.ref(model))
    averaged = {name: one for name, one in model.module.named_parameters() if name in model.parameters_to_ignore}
    hook.outside = Outside(model.module, averaged | parameters, UNKNOWN)
    model.register_comm_hook(hook, _reduce)
    model.module.register_load_state_dict_post_hook(_Loaded(model, parameters.values()))
    return hook


def _parameters(model: object) -> dict[str, nn.Parameter]:
    """Return the parameters whose gradients the wrapper averages, by their names in the wrapped model."""
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"model: an object of type {type(model).__name__} is not allowed; give the DistributedDataParallel "
            f"{_place(model)}, or use resireduce.distribute(model, optimizer, ...), which needs none"
        )
    _refuse_hooks(model)
    parameters = {
        name: parameter
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in model.parameters_to_ignore
    }
    twice = next((name for name, parameter in parameters.items() if is_distributed(parameter)), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already, by resireduce.distribute(...), which averages gradients itself; "
            "use one of the two"
        )
    if parameters and not any(map(_is_held, parameters.values())):
        raise ConfigError(
            f"model: {CONVERTED.format(name=next(iter(parameters)), before='DistributedDataParallel(...)')}"
        )
    return parameters


def _refuse_hooks(model: DistributedDataParallel) -> None:
    """Raise ConfigError if `model` has a communication hook, or will make itself one in its first forward pass."""
    updated = {id(one) for one in model._module_parameters if hasattr(one, "_in_backward_optimizers")}
    if (name := next((name for name, one in model.module.named_parameters() if id(one) in updated), None)) is not None:
        raise ConfigError(
            f"model: an optimizer of torch's _apply_optimizer_in_backward updates {name!r} in the backward pass, by "
            "a communication hook of DistributedDataParallel, which can have one only; build the model anew, and give "
            "it an optimizer that takes its step after backward(), or leave compress_ddp out"
        )
    if any(hook is _reduce for hook, _ in model._comm_hooks):
        raise ConfigError("model: compress_ddp was called for it already; use the hook that it returned then")
    # The names of built-in hooks are known to the logger alone.
    if (name := model._get_ddp_logging_data().get("comm_hook")) is not None:
        raise ConfigError(
            f"model: it has a communication hook already ({name}), and can have one only; wrap the model anew, "
            "without that hook (and without mixed_precision=..., which is one)"
        )


def _is_held(parameter: Tensor) -> bool:
    """Whether the node that accumulates the gradient is held, as by the wrapper: torch would free it with the mark."""
    accumulation_node(parameter).metadata["resireduce"] = True
    return "resireduce" in accumulation_node(parameter).metadata


def _place(model: object) -> str:
    """Return where a wrapper is to be found, in words: torch.compile and Lightning's Fabric put others around it."""
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    inside = next((name for name, module in named if isinstance(module, DistributedDataParallel)), None)
    return "around your model" if inside is None else f"within, model.{inside}"


@torch.compiler.disable
def _reduce(hook: CompressionHook, bucket: dist.GradBucket) -> Future[Tensor]:
    """Call `hook` as DistributedDataParallel calls hooks: with a state, which is `hook` itself, and a bucket."""
    if not isinstance(bucket, dist.GradBucket):
        raise UsageError(
            "torch._dynamo.config.optimize_ddp='python_reducer' hands over one gradient at a time, which are not "
            "averaged together: leave optimize_ddp as it is, and compiled autograd off"
        )
    hook.refuse()
    return hook.reduce(bucket)


def _refuse_join(place: weakref.ref[DistributedDataParallel]) -> None:
    """Raise UsageError if the wrapper is to divide by the number of ranks that have not joined, as no hook can."""
    model = place()
    if model is not None and model._join_config.enable and not model._divide_by_initial_world_size:
        raise UsageError(
            "join(divide_by_initial_world_size=False): averages are divided by the number of all ranks, those included "
            "that have joined, as with any communication hook: leave divide_by_initial_world_size at True"
        )


class _Loaded:
    """Warns, when a state has been loaded, if it took the place of parameters that the wrapper `model` averages.

    If it did so with all, nothing else would call the library any more. Copies of the model have a hook that does
    nothing. `parameters`: those that the wrapper averages.
    """

    def __init__(self, model: DistributedDataParallel, parameters: Iterable[nn.Parameter]):
        self._place, self._parameters = weakref.ref(model), [weakref.ref(one) for one in parameters]

    def __call__(self, module: nn.Module, _: object) -> None:
        there = {id(one) for one in module.parameters()}
        if self._place() is not None and any(id(one()) not in there for one in self._parameters):
            self._parameters = []
            warn(ASSIGNED)

    def __reduce__(self) -> Any:
        return partial, (_nothing,)


def _nothing(*_: object) -> None:
    pass
