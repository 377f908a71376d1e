"""The fullest moment of a whole training step, activations included, foreseen without a GPU.

Two steps on tensors without storage are put together: one of the model alone, whose every tensor is counted, with the
operations that a GPU takes, and one of the library and the optimizer alone, which are handed the gradients in the same
order. Neither depends on the other, so that a few of each tell what many choices would hold.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from resireduce import private
from resireduce.api import distribute
from resireduce.errors import ConfigError, check, check_count
from resireduce.planning import sums
from resireduce.planning.memory import LiveBytes, held_items
from resireduce.planning.models import Maker, Ones, make_optimizer, without_storage
from resireduce.settings import Settings

Inputs = Callable[[nn.Module, int], Tensor]
"""Called with the model and a batch size, returns the loss of a forward pass on inputs that it makes."""
WORKSPACES = 65 * 2**20
"""Bytes that cuBLAS and cuBLASLt keep, as recorded on an H200 with CUBLAS_WORKSPACE_CONFIG=:4096:8."""
CHUNKS = 64
"""Chunks of logits that are counted one by one. Each holds as much as any other, so that of those beyond only their
gradients are counted, together: a large batch in small chunks would take hours."""
anew = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Runs a part of the forward pass, and once more in the backward pass."""
CURE = "give module:callable, such as `def inputs(model, batch): return model(torch.zeros(batch, 3, 224, 224)).sum()`"


def allocated(nbytes: int) -> int:
    """Return what torch's allocator gives out on a GPU for `nbytes`: from 10 MiB on a whole segment, unless more than
    1 MiB of it would be left, which is used for something else."""
    rounded = -(-nbytes // 512) * 512
    segment = -(-rounded // 2**21) * 2**21
    return segment if rounded >= 10 * 2**20 and segment - rounded <= 2**20 else rounded


def count(held: Iterable[Tensor]) -> LiveBytes:
    """Return what counts tensors without storage that are alive, in bytes of a GPU's allocator, those of `held` too."""
    return LiveBytes(lambda one: one.is_meta, (one for one in held if one.is_meta), allocated)


class OnGpu(TorchFunctionMode):
    """Within it attention and dropout take the operations of a GPU, where others make tensors that a GPU does not.

    loss_chunk: with `head`, the last layer, which must then return what it is given: the loss of so many rows at a
        time, each computed anew in the backward pass.
    """

    def __init__(self, head: Any = None, loss_chunk: int | None = None):
        super().__init__()
        self._head, self._rows = head, loss_chunk

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is cross_entropy and self._rows is not None:
            return self._in_chunks(*args, **(kwargs or {}))
        on_gpu = {scaled_dot_product_attention: _attention, dropout: _dropout}.get(func, func)
        return on_gpu(*args, **(kwargs or {}))

    def _in_chunks(self, rows: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        size: Any = self._rows

        def of(part: Tensor, wanted: Tensor) -> Tensor:
            self._rows = None  # while the loss of a part is computed anew
            loss = cross_entropy(type(self._head).forward(self._head, part), wanted, *args, **kwargs)
            self._rows = size
            return loss

        sizes = [size] * min(CHUNKS, len(rows) // size)
        sizes += [rest] if (rest := len(rows) - sum(sizes)) else []
        parts = zip(rows.split(sizes), target.split(sizes), strict=True)
        made = [anew(of, *pair) if number < CHUNKS else Made.apply(pair[0]) for number, pair in enumerate(parts)]
        return torch.stack(made).sum()


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p else input


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flash attention in half precision without a mask, else the memory-efficient one."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    if query.dtype in (torch.float16, torch.bfloat16) and attn_mask is None:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        mask = torch.zeros_like(attn_mask, dtype=query.dtype) if attn_mask.dtype == torch.bool else attn_mask
        attn_mask = mask.expand(*query.shape[:-1], key.shape[-2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    wanted = torch.is_grad_enabled() and query.requires_grad
    return efficient(query, key, value, attn_mask, wanted, dropout_p, is_causal, scale=scale)[0]


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of `module`: the members of its outermost lists whose members are of one type."""
    parts = list(module.children())
    alike = len(parts) > 1 and len({type(part) for part in parts}) == 1 and any(parts[0].children())
    if isinstance(module, nn.ModuleList | nn.Sequential) and alike:
        return parts
    return [block for part in parts for block in blocks_of(part)]


@dataclass
class Passes:
    """Bytes of a forward and a backward pass of the model alone, with its buffers and what is not trained.

    held: buffers and parameters that are not trained. forward: most in the forward pass. handed: each gradient as it
    comes: whose, the most since the one before, and what is alive without it. after: most after the last gradient.
    left: what is alive after the backward pass.
    """

    held: int
    forward: int = 0
    handed: list[tuple[nn.Parameter, int, int]] = field(default_factory=list)
    after: int = 0
    left: int = 0


def trace_passes(
    model: nn.Module, inputs: Inputs, batch: int, checkpointed: bool = False, loss_chunk: int | None = None
) -> Passes:
    """Return the bytes of a forward and a backward pass of `model`, without storage, which is left in training mode."""
    blocks = blocks_of(model) if checkpointed else []
    lists = "it for a model with an nn.ModuleList or nn.Sequential of equal blocks, between which activations are kept"
    check("checkpoint", checkpointed, not checkpointed or bool(blocks), lists)
    head: Any = getattr(model, "get_output_embeddings", lambda: None)() if loss_chunk is not None else None
    tells = "it for a model with get_output_embeddings(), the layer that makes logits, as transformers' language models"
    check("loss_chunk", loss_chunk, loss_chunk is None or head is not None, tells)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    others = [one for one in (*model.parameters(), *model.buffers()) if not one.requires_grad]
    alive = count(others)
    passes = Passes(alive.current_bytes)

    def take(parameter: nn.Parameter) -> None:
        most, gradient, parameter.grad = alive.since(), parameter.grad, None
        assert gradient is not None
        alive.peak_bytes = alive.current_bytes - allocated(gradient.nbytes)
        passes.handed.append((parameter, most, alive.peak_bytes))

    hooks = [parameter.register_post_accumulate_grad_hook(take) for parameter in trained]
    for block in blocks:
        block.forward = partial(anew, partial(type(block).forward, block))
    if head is not None:
        head.forward = lambda hidden: hidden
    try:
        with torch.device("meta"), OnGpu(head, loss_chunk), Ones(), alive:
            model.train()
            loss = _loss(inputs, model, batch)
            passes.forward = alive.since()
            # Not loss.backward(), within which OnGpu would be off, where checkpoints run the forward pass again.
            private.run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, accumulate_grad=True)
            passes.after, passes.left = alive.since(), alive.current_bytes
    finally:
        for hook in hooks:
            hook.remove()
        for module in blocks if head is None else (*blocks, head):
            del module.forward
    if not passes.handed:
        raise ConfigError(f"inputs: the loss depends on no trained parameter of the {type(model).__name__}; {CURE}")
    return passes


def _loss(inputs: Inputs, model: nn.Module, batch: int) -> Tensor:
    try:
        loss = inputs(model, batch)
    except Exception as error:  # of the user's code
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"inputs: no loss with a batch of {batch} on the meta device: {said}; {CURE}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(f"inputs: it returns {what}, no scalar that depends on the model's parameters; {CURE}")
    return loss


class Made(Function):
    """A number whose backward pass makes a gradient of the parameter that it was made of."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> Tensor:
        """Return a number that depends on `parameter`, whose form `ctx` keeps."""
        ctx.form = parameter.shape, parameter.stride(), parameter.dtype, parameter.device  # not itself, to be held
        return parameter.new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Tensor:
        """Return memory for a gradient of the form that `ctx` has kept."""
        shape, stride, dtype, device = ctx.form
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)


@dataclass
class Held:
    """Bytes that the library and the optimizer hold over a step, beside the model.

    states: between two steps, by kind of model state, without gradients. start: as it begins, as the allocator counts.
    beside: what each gradient that is handed over, with itself, adds: at most while it is, and from then on. update:
    most while parameters are updated, beyond what was held before. kept: whether what a gradient adds from then on is
    the gradient. earlier: what earlier passes of the step have left.
    """

    states: dict[str, int]
    start: int
    beside: dict[nn.Parameter, tuple[int, int]]
    update: int
    kept: bool
    earlier: int = 0


def hold(
    model: nn.Module, order: Sequence[nn.Parameter], given: Settings, optimizer: str | Maker, arguments: dict[str, Any]
) -> list[Held]:
    """Return what the library and an `optimizer` with `arguments` hold beside the `model`, in each kind of step, whose
    backward passes hand over gradients in the `order` of these parameters."""
    trained = [one for one in model.parameters() if one.requires_grad]
    wrapped = make_optimizer(optimizer, trained, arguments, given)
    found = []
    with without_storage(on_gpu=True), distribute(model, wrapped, **vars(given)) as distributed:
        for one in [*dict.fromkeys((*order, *trained))] * distributed.backward_passes_per_step:
            one.sum().backward()  # those that the loss does not depend on, too: states are held of all
        distributed.step()
        for _ in range(distributed.feedback.compressor.turns):
            distributed.zero_grad()
            states = held_items(distributed)
            alive = count(tensor for _, tensor in states)
            held = Held(sums([item for item, _ in states]), alive.current_bytes, {}, 0, not distributed.streamed)
            with alive:
                for _ in range(distributed.backward_passes_per_step):
                    held.earlier = alive.current_bytes - held.start
                    for parameter in order:
                        alive.since()
                        before = alive.current_bytes
                        Made.apply(parameter).backward()
                        held.beside[parameter] = alive.since() - before, alive.current_bytes - before
                before = alive.current_bytes
                distributed.step()
                held.update = alive.since() - before
            found.append(held)
    return found


def fullest(passes: Passes, held: Held) -> dict[str, Any]:
    """Return where the fullest moment of a step lies, and the bytes of what is alive then."""
    now, gradients = held.start + held.earlier, held.earlier if held.kept else 0
    moments = [(passes.forward + now, "forward", passes.forward, gradients)]
    for parameter, most, rest in passes.handed:
        during, onwards = held.beside.get(parameter, (0, 0))
        moments += [(most + now, "backward", most, gradients), (rest + now + during, "backward", rest, gradients)]
        now += onwards
        gradients += min(onwards, parameter.nbytes) if held.kept else 0
    moments.append((passes.after + now, "backward", passes.after, gradients))
    moments.append((passes.left + now + held.update, "update", passes.left, gradients))
    most, where, model, gradients = max(moments)
    states = sum(held.states.values())
    return {
        "fullest_bytes": most + WORKSPACES,
        "fullest_at": where,
        "fullest_parameters_bytes": held.states["parameters"],
        "fullest_gradients_bytes": gradients,
        "fullest_residuals_bytes": held.states["residuals"],
        "fullest_optimizer_states_bytes": held.states["optimizer_states"],
        "fullest_activations_bytes": model - passes.held,
        "fullest_in_flight_bytes": most - model - held.start - gradients,
        "fullest_frozen_and_buffers_bytes": passes.held,
        "fullest_workspaces_and_rounding_bytes": WORKSPACES + held.start - states,
    }


NONE = {"compressor": "none", "scheme": "none", "gradients": "streamed"}
KINDS: dict[str, dict[str, Any]] = {
    "full residuals, kept": {"scheme": "baseline", "residual_dtype": None, "gradients": "kept"},
    "full residuals, streamed": {"scheme": "baseline", "residual_dtype": None, "gradients": "streamed"},
    "w+2d, streamed": {"scheme": "w+2d", "residual_dtype": None, "gradients": "streamed"},
    "int8 residuals, streamed": {"scheme": "baseline", "residual_dtype": "int8", "gradients": "streamed"},
    "int4 residuals, streamed": {"scheme": "baseline", "residual_dtype": "int4", "gradients": "streamed"},
    "no compression, kept": NONE | {"gradients": "kept"},
    "no compression, streamed": NONE,
    "no compression, updated in backward": NONE | {"update": "in_backward"},
}
"""Choices that are planned beside the one that was asked for: what each changes of the settings."""
INT4 = "int4 residuals, streamed"
OTHER: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sgd": ("adamw", "sgd", {"momentum": 0.0}),
    "adamw": ("sgd", "second-moment-adamw", {}),
}
"""Beside an optimizer: another, and one for residuals that are the only memory of gradients, with its arguments."""


def check_batch(batch: Any, inputs: object, checkpoint: bool, loss_chunk: object, memory: object) -> int | None:
    """Return the bytes of `memory`, a number of them or a text such as "24GB" or "80GiB"; None without it.

    Raises ConfigError if the fullest moment cannot be planned as `resireduce.plan`, whose arguments these are, was
    asked to.
    """
    if batch is None:
        for name, value in {"checkpoint": checkpoint, "loss_chunk": loss_chunk, "memory": memory}.items():
            check(name, value, not value, "batch, the samples of a step, with it")
        return None
    check_count("batch", batch, least=1, of="samples")
    check_count("loss_chunk", loss_chunk, least=1, of="rows", or_none=True)
    check("inputs", inputs, callable(inputs), "module:callable of the model and a batch size, which returns the loss")
    if memory is None:
        return None
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(i?)B)?\s*", str(memory))
    number = float(parts[1]) * (1024 if parts[3] else 1000) ** " KMGT".index(parts[2] or " ") if parts else 0
    units = "a number of bytes, or one with a unit of KB, MB, GB, TB, KiB, MiB, GiB, TiB, such as 24GB"
    check("memory", memory, number > 0, units)
    return int(number)


def plan_batch(
    model: nn.Module,
    optimizer: str | Maker,
    arguments: dict[str, Any],
    given: Settings,
    batch: int,
    inputs: Inputs,
    progress: Callable[[str], object],
    checkpoint: bool,
    loss_chunk: int | None,
    memory: int | None,
) -> dict[str, Any]:
    """Return the fullest moment, what other choices would hold then, and what fits into a `memory` of so many bytes."""

    def trace(what: str, size: int, checkpointed: bool, chunk: int | None) -> Passes:
        progress(f"the model's own step{what}")
        return trace_passes(model, inputs, size, checkpointed, chunk)

    passes = trace(f" with a batch of {batch}", batch, checkpoint, loss_chunk)
    order = [parameter for parameter, _, _ in passes.handed]
    ways = {"": passes}
    with suppress(ConfigError):  # the model has no blocks, or does not say which layer makes logits
        for way, chunk in ("checkpointed_", None), ("checkpointed_chunked_", loss_chunk or 512):
            ways[way] = trace(f", {way.strip('_').replace('_', ' and ')}", batch, True, chunk)
    held: dict[str, list[Held]] = {}
    for kind, *choice in ("as asked", given, optimizer, arguments), *choices(given, optimizer, arguments):
        progress(kind)
        with suppress(ConfigError):  # what was asked for does not go together with it
            held[kind] = hold(model, order, *choice)
    rows = [
        {"choice": kind} | {f"{way}fullest_bytes": most_of(one, steps)["fullest_bytes"] for way, one in ways.items()}
        for kind, steps in held.items()
    ]
    asked = held["as asked"]
    result = most_of(passes, asked) | {"choices": rows}
    if memory is not None:

        def fullest_of(size: int) -> int:
            one = trace(f" with a batch of {size}", size, checkpoint, loss_chunk)
            return int(most_of(one, asked)["fullest_bytes"])

        result |= {"memory_bytes": memory, "fits": result["fullest_bytes"] <= memory}
        result["largest_batch"] = largest_batch(fullest_of, batch, result["fullest_bytes"], memory)
    return result


def choices(
    given: Settings, optimizer: Any, arguments: dict[str, Any]
) -> Iterator[tuple[str, Settings, Any, dict[str, Any]]]:
    """Yield what is planned beside what was asked for: in words, as settings, an optimizer and its arguments."""
    for kind, changed in KINDS.items():
        if (settings := replace(given, **changed)) != given:
            yield kind, settings, optimizer, arguments
    if optimizer in OTHER:
        if not arguments.get("fused"):
            yield f"as asked, {optimizer} with fused=True", given, optimizer, arguments | {"fused": True}
        other, without_moment, of_that = OTHER[optimizer]
        yield f"as asked, {other}", given, other, {}
        yield f"{INT4}, no first moment", replace(given, **KINDS[INT4]), without_moment, of_that


def most_of(passes: Passes, held: list[Held]) -> dict[str, Any]:
    """Return the fullest of the moments that `fullest` says of `passes` with each kind of step in `held`."""
    return max((fullest(passes, one) for one in held), key=lambda one: int(one["fullest_bytes"]))


def largest_batch(fullest_of: Callable[[int], int], batch: int, nbytes: int, memory: int) -> int:
    """Return the largest batch, of 2**20 at most, whose fullest moment is at most `memory` bytes; 0 if none is.

    fullest_of: the bytes of a batch; `nbytes` are those of `batch`. They grow, most of them in proportion.
    """
    known = {batch: nbytes, 2 * batch: fullest_of(2 * batch)}
    while True:
        low = max((size for size, most in known.items() if most <= memory), default=0)
        high = min((size for size, most in known.items() if most > memory), default=2**20 + 1)
        if high - low <= 1:
            return low
        first, last = sorted(sorted(known, key=lambda size: abs(known[size] - memory))[:2])
        slope = (known[last] - known[first]) / (last - first)
        guess = first + (memory - known[first]) / slope if slope > 0 else high
        if len(known) > 8:  # the line through two sizes does not lead there
            guess = (low + high) / 2
        guess = min(max(int(guess), low + 1), high - 1)
        known[guess] = fullest_of(guess)
