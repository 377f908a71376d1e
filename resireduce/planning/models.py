"""What is planned: models and optimizers, found by name, built, and brought to tensors without storage."""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as of_torch

from resireduce import private
from resireduce.errors import ConfigError, choose
from resireduce.optim import SecondMomentAdamW
from resireduce.scheme import COMPRESSORS, load_given
from resireduce.settings import Settings


def build_from_config(path: str, /, **values: object) -> nn.Module:
    """Return the model that a Hugging Face config.json, or one in a folder, describes; nothing is downloaded.

    It is the first of the file's "architectures", or without one what transformers' AutoModel makes of its
    "model_type"; on the default device, in the precision that its "dtype" names. `values` take the place of the file's
    own.
    """
    if not os.path.exists(path):  # transformers would ask its hub for a model of that name
        raise ConfigError(f"model: {path!r} is not there; give the config.json of a Hugging Face model, or its folder")
    import transformers

    config, unknown = transformers.AutoConfig.from_pretrained(path, return_unused_kwargs=True, **values)
    for value in unknown:
        choose(f"arg of {path!r}", value, config.to_dict())
    if getattr(config, "quantization_config", None):
        raise ConfigError(f"model: {path!r} has a quantization_config: that is not planned; take it out of the file")
    if not config.architectures:
        return transformers.AutoModel.from_config(config)
    # What AutoModel.from_config calls, too: unlike the class itself, it has the precision that the file names.
    return getattr(transformers, config.architectures[0])._from_config(config)


# --- Models by name: of installed packages, any `module:callable`, or a Hugging Face configuration file ---


CURE = "give a known name, module:callable that makes the model (of what --arg gives), or a Hugging Face config.json"


def offered_models() -> dict[str, str]:
    """Return all models that installed packages offer, as name -> "module:callable"."""
    return {name: target for entry in entry_points(group="resireduce.models") for name, target in entry.load().items()}


def is_config_file(name: str) -> bool:
    """Whether a model of that name is a Hugging Face configuration: a path, or a file *.json."""
    return os.sep in name or name.lower().endswith(".json")


def find_builder(name: str, arguments: Mapping[str, object] | None = None) -> Callable[[], nn.Module]:
    """Return the function that builds model `name`, given `arguments`, with the attribute `inputs` of what was named.

    See CURE for what `name` may be. To a configuration file, arguments are values in place of its own. Raises
    ConfigError if there is no such model.
    """
    if is_config_file(name):
        return partial(build_from_config, name, **(arguments or {}))
    models = {name: name} if ":" in name else offered_models()
    make = load_given("model", models[choose("model", name, models)], CURE)
    if isinstance(make, nn.Module) or not callable(make):
        raise ConfigError(f"model: {name!r} is of type {type(make).__name__}, and cannot be called to make one; {CURE}")
    built = partial(make, **(arguments or {}))
    vars(built)["inputs"] = getattr(make, "inputs", None)
    return built


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Return what `build` makes, or a copy of it with all parameters and buffers on device meta, if any is elsewhere.

    The fullest moment of a step is counted by what is made in it, and code for tensors with values makes other things.
    A script's own model is left as it is. Raises ConfigError for what is no model, and if nothing in it is trained.
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise ConfigError(f"build: an object of type {type(build).__name__}; give a function that returns the model")
    with torch.device("meta"):
        model = build()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"build: it returns an object of type {type(model).__name__}; give one that returns a module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"model: {type(model).__name__} has no trainable parameter; give one that trains")
    made: dict[int, Any] = {}
    for one in (*model.parameters(), *model.buffers()):
        # What wraps other tensors, as quantized weights do, stays where it is.
        if type(one) in (nn.Parameter, Tensor) and one.layout == torch.strided and not one.is_meta:
            made[id(one)] = torch.empty_like(one, device="meta")
            if isinstance(one, nn.Parameter):
                made[id(one)] = nn.Parameter(made[id(one)], one.requires_grad)
                vars(made[id(one)]).update(vars(one))
    return copy.deepcopy(model, made) if made else model


# --- Optimizers by name ---


Maker = Callable[..., torch.optim.Optimizer]
"""Called with a list of parameters, and with arguments by name, it returns an optimizer."""
OPTIMIZERS: dict[str, Maker] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "second-moment-adamw": SecondMomentAdamW,
    "adafactor": torch.optim.Adafactor,
    "rmsprop": torch.optim.RMSprop,
}
FUSED_KERNELS = {getattr(torch.ops.aten, f"_fused_{name}_") for name in ("sgd", "adam", "adamw", "adagrad")}
"""The kernels of torch's optimizers in their fused form, each of which updates all parameters of a device in place."""


def make_optimizer(
    optimizer: str | Maker, parameters: list[nn.Parameter], arguments: Mapping[str, object], given: Settings
) -> torch.optim.Optimizer:
    """Return the `optimizer` of `parameters`, ready for training as `given`. Raises ConfigError for another name."""
    listed = COMPRESSORS.get(given.compressor) if isinstance(given.compressor, str) else None
    if optimizer == "sgd" and listed is not None and listed.corrects_momentum:
        arguments = {"momentum": 0.0, **arguments}  # the compressor has it
    if isinstance(optimizer, str) and ":" in optimizer:
        optimizer = load_given("optimizer", optimizer)
    make: Maker = OPTIMIZERS[choose("optimizer", optimizer, OPTIMIZERS)] if isinstance(optimizer, str) else optimizer
    made = make(parameters, **arguments)
    if callable(train := getattr(made, "train", None)):  # schedule-free ones refuse to step before
        train()
    return made


# --- Steps of optimizers on tensors without storage ---


@contextmanager
def without_storage(on_gpu: bool = False) -> Iterator[None]:
    """Within it optimizers take steps on tensors without storage: what they read of values is 1 everywhere.

    Torch's optimizers may have their fused form: they make the states that they make on other devices, and their
    kernels, which hold nothing beside them, do nothing.

    on_gpu: whether they take the form that they choose by themselves on a GPU, for all tensors of a step together.
    """
    names = [f"_get_{form}_kernels_supported_devices" for form in ("fused", "foreach")[: 1 + on_gpu]]
    supported = {name: getattr(of_torch, name) for name in names}
    for name, kept in supported.items():
        setattr(of_torch, name, lambda kept=kept: [*kept(), "meta"])
    try:
        with Ones():
            yield
    finally:
        for name, kept in supported.items():
            setattr(of_torch, name, kept)


class Ones(private.DispatchMode):
    """Answers 1 for a value that is read from a tensor without storage (`item`), and passes over fused optimizers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in FUSED_KERNELS and args[0][0].is_meta:
            return None
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))
