"""`resireduce.distribute`: three lines in an ordinary training loop."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from resireduce.checks import check_merge, check_momentum, check_settings, check_types, check_update, optimized
from resireduce.comm.base import Communicator
from resireduce.compressors.base import Compressor
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.grad_scaler import GradScaler
from resireduce.grouping import Grouping
from resireduce.merging.profile import Profiler
from resireduce.pipeline import build_feedback, find_communicator, find_compressor
from resireduce.scheme import TIMED_MERGES, Scheme
from resireduce.settings import Settings
from resireduce.start import broadcast_start, check_optimizer_agreement
from resireduce.watchers import watch_around


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
    group: "torch.distributed.ProcessGroup | None" = None,
    warm_up_steps: int = 0,
    hierarchy: str | Sequence[Sequence[int]] = "flat",
    merge: int | str | Sequence[Sequence[str]] | None = None,
) -> DistributedOptimizer:
    """Make `optimizer` average compressed gradients over all ranks, with error feedback.

    Args:
        model: on its device already; its parameters and buffers are overwritten with rank 0's.
        optimizer: any torch optimizer over (some of) the model's parameters; its state is overwritten likewise, unless
            it has the attribute `state_differs_by_rank = True`, as where each rank holds the state of other parameters.
        scheme: which residuals are stored. baseline: all; none: none; a, w: one plain or weighted average for each
            group; member: one member's residual for its group; d, 2d: part of each specific layer's residual; w+2d:
            both; partial: a random half; decayed: all, fading from step to step. Or a `resireduce.scheme.Scheme` of
            your own residuals.
        compressor: none; topk, adtopk, adtopk-interleaved, chunked, demo, dgc, dgc-simple, dgc-momentum, randomk (which
            send a share of the elements), topk+packed, dgc+packed (with indices in few bits); gaussian, redsync,
            redsync-trim, sidco-exp, sidco-gp, sidco-gamma, adtopk-threshold (which aim at a share); threshold (elements
            above it); fp16, block8, block4, qsgd, qsgd-max, natural, terngrad, onebit, ef-signsgd, signsgd, signum
            (every element in fewer bits; the last two return a majority vote); powersgd (low-rank matrices), l1-chunks
            (a share, in chunks), ok-topk (the largest of the sum over all ranks), where ranks agree in several rounds;
            or a Compressor: Threshold(1e-3), PowerSGD(rank=4), one of your own, ...
        density: share of each tensor's elements to send, if the compressor selects elements; or a function from the
            step number, counted from 0, to that share, the same on all ranks. A Compressor has a density of its own,
            if any, in place of which a function counts.
        backend: torch (torch.distributed, already initialised), horovod (likewise), local (this process alone), or a
            Communicator.
        groups: "auto" finds them; or a Grouping of parameter names, or patterns as in `resireduce.grouping`.
        gradients: streamed frees each gradient during the backward pass, when it is compressed and sent: clipping or
            unscaling between `backward()` and `step()` comes too late, and is an error. kept leaves gradients in
            `.grad`, as plain training does, until `step()` sends them and replaces them by the averages.
        residual_dtype: storage precision of residuals: float64, float32, bfloat16, float16, float8_e4m3, int8 or int4,
            not wider than the gradients; None: the gradient's own.
        backward_passes_per_step: how many passes are added up (not averaged) for one step.
        dense: shell patterns of parameters to send without compression, in addition to small ones (fewer than 10,000
            elements, or 1-D); None: those in the model's attribute `dense_parameters`, if it has one.
        options: arguments of the scheme's residuals, by name: phi and norms (w), row_ratio, column_ratio, norms and
            choice (d, 2d), ratio (partial), decay (decayed), norm and smallest (member).
        max_grad_norm: averaged gradients are scaled so that their global norm is at most this, as by clip_grad_norm_.
            `optimizer.grad_norm` holds the norm; `math.inf` only measures it. It is the norm of what was sent, which
            varies more than that of the gradients. With streamed gradients, all payloads then wait for the last one.
        max_local_grad_norm: kept gradients only: each rank's own gradient is scaled so that its norm is at most this,
            before any of it is compressed. DGC uses max_grad_norm / sqrt(world size) here.
        grad_scaler: a `resireduce.GradScaler` that scales the loss. Streamed payloads then wait as with max_grad_norm.
        residual_device: "cpu" holds residuals in pinned host memory; each is copied to the GPU shortly before its
            gradient is ready. None: on the gradients' device.
        update: in_step: no parameter changes before `step()`; what is sent without compression waits for it.
            in_backward, with compressor "none" and streamed gradients only: parameters are updated, and averages freed,
            during the backward pass. The optimizer's options and states, and parameters, must then not change before
            `step()`, and no weight may be used detached in an earlier part of the model than where it is trained.
        group: with backend "torch": the process group whose ranks train together; None: all ranks. It only names the
            ranks: their messages go through another group, made for this optimizer.
        warm_up_steps: the number of first steps in which everything is sent dense, as by "none"; streamed gradients
            then wait for `step()`.
        hierarchy: flat: each rank compresses its gradients. node: gradients are first summed over the ranks of a
            machine, without compression; each rank then owns a slice of the mean, compresses it, and holds the residual
            of that slice alone. A node thus sends, and stores in residuals, as many bytes as one rank otherwise does.
            Which ranks share a machine is found from Slurm's numbers or host names, or given: the ranks of each node as
            lists. `compress_ddp` has no hierarchy: its buckets hold whole gradients.
        merge: which compressed tensors are one bucket: they are compressed, and travel in one message, when all of them
            have come. None: consecutive ones of at most 25 MiB, and of a 32nd of all together. none: each is one, and
            leaves as soon as it is ready. one: all, at the end of the backward pass. hybrid: like one, with all dense
            tensors in one all-reduce too, as in AD-Topk, where `dense` names more than small tensors
            (`grouping.partial_selection` chooses them). A number: consecutive tensors of at most so many bytes
            together, as a rank sends them. mg-wfbp, omgs, optimal, rgmerge-style: what these rules choose by the times
            of the slowest rank and of the link, measured in the first steps and kept in `optimizer.costs`; the choice
            may differ from run to run.
            Lists of parameter names, such as those of `optimizer.messages` or `optimizer.costs.messages(rule)`: these
            messages; a tensor in no list travels alone. Payloads that are gathered (topk and most others) give bitwise
            the same parameters however they are merged; on three ranks or more, those that are summed (none, fp16,
            randomk) are rounded by their place in a message. Only hybrid changes the messages of dense tensors.

    Raises ConfigError, before anything is changed, for a setting that cannot be used. `step()` raises NonFiniteGradient
    on all ranks if a gradient on any of them held NaN or infinity; on devices other than a CPU, zeros have replaced it
    by then. If a rank fails in another way, the others wait until the launcher (torchrun) or the time limit of the
    process group ends them.
    """
    settings = Settings(**{name: value for name, value in locals().items() if name not in ("model", "optimizer")})
    check_types(model, optimizer)
    parameters = optimized(model, optimizer)
    lossy = find_compressor(settings)
    check_settings(settings, lossy, model, optimizer)
    check_update(settings, lossy, optimizer, model, parameters)
    check_merge(settings.merge, lossy, parameters)
    communicator = find_communicator(settings.backend, settings.group)
    check_optimizer_agreement(model, optimizer, communicator)
    feedback, levels = build_feedback(model, parameters, lossy, communicator, settings)
    distributed = None
    try:
        distributed = DistributedOptimizer(optimizer, model, parameters, feedback, settings, levels)
        if settings.streamed:
            distributed.before_step.append(partial(next, watch_around(optimizer)))
        if lossy.momentum is not None:
            distributed.before_step.append(partial(check_momentum, lossy, optimizer))
        if settings.merge in TIMED_MERGES:
            distributed.after_step.append(Profiler(settings.merge, distributed.parts["exchange"]).after_step)
        broadcast_start(model, optimizer, communicator)
    except BaseException:  # the plain optimizer can train on
        (levels if distributed is None else distributed).close()
        raise
    for parameter in parameters.values():
        parameter.grad = None  # an earlier one is this rank's own, and would be taken for an average
    return distributed
