"""The model and the optimizer given to `resireduce.distribute`, checked before anything is changed."""

from inspect import Parameter, signature

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from resireduce.attach import is_distributed
from resireduce.errors import ConfigError


def check_types(model: object, optimizer: object) -> None:
    """Raise ConfigError unless `model` and `optimizer` are torch's, and nothing else averages the gradients."""
    for field, value, kind in (("model", model, nn.Module), ("optimizer", optimizer, torch.optim.Optimizer)):
        if not isinstance(value, kind):
            what = f"class {value.__name__}" if isinstance(value, type) else f"object of type {type(value).__name__}"
            raise ConfigError(f"{field}: the {what} is not allowed; give an object of torch's {kind.__name__}")
    assert isinstance(model, nn.Module)
    _check_made(model, optimizer)
    if isinstance(model, DistributedDataParallel):
        raise ConfigError(
            "model: a DistributedDataParallel is not allowed, since it averages gradients too; give the model within, "
            "and train that without the wrapper, or use resireduce.compress_ddp(...)"
        )
    sharded = next((name for name, p in model.named_parameters() if hasattr(p, "placements")), None)
    wrapper = next((m for m in model.modules() if type(m).__name__ == "FullyShardedDataParallel"), None)
    if sharded is not None or wrapper is not None:
        what = "the model" if sharded is None else repr(sharded)
        raise ConfigError(
            f"model: {what} is sharded (FSDP or DTensor), and gradients of shards are reduced by that; give a model "
            "whose parameters are whole on every rank, or use resireduce.compress_fsdp(...)"
        )


def _check_made(model: nn.Module, optimizer: object) -> None:
    """Raise ConfigError unless autograd can train `model`, and `optimizer` has what torch's constructor gives it."""
    name = type(optimizer).__name__
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise ConfigError(
            f"optimizer: {name} is not allowed as it is, made without the constructor of torch.optim.Optimizer: call "
            f"super().__init__(params, defaults) in {name}.__init__, or give the optimizer that it wraps"
        )
    if name == "ZeroRedundancyOptimizer":
        raise ConfigError(
            f"optimizer: {name} is not allowed: each rank has the state of other parameters, which are updated there "
            "alone; give an optimizer of the class within, over all parameters"
        )
    if hasattr(optimizer, "_allreduce_grad_async"):  # Horovod's, of either kind
        raise ConfigError(
            "optimizer: horovod.torch.DistributedOptimizer is not allowed, since it averages gradients too, while the "
            "backward pass goes on; leave it out, and give the optimizer that it was made of"
        )
    if torch.is_inference_mode_enabled():
        raise ConfigError(
            "model: distribute() is not allowed within torch.inference_mode(), where nothing can be prepared for "
            "autograd: call it outside (torch.no_grad() is allowed)"
        )
    inferred = next((key for key, one in model.named_parameters() if not is_lazy(one) and one.is_inference()), None)
    if inferred is not None:
        raise ConfigError(
            f"model: {inferred!r} is not allowed, made within torch.inference_mode(), so that autograd cannot train "
            "it: build or load the model outside, or clone the parameter there"
        )


def optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
    """Return the trainable parameters that `optimizer` holds, by name, in the order of `model`.

    Raises ConfigError if it holds others, or none, or needs several gradients per step.
    """
    closure = signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} computes gradients several times a step, which are under way after "
            "the first; use one that takes a step from one gradient (SGD, Adam, ...)"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    parameters = {name: p for name, p in model.named_parameters() if id(p) in held}
    if len(parameters) < len(held):
        raise ConfigError(
            "optimizer: it holds parameters that are not the model's; give distribute() the whole model, and make the "
            "optimizer after whatever replaces parameters: a copy, a new head, load_state_dict(assign=True), to_empty()"
        )
    twice = next((name for name, p in parameters.items() if is_distributed(p)), None)
    if twice is not None:
        raise ConfigError(
            f"model: {twice!r} is distributed already; use the optimizer of that call, or close() it before"
        )
    if not parameters:
        raise ConfigError(
            "optimizer: it holds no trainable parameter of the model; give it those to train, and set their "
            "requires_grad before distribute()"
        )
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse and id(layer.weight) in held:
            raise ConfigError(
                f"model: the gradient of {f'{name}.weight'.lstrip('.')!r} is sparse: make its layer with sparse=False"
            )
    return parameters
