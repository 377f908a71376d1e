"""`resireduce.distribute`: three lines in an ordinary training loop."""

import math
import warnings
from collections.abc import Iterable, Mapping
from inspect import Parameter, signature

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import ConfigError, choose
from resireduce.grad_scaler import GradScaler
from resireduce.grouping import Grouping, compressible, find_groups
from resireduce.optimizer import DISTRIBUTED, DistributedOptimizer
from resireduce.patterns import match_groups
from resireduce.scheme import BACKENDS, GRADIENTS, SCHEMES, build_compressor, build_residual, load
from resireduce.start import broadcast_start, check_agreement


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheme: str = "w+2d",
    compressor: str | Compressor = "topk",
    density: float = 0.01,
    backend: str | Communicator = "torch",
    groups: str | Grouping | Mapping[str, object] = "auto",
    gradients: str = "streamed",
    residual_dtype: str | None = None,
    backward_passes_per_step: int = 1,
    dense: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    max_grad_norm: float | None = None,
    max_local_grad_norm: float | None = None,
    grad_scaler: torch.amp.GradScaler | None = None,
) -> DistributedOptimizer:
    """Make `optimizer` average compressed gradients over all ranks, with error feedback.

    Args:
        model: on its device already; its parameters and buffers are overwritten with rank 0's.
        optimizer: any torch optimizer over (some of) the model's parameters; its state, too, is overwritten.
        scheme: which residuals are stored. baseline: all; none; a, w: one average, plain or weighted, for each group;
            member: one member's for its group; d, 2d: part of the specific layers'; w+2d; partial: a random half.
        compressor: none; topk, dgc, dgc-simple, dgc-momentum, randomk (which send a share of the elements); threshold
            (what is greater); fp16, qsgd, qsgd-max (which send all, in fewer bits); or a Compressor: Threshold(1e-3),
            one of your own, ...
        density: share of each tensor's elements that is sent, where the compressor selects any.
        backend: torch (torch.distributed, already initialised), horovod (likewise), local (this process alone), or a
            Communicator.
        groups: "auto" finds them; or a Grouping of parameter names, or patterns as in `resireduce.patterns`.
        gradients: streamed frees each gradient during the backward pass, kept leaves them in `.grad`. Either way they
            are under way when `backward()` returns: clipping or unscaling them before `step()` comes too late, and is
            an error.
        residual_dtype: storage precision of residuals: float64, float32, bfloat16, float16, float8_e4m3, int8 or int4,
            not wider than the gradients; None is the gradient's own.
        backward_passes_per_step: how many passes are added up (not averaged) for one step.
        dense: shell patterns of parameters to send without compression, beside the small ones (less than 10,000
            elements, or 1-D); None: those in the model's attribute `dense_parameters`, if it has one.
        options: of the scheme's residuals, by the names of their arguments: phi and norms (w), row_ratio, column_ratio,
            norms and choice (d, 2d), ratio (partial), norm and smallest (member). A ratio may be {pattern: ratio}.
        max_grad_norm: averaged gradients are scaled so that their global norm is this at most, as clip_grad_norm_ does;
            `optimizer.grad_norm` has the norm. It is that of what was sent, which varies more than the gradient's own.
            Streamed, all ranks' payloads then wait for the last.
        max_local_grad_norm: kept only: each rank's own gradient is scaled so that its norm is this at most, before
            anything is compressed, which then waits for all of it. DGC has max_grad_norm / sqrt(world size) here.
        grad_scaler: a `resireduce.GradScaler` that scales the loss. Streamed, payloads wait as with max_grad_norm.

    Raises ConfigError, before anything is changed, for a setting that cannot be used. `step()` raises NonFiniteGradient
    on all ranks if a gradient of one held NaN or infinity. For a rank that fails otherwise the others wait until the
    launcher (torchrun) or the time limit of the process group ends them.
    """
    _check_types(model, optimizer)
    choose("gradients", gradients, GRADIENTS)
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise ConfigError(f"backward_passes_per_step: {backward_passes_per_step!r} is not allowed; give a number >= 1")
    _check_norms(max_grad_norm, max_local_grad_norm, gradients)
    _check_scaler(grad_scaler)
    parameters = _optimized(model, optimizer)
    compressed = {name: p for name, p in compressible(model, dense).items() if name in parameters}
    grouping = find_grouping(model, groups, compressed)
    lossy = compressor if isinstance(compressor, Compressor) else build_compressor(compressor, density)
    _check_momentum(lossy, optimizer)
    communicator = _communicator(backend)
    residual = build_residual(scheme, grouping, residual_dtype, communicator.rank, options)
    warn_if_nothing_is_reduced(scheme, grouping)
    settings = {"scheme": scheme, "compressor": lossy, "gradients": gradients, "residual_dtype": residual_dtype}
    settings |= {"options": dict(options or {}), "max_grad_norm": max_grad_norm, "groups": grouping}
    settings |= {"max_local_grad_norm": max_local_grad_norm, "grad_scaler": type(grad_scaler).__name__}
    settings |= {"backward_passes_per_step": backward_passes_per_step}
    check_agreement(settings, parameters, communicator)
    uncompressed = frozenset(parameters.keys() - compressed.keys())
    feedback = ErrorFeedback(lossy, residual, communicator, uncompressed)
    distributed = DistributedOptimizer(
        optimizer,
        parameters,
        feedback,
        streamed=gradients == "streamed",
        backward_passes_per_step=backward_passes_per_step,
        max_grad_norm=max_grad_norm,
        max_local_grad_norm=max_local_grad_norm,
        grad_scaler=grad_scaler,
    )
    broadcast_start(model, optimizer, communicator)
    return distributed


def _check_types(model: object, optimizer: object) -> None:
    for field, value, kind in (("model", model, nn.Module), ("optimizer", optimizer, torch.optim.Optimizer)):
        if not isinstance(value, kind):
            raise ConfigError(
                f"{field}: an object of type {type(value).__name__} is not allowed; give a {kind.__name__}"
            )
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "model: a DistributedDataParallel is not allowed, since it averages gradients too; give the model within, "
            "and train that without the wrapper, or use resireduce.compress_ddp(...)"
        )


def _check_norms(max_grad_norm: float | None, max_local_grad_norm: float | None, gradients: str) -> None:
    for field, value in (("max_grad_norm", max_grad_norm), ("max_local_grad_norm", max_local_grad_norm)):
        if value is not None and (isinstance(value, bool) or not 0 < value < math.inf):
            raise ConfigError(f"{field}: {value!r} is not allowed; give a number greater than 0, or None")
    if max_local_grad_norm is not None and gradients == "streamed":
        raise ConfigError(
            f"max_local_grad_norm: {max_local_grad_norm} is not allowed with gradients='streamed', which are sent "
            "before the norm of all is known; give max_grad_norm, which clips the averages, or gradients='kept'"
        )


def _check_scaler(scaler: object) -> None:
    if scaler is not None and not isinstance(scaler, GradScaler):
        raise ConfigError(
            f"grad_scaler: an object of type {type(scaler).__module__}.{type(scaler).__name__} is not allowed; give a "
            "resireduce.GradScaler"
        )


def _check_momentum(compressor: Compressor, optimizer: torch.optim.Optimizer) -> None:
    """A compressor that corrects momentum takes the place of the optimizer's."""
    own = next((key for g in optimizer.param_groups for key in ("momentum", "betas") if g.get(key)), None)
    if compressor.momentum is not None and own is not None:
        raise ConfigError(
            f"compressor: {type(compressor).__name__} corrects momentum and is not allowed with the {own} of "
            f"{type(optimizer).__name__}; give SGD with momentum=0, or compressor='dgc', which leaves momentum to it"
        )


def _optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """The trainable parameters that the optimizer holds, by name, in the order of the model."""
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} computes gradients several times a step, which are under way after "
            "the first; use one that takes a step from one gradient (SGD, Adam, ...)"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    parameters = {name: p for name, p in model.named_parameters() if id(p) in held}
    if len(parameters) < len(held):
        raise ConfigError("optimizer: it holds parameters that are not the model's; give distribute() the whole model")
    twice = next((name for name, p in parameters.items() if hasattr(p, DISTRIBUTED)), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already; use the optimizer of that call, or build the model anew"
        )
    if not parameters:
        raise ConfigError("optimizer: it holds no trainable parameter of the model")
    return parameters


def find_grouping(
    model: nn.Module, groups: str | Grouping | Mapping[str, object], compressed: dict[str, nn.Parameter]
) -> Grouping:
    """The grouping that `groups` asks for, of the tensors `compressed`. Raises ConfigError if they do not fit it."""
    if isinstance(groups, Grouping):
        groups.check(compressed)
        return groups
    if isinstance(groups, Mapping):
        return match_groups(groups, compressed)
    choose("groups", groups, ("auto",))
    return find_groups(model, compressed)


def warn_if_nothing_is_reduced(scheme: str, grouping: Grouping) -> None:
    """A scheme that reduces groups or specific layers saves nothing in a model that has none."""
    kinds = SCHEMES[scheme]
    reduced = [
        members
        for kind, members in ((kinds.grouped, grouping.groups), (kinds.specific, grouping.specific))
        if kind != kinds.other
    ]
    if reduced and not any(reduced):
        warnings.warn(
            f"scheme {scheme!r} saves nothing in this model: it has no layers of the kinds that it reduces "
            "(see: python -m resireduce groups); name some by groups=Grouping(...)",
            stacklevel=3,
        )


def _communicator(backend: str | Communicator) -> Communicator:
    if isinstance(backend, Communicator):
        return backend
    target = BACKENDS[choose("backend", backend, BACKENDS)]
    communicator: Communicator = load(target)()
    return communicator
