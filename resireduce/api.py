"""`resireduce.distribute`: three lines in an ordinary training loop."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from resireduce.agreement import check_agreement, check_optimizer_agreement
from resireduce.checks import check_beside_optimizer, check_settings, check_types, optimized
from resireduce.comm.base import Communicator
from resireduce.comm.levels import Levels
from resireduce.compressors.base import Compressor
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import ConfigError, choose
from resireduce.grad_scaler import GradScaler
from resireduce.grouping import Grouping, check_kinds, compressible, find_groups, is_small
from resireduce.merge_checks import check_dear, check_merge
from resireduce.optimizer import DistributedOptimizer
from resireduce.patterns import match_groups
from resireduce.scheme import BACKENDS, Scheme, build_compressor, build_residual, find_scheme, load
from resireduce.settings import Settings
from resireduce.start import broadcast_start

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh


def distribute(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheme: str | Scheme = "w+2d",
    compressor: str | Compressor = "topk",
    density: float | Callable[[int], float] = 0.01,
    backend: str | Communicator = "torch",
    groups: str | Grouping | Mapping[str, object] = "auto",
    gradients: str = "streamed",
    residual_dtype: str | None = None,
    backward_passes_per_step: int = 1,
    dense: Iterable[str] | None = None,
    options: Mapping[str, object] | None = None,
    max_grad_norm: float | None = None,
    max_local_grad_norm: float | None = None,
    grad_scaler: GradScaler | None = None,
    residual_device: str | None = None,
    update: str = "in_step",
    overlap: bool | None = None,
    group: "dist.ProcessGroup | None" = None,
    warm_up_steps: int = 0,
    hierarchy: "str | Sequence[Sequence[int]] | dist.ProcessGroup | DeviceMesh" = "flat",
    slices: int | bool | None = None,
    merge: int | str | Sequence[Sequence[str]] | None = None,
) -> DistributedOptimizer:
    """Make `optimizer` average compressed gradients over all ranks, with error feedback.

    Args:
        model: on its device already; its parameters and buffers are overwritten with rank 0's.
        optimizer: any torch optimizer over (some of) the model's parameters; its state, too, is overwritten.
        scheme: which residuals are stored. baseline: all; none; a, w: one average, plain or weighted, for each group;
            member: one member's for its group; d, 2d: part of the specific layers'; w+2d; partial: a random half;
            decayed: all, fading from step to step. Or a `resireduce.scheme.Scheme` of residuals of your own.
        compressor: none; topk, adtopk, adtopk-interleaved, chunked, demo, dgc, dgc-simple, dgc-momentum, randomk (which
            send a share of the elements), topk+packed, dgc+packed (their indices in few bits); gaussian, redsync,
            redsync-trim, sidco-exp, sidco-gp, sidco-gamma, adtopk-threshold (which aim at a share); threshold (what is
            greater); fp16, block8, block4, qsgd, qsgd-max, natural, terngrad, onebit, ef-signsgd, signsgd, signum
            (which send all, in fewer bits; the last two bring back a vote); powersgd (matrices of low rank), l1-chunks
            (a share, in chunks), on which ranks agree first; or a Compressor: Threshold(1e-3), PowerSGD(rank=4), one
            of your own, ...
        density: share of each tensor's elements that is sent, where the compressor selects any; or a function from the
            number of the step, counted from 0, to that share, the same on all ranks.
        backend: torch (torch.distributed, already initialised), horovod (likewise), local (this process alone), or a
            Communicator.
        groups: "auto" finds them; or a Grouping of parameter names, or patterns as in `resireduce.patterns`.
        gradients: streamed frees each gradient during the backward pass, when it is compressed and sent: clipping or
            unscaling between `backward()` and `step()` comes too late, and is an error. kept leaves gradients in
            `.grad`, as plain training does, until `step()` sends what is there then and puts the averages in its place.
        residual_dtype: storage precision of residuals: float64, float32, bfloat16, float16, float8_e4m3, int8 or int4,
            not wider than the gradients; None is the gradient's own.
        backward_passes_per_step: how many passes are added up (not averaged) for one step.
        dense: shell patterns of parameters to send without compression, beside the small ones (less than 10,000
            elements, or 1-D); None: those in the model's attribute `dense_parameters`, if it has one.
        options: of the scheme's residuals, by the names of their arguments: phi and norms (w), row_ratio, column_ratio,
            norms and choice (d, 2d), ratio (partial), decay (decayed), norm and smallest (member). A ratio may be
            {pattern: ratio}.
        max_grad_norm: averaged gradients are scaled so that their global norm is this at most, as clip_grad_norm_ does;
            `optimizer.grad_norm` has the norm; `math.inf` asks for that alone. It
            is that of what was sent, which varies more than the gradient's own.
            Streamed, all ranks' payloads then wait for the last.
        max_local_grad_norm: kept only: each rank's own gradient is scaled so that its norm is this at most, before
            anything is compressed, which then waits for all of it. DGC has max_grad_norm / sqrt(world size) here.
        grad_scaler: a `resireduce.GradScaler` that scales the loss. Streamed, payloads wait as with max_grad_norm.
        residual_device: "cpu" holds residuals in the host's memory, pinned; each is brought to the GPU shortly before
            its gradient is there. None: on the gradients' device.
        update: in_step: no parameter changes before `step()`; what is sent without compression waits for it.
            in_backward, with compressor "none" and streamed gradients only: parameters are updated, and averages freed,
            during the backward pass. Options of the optimizer must then not change before `step()`, and no weight may
            be used detached earlier in the model than where it is trained.
        overlap: kept only: True compresses and sends during the backward pass. `.grad` cannot be used then before
            `step()`.
        group: with backend "torch": the process group whose ranks train together; None: all ranks. It says which, and
            their messages go through another one, made for this optimizer.
        slices: streamed, and with torch's own SGD, Adam, AdamW, RMSprop or Adagrad only: averages of tensors of more
            than so many bytes are brought back, and used, in slices of about so many. Where a full residual absorbs
            them, gradients of such weights of nn.Linear, nn.Embedding and nn.Conv2d are made in slices too;
            `optimizer.whole_gradients` says which are not, and why. True: of sizes that keep the fullest moment
            about 2 points above what is held between steps. Rounding may differ, as may that of norms. None: whole.
        warm_up_steps: in so many steps at the start everything is sent dense, as by "none"; streamed gradients wait.
        hierarchy: flat: each rank compresses its gradients. node: those of a machine's ranks are summed there, without
            compression; each rank then owns a slice of the mean, compresses that, and holds the residual of that alone:
            a node sends what one rank does, and residuals take one rank's bytes a node. Which ranks share a machine is
            found, by Slurm's numbers or host names; or given: the ranks of each node as lists, or, with backend
            "torch", the ProcessGroup of this rank's node, or a DeviceMesh, of which the last dimension is a node.
            `compress_ddp` has none: its buckets hold whole gradients.
        merge: which compressed tensors travel in one message. None, or "none": none, each leaves as it comes. one: all,
            at the end of the backward pass. hybrid: besides, all that is sent dense in one all-reduce, as in AD-Topk,
            where `dense` names more than small tensors (`resireduce.partial_selection` chooses). A number: as many as
            come one after the other and take so many bytes together, as a rank sends them. mg-wfbp, omgs, optimal,
            rgmerge-style: what these rules make of the times of the first steps, of the slowest rank and of the link,
            which `optimizer.costs` has then; which tensors they merge may differ from run to run. Lists of names of
            parameters, such as those of `optimizer.messages` or `optimizer.costs.messages(rule)`: as they say; who is
            in none travels alone. dear, or dear-BYTES, with compressor "none" and kept gradients only: modules of up to
            25 MiB, or so many bytes, in one reduce-scatter in the backward pass and one all-gather in the next forward
            pass, in which parameters are updated shortly before they are used; `optimizer.flush()` has them updated
            at once. Payloads that are gathered (topk and most others) give the same parameters in any
            messages, bit for bit; those that are summed (none, fp16, randomk) round by their place in a message, on
            three ranks or more. What is sent dense beside them stays as it is, but for hybrid.

    Raises ConfigError, before anything is changed, for a setting that cannot be used. `step()` raises NonFiniteGradient
    on all ranks if a gradient of one held NaN or infinity; on devices other than a CPU zeros have taken its place then.
    For a rank that fails otherwise the others wait until the launcher (torchrun) or the time limit of the process group
    ends them.
    """
    settings = Settings(**{name: value for name, value in locals().items() if name not in ("model", "optimizer")})
    check_types(model, optimizer)
    check_kinds(model)
    check_settings(settings, model)
    parameters = optimized(model, optimizer)
    lossy = find_compressor(settings)
    check_beside_optimizer(settings, lossy, optimizer)
    check_merge(settings.merge, lossy, parameters)
    check_dear(settings, lossy, optimizer, model, parameters)
    communicator = _communicator(settings.backend, settings.group)
    check_optimizer_agreement(model, optimizer, communicator)
    feedback, levels = build_feedback(model, parameters, lossy, communicator, settings)
    distributed = DistributedOptimizer(optimizer, model, parameters, feedback, settings, levels)
    broadcast_start(model, optimizer, communicator)
    return distributed


def find_compressor(settings: Settings) -> Compressor:
    """The compressor that `settings` ask for, by name or as it is. Raises ConfigError for one that is not known."""
    given = settings.compressor
    return given if isinstance(given, Compressor) else build_compressor(given, settings.density)


def build_feedback(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    compressor: Compressor,
    communicator: Communicator,
    settings: Settings,
) -> tuple[ErrorFeedback, Levels]:
    """Return the pipeline for `parameters`, those of `model` that are trained, by name, as `settings` ask for it.

    And the levels of the ranks of `communicator`, by the last of which it sends what `compressor` makes.

    Raises ConfigError for a setting that cannot be used, and on all ranks if any was given other ones than rank 0.
    """
    large = {name: p for name, p in compressible(model, settings.dense).items() if name in parameters}
    compressed = {name: p for name, p in large.items() if compressor.compresses(p.shape)}
    grouping = find_grouping(model, settings.groups, compressed)
    residual = build_residual(
        settings.scheme,
        grouping,
        settings.residual_dtype,
        communicator.rank,
        settings.options,
        settings.residual_device,
    )
    warn_if_nothing_is_reduced(settings.scheme, grouping)
    dense = frozenset(parameters.keys() - compressed.keys())
    named = sorted(name for name in dense if not is_small(parameters[name]))
    check_agreement(settings.agreed(compressor=compressor, groups=grouping, dense=named), parameters, communicator)
    levels = Levels.of(communicator, settings.hierarchy)
    return ErrorFeedback(compressor, residual, levels.between, dense, settings.warm_up_steps, levels.place), levels


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


def warn_if_nothing_is_reduced(scheme: str | Scheme, grouping: Grouping) -> None:
    """Warn of a scheme that reduces groups or specific layers, of which the model has none."""
    kinds = find_scheme(scheme)
    reduced = [
        members
        for kind, members in ((kinds.grouped, grouping.groups), (kinds.specific, grouping.specific))
        if kind != kinds.other
    ]
    if reduced and not any(reduced):
        warnings.warn(
            f"scheme {scheme!r} saves nothing in this model: it has no layers of the kinds that it reduces "
            "(see: python -m resireduce groups); name some by groups=Grouping(...)",
            stacklevel=4,  # of distribute() or compress_ddp()
        )


def _communicator(backend: str | Communicator, group: "dist.ProcessGroup | None") -> Communicator:
    if group is not None and backend != "torch":
        raise ConfigError(f"group: a process group is not allowed with backend={backend!r}; give backend='torch'")
    if isinstance(backend, Communicator):
        return backend
    target = BACKENDS[choose("backend", backend, BACKENDS)]
    communicator: Communicator = load(target)(group) if backend == "torch" else load(target)()
    return communicator
