"""The registries, which map names to objects. Imports no torch until something is built."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from resireduce.errors import ConfigError, check_share, choose

if TYPE_CHECKING:
    from resireduce.compressors.base import Compressor
    from resireduce.grouping import Grouping
    from resireduce.residuals.base import Residual, Residuals


@dataclass(frozen=True)
class Listed:
    """A compressor in the registry."""

    target: str
    """The class of the compressor, as "module:Class"."""
    selects: bool = False
    """Whether it selects a share of the elements, the density; otherwise it ignores the density."""
    corrects_momentum: bool = False
    """Whether it replaces the optimizer's momentum, which must then be 0."""
    in_rounds: bool = False
    """Whether ranks make its payloads together, in rounds."""
    rounds_merge: bool = False
    """Whether rounds of several tensors can be one; otherwise its payloads cannot be merged."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Values of the class's fields, by field, where they differ from its defaults; the density is not among them."""


COMPRESSORS = {
    "none": Listed("resireduce.compressors.base:NoCompression"),
    "topk": Listed("resireduce.compressors.topk:TopK", selects=True),
    "randomk": Listed("resireduce.compressors.topk:RandomK", selects=True),
    "threshold": Listed("resireduce.compressors.thresholds:Threshold"),
    "dgc": Listed("resireduce.compressors.dgc:DGC", selects=True),
    "dgc-simple": Listed("resireduce.compressors.dgc:DGCSimple", selects=True),
    "dgc-momentum": Listed(
        "resireduce.compressors.dgc:DGCMomentum", selects=True, corrects_momentum=True, options={"half": True}
    ),
    "gaussian": Listed("resireduce.compressors.thresholds:GaussianK", selects=True),
    "redsync": Listed("resireduce.compressors.thresholds:RedSync", selects=True),
    "redsync-trim": Listed("resireduce.compressors.thresholds:RedSyncTrim", selects=True),
    "sidco-exp": Listed("resireduce.compressors.thresholds:SIDCo", selects=True),
    "sidco-gp": Listed("resireduce.compressors.thresholds:SIDCo", selects=True, options={"fit": "pareto"}),
    "sidco-gamma": Listed("resireduce.compressors.thresholds:SIDCo", selects=True, options={"fit": "gamma"}),
    "fp16": Listed("resireduce.compressors.quantized:Fp16"),
    "qsgd": Listed("resireduce.compressors.quantized:QSGD"),
    "qsgd-max": Listed("resireduce.compressors.quantized:QSGD", options={"norm": math.inf, "bucket": None}),
    "adtopk": Listed("resireduce.compressors.adtopk:ADTopK", selects=True),
    "adtopk-interleaved": Listed("resireduce.compressors.adtopk:ADTopKInterleaved", selects=True),
    "adtopk-threshold": Listed("resireduce.compressors.adtopk:ADTopKThreshold", selects=True),
    "demo": Listed("resireduce.contrib.demo:DeMo", selects=True),
    "chunked": Listed("resireduce.compressors.chunked:Chunked", selects=True),
    "topk+packed": Listed("resireduce.compressors.topk:TopK", selects=True, options={"coded": True}),
    "dgc+packed": Listed("resireduce.compressors.dgc:DGC", selects=True, options={"coded": True}),
    "signsgd": Listed("resireduce.compressors.signs:SignSGD"),
    "signum": Listed("resireduce.compressors.signs:Signum", corrects_momentum=True),
    "ef-signsgd": Listed("resireduce.compressors.signs:EFSignSGD"),
    "onebit": Listed("resireduce.compressors.signs:OneBit"),
    "terngrad": Listed("resireduce.compressors.quantized:TernGrad"),
    "natural": Listed("resireduce.compressors.quantized:Natural"),
    "block8": Listed("resireduce.compressors.quantized:Block8"),
    "block4": Listed("resireduce.compressors.quantized:Block4"),
    "fp8": Listed("resireduce.compressors.quantized:Fp8"),
    "block8-two-phase": Listed("resireduce.compressors.two_phase:Block8TwoPhase", in_rounds=True, rounds_merge=True),
    "block4-two-phase": Listed("resireduce.compressors.two_phase:Block4TwoPhase", in_rounds=True, rounds_merge=True),
    "fp8-two-phase": Listed("resireduce.compressors.two_phase:Fp8TwoPhase", in_rounds=True, rounds_merge=True),
    "powersgd": Listed("resireduce.compressors.powersgd:PowerSGD", in_rounds=True),
    "l1-chunks": Listed("resireduce.compressors.chunked:L1Chunks", selects=True, in_rounds=True),
    "ok-topk": Listed("resireduce.contrib.oktopk:OkTopK", selects=True, in_rounds=True),
}
"""All compressors, by name."""

FULL = "resireduce.residuals.base:FullResidual"
NONE = "resireduce.residuals.base:NoResidual"
WEIGHTED = "resireduce.residuals.group:WeightedResidual"
ROWS_COLUMNS = "resireduce.residuals.matrix:RowsColumnsResidual"
PARTIAL = "resireduce.residuals.base:PartialResidual"
DECAYED = "resireduce.residuals.base:DecayedResidual"


@dataclass(frozen=True)
class Scheme:
    """Which residual a tensor has, as "module:Class", or as the class itself, a subclass of `Residual`."""

    grouped: "str | type[Residual]" = FULL
    """The residual of a member of a reusable group."""
    specific: "str | type[Residual]" = FULL
    """The residual of a specific layer."""
    other: "str | type[Residual]" = FULL
    """The residual of any other tensor that is compressed."""


SCHEMES = {
    "baseline": Scheme(),
    "none": Scheme(NONE, NONE, NONE),
    "a": Scheme(grouped="resireduce.residuals.group:AverageResidual"),
    "w": Scheme(grouped=WEIGHTED),
    "member": Scheme(grouped="resireduce.residuals.group:MemberResidual"),
    "d": Scheme(specific="resireduce.residuals.matrix:RowsResidual"),
    "2d": Scheme(specific=ROWS_COLUMNS),
    "w+2d": Scheme(grouped=WEIGHTED, specific=ROWS_COLUMNS),
    "partial": Scheme(PARTIAL, PARTIAL, PARTIAL),
    "decayed": Scheme(DECAYED, DECAYED, DECAYED),
}
"""All schemes, by name."""

GRADIENTS = ("kept", "streamed")
"""Lifetimes of gradients."""
UPDATES = ("in_step", "in_backward")
"""When parameters change."""
HIERARCHIES = ("flat", "node")
"""Who compresses: every rank by itself, or the ranks of a node together."""
TIMED_MERGES = ("mg-wfbp", "omgs", "optimal", "rgmerge-style")
"""Names of rules that need times to merge tensors into messages."""
MERGES = ("none", "one", "hybrid", *TIMED_MERGES)
"""Names of all ways to do so, beside a number of bytes, or lists of names."""
BACKENDS = {
    "horovod": "resireduce.comm.horovod:HorovodCommunicator",
    "local": "resireduce.comm.local:LocalCommunicator",
    "torch": "resireduce.comm.torch:TorchCommunicator",
}
"""All communicators, by name."""
RESIDUAL_DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3", "int8", "int4")
"""Precisions in which residuals can be stored, by name."""


def load(target: "str | type[Residual]") -> Any:
    """Return the object that `target`, "package.module:name", names; a class is returned as it is."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def load_given(field: str, target: str, cure: str = "give module:callable") -> Any:
    """Return what `target` names, which a user has given as `field`. Raises ConfigError if it cannot be loaded."""
    try:
        return load(target)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{field}: {target!r} cannot be loaded: {type(error).__name__}: {error}; {cure}") from error


def build_compressor(name: str, density: float | Callable[[int], float]) -> "Compressor":
    """Return the compressor called `name`, which sends a share `density` of the elements if it selects any.

    density: a share, or a function from the step number, of which the share in step 0 counts.
    Raises ConfigError for a name that is not listed and for a density outside (0, 1].
    """
    listed = COMPRESSORS[choose("compressor", name, COMPRESSORS)]
    share = check_share("density", density(0) if callable(density) else density)
    return replace(load(listed.target).from_density(share), **listed.options)


def find_scheme(scheme: "str | Scheme") -> "Scheme":
    """Return `scheme`, or the one of that name. Raises ConfigError for anything else."""
    return scheme if isinstance(scheme, Scheme) else SCHEMES[choose("scheme", scheme, SCHEMES)]


def build_residual(
    scheme: str | Scheme,
    grouping: "Grouping",
    dtype: str | None = None,
    rank: int = 0,
    options: Mapping[str, object] | None = None,
    device: str | None = None,
) -> "Residuals":
    """Return the residuals of rank `rank` for `scheme`, a name or a Scheme, by the kinds of tensors in `grouping`.

    dtype: storage dtype; None: the gradient's own. device: "cpu" holds it in the host's memory; None: on each
    gradient's device. `options` are arguments of the residuals that the scheme uses, each given to all that know it.
    Raises ConfigError for an unknown name, dtype or option, and for an option's value that cannot be used.
    """
    from resireduce.residuals.base import Residuals, options_of

    kinds = find_scheme(scheme)
    if dtype is not None:
        choose("residual_dtype", dtype, RESIDUAL_DTYPES)
    if device is not None:
        choose("residual_device", device, ("cpu",))
    chosen = [load(kind) for kind in (kinds.grouped, kinds.specific, kinds.other)]
    known = {residual: options_of(residual) for residual in chosen}
    options = options or {}
    for option in options:
        choose(f"options of scheme {scheme!r}", option, set().union(*known.values()))
    common = {"grouping": grouping, "dtype": dtype, "rank": rank, "device": device}
    made = {one: one(**common, **{name: options[name] for name in known[one] if name in options}) for one in known}
    return Residuals(grouping, *(made[residual] for residual in chosen))
