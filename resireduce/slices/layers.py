"""Layers whose weight's gradient is made row by row: forward and backward of nn.Linear, nn.Embedding and nn.Conv2d, and
of transformers' Conv1D, a linear layer whose weight has a row for each input.

They compute the same as torch's own layers. A weight's gradient goes to the object that takes it in slices, if there is
one, and otherwise to autograd.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from resireduce.slices.row_gradients import ConvolutionRows, EmbeddingRows, LinearRows, RowGradient
from resireduce.slices.takers import TAKERS, Taker
from resireduce.slices.torchs_own import called_layer, is_torchs_own, other_option


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, taker: Taker) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.taker = taker
        taker.uses.add(ctx)
        return functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        to_inputs = grad.mm(weight) if needs[0] else None
        to_bias = grad.sum(0) if needs[2] else None
        taken = ctx.taker.took(lambda: LinearRows(inputs, grad))
        return to_inputs, None if taken else grad.t().mm(inputs), to_bias, None


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor, taker: Taker) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.taker = taker
        taker.uses.add(ctx)
        return torch.addmm(bias, inputs, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        to_inputs = grad.mm(weight.t()) if needs[0] else None
        to_bias = grad.sum(0) if needs[2] else None
        taken = ctx.taker.took(lambda: LinearRows(grad, inputs))
        return to_inputs, None if taken else inputs.t().mm(grad), to_bias, None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, padding: int, taker: Taker) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.taker, ctx.padding, ctx.count = taker, padding, len(weight)
        taker.uses.add(ctx)
        return functional.embedding(indices, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = ctx.saved_tensors

        def rows() -> RowGradient:
            wide = indices.long()
            return EmbeddingRows(wide.masked_fill(wide == ctx.padding, -1), grad, torch.empty_like(wide))

        if ctx.taker.took(rows):
            return None, None, None, None
        whole = torch.ops.aten.embedding_dense_backward(grad, indices, ctx.count, ctx.padding, False)
        return None, whole, None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, form: Any, taker: Taker) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.form, ctx.taker = form, taker
        taker.uses.add(ctx)
        return functional.conv2d(inputs, weight, bias, *form)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, weight), needs = ctx.saved_tensors, ctx.needs_input_grad
        taken = ctx.taker.took(lambda: ConvolutionRows(inputs, grad, weight, *ctx.form))
        to_inputs, to_weight, _ = torch.ops.aten.convolution_backward(
            grad, inputs, weight, None, *ctx.form, False, [0, 0], 1, [needs[0], not taken, False]
        )
        return to_inputs, to_weight, grad.sum((0, 2, 3)) if needs[2] else None, None, None


def forms() -> dict[type[nn.Module], Callable[..., Tensor]]:
    """Return the forward that makes gradients row by row, by class; with transformers' Conv1D if it is imported."""
    utilities = sys.modules.get("transformers.pytorch_utils")
    return _FORWARD if utilities is None else {**_FORWARD, utilities.Conv1D: _transposed}


def _taker_of(layer: nn.Module, inputs: Tensor) -> tuple[Any, Taker | None]:
    """Return the parameter `weight` of `layer` and its Taker; None for that, unless plain autograd records this call of
    torch's own layer with `inputs`.

    A parametrization may have replaced the parameter, and an attribute may hide it. Reading `layer.weight` would then
    compute it once more, which spectral_norm, for example, counts.
    """
    weight = None if "weight" in vars(layer) else layer._parameters.get("weight")
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not torch.is_grad_enabled():
        return weight, None
    if torch._C._is_any_autocast_enabled() or torch._C._are_functorch_transforms_active():
        return weight, None
    if forward_ad._current_level >= 0 or type(weight) is not nn.Parameter or type(inputs) is not Tensor:
        return weight, None
    taker: Taker | None = TAKERS.get(weight)
    if taker is None or not weight.requires_grad or not is_torchs_own(layer) or other_option(layer):
        return weight, None
    return weight, taker


def _linear(self: nn.Linear, input: Tensor) -> Tensor:
    self = called_layer(self)
    weight, taker = _taker_of(self, input)
    if taker is None or input.dim() < 2 or input.dtype != weight.dtype:
        return type(self).forward(self, input)
    flat = _Linear.apply(input.reshape(-1, input.shape[-1]), weight, self.bias, taker)
    return flat if input.dim() == 2 else flat.view(*input.shape[:-1], len(weight))


def _transposed(self: Any, x: Tensor) -> Tensor:
    self = called_layer(self)
    weight, taker = _taker_of(self, x)
    if taker is None or x.dtype != weight.dtype:
        return cast(Tensor, type(self).forward(self, x))
    flat = _Transposed.apply(x.reshape(-1, x.shape[-1]), weight, self.bias, taker)
    return cast(Tensor, flat.view(*x.shape[:-1], weight.shape[1]))


def _embedding(self: nn.Embedding, input: Tensor) -> Tensor:
    self = called_layer(self)
    weight, taker = _taker_of(self, input)
    if taker is None or not input.numel():
        return type(self).forward(self, input)
    padding = -1 if self.padding_idx is None else self.padding_idx
    return _Embedding.apply(input.reshape(-1), weight, padding, taker).view(*input.shape, -1)


def _convolution(self: nn.Conv2d, input: Tensor) -> Tensor:
    self = called_layer(self)
    weight, taker = _taker_of(self, input)
    if taker is None or input.dim() != 4 or input.dtype != weight.dtype:
        return type(self).forward(self, input)
    return _Convolution.apply(input, weight, self.bias, (self.stride, self.padding, self.dilation), taker)


_FORWARD: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.Conv2d: _convolution,
}
for _one in (*_FORWARD.values(), _transposed):  # so copy and pickle, which ask for a name, find the module's own
    _one.__name__ = "forward"
