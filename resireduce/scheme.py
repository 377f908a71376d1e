"""Names to objects: the one place that knows the registries. Imports no torch until something is built."""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from resireduce.errors import ConfigError, choose

if TYPE_CHECKING:
    from resireduce.compressors.base import Compressor
    from resireduce.grouping import Grouping
    from resireduce.residuals.base import Residual

COMPRESSORS = {
    "none": "resireduce.compressors.none:NoCompression",
    "topk": "resireduce.compressors.topk:TopK",
}

RESIDUALS = {
    "none": "resireduce.residuals.none:NoResidual",
    "full": "resireduce.residuals.full:FullResidual",
    "weighted": "resireduce.residuals.weighted:WeightedResidual",
    "rows_columns": "resireduce.residuals.rows_columns:RowsColumnsResidual",
}


@dataclass(frozen=True)
class Scheme:
    """Which residual (a name in RESIDUALS) a tensor has: member of a reusable group, specific layer, any other."""

    grouped: str
    specific: str
    other: str


SCHEMES = {
    "baseline": Scheme(grouped="full", specific="full", other="full"),
    "none": Scheme(grouped="none", specific="none", other="none"),
    "w": Scheme(grouped="weighted", specific="full", other="full"),
    "2d": Scheme(grouped="full", specific="rows_columns", other="full"),
    "w+2d": Scheme(grouped="weighted", specific="rows_columns", other="full"),
}

GRADIENTS = ("kept", "streamed")
BACKENDS = ("local", "torch")
RESIDUAL_DTYPES = ("float64", "float32", "bfloat16", "float16")


def load(target: str) -> Any:
    """The object that "package.module:name" names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def check_density(density: object) -> float:
    """`density` as a float in (0, 1], or a ConfigError."""
    number = isinstance(density, (int, float)) and not isinstance(density, bool)
    if not number or not math.isfinite(float(density)) or not 0 < float(density) <= 1:  # type: ignore[arg-type]
        raise ConfigError(f"density: {density!r} is not allowed; give the share of elements sent, 0 < density <= 1")
    return float(density)  # type: ignore[arg-type]


def build_compressor(name: str, density: float) -> "Compressor":
    """The compressor called `name`, sending a share `density` of the elements where it selects any."""
    kind = load(COMPRESSORS[choose("compressor", name, COMPRESSORS)])
    return kind.from_density(check_density(density))


def build_residual(name: str, grouping: "Grouping", dtype: str | None = None) -> "Residual":
    """The residual of scheme `name`, routed by `grouping`; stored in `dtype` (None: the gradient's own)."""
    from resireduce.residuals.routed import RoutedResidual

    scheme = SCHEMES[choose("scheme", name, SCHEMES)]
    if dtype is not None:
        choose("residual_dtype", dtype, RESIDUAL_DTYPES)
    kinds = {scheme.grouped, scheme.specific, scheme.other}
    residuals = {kind: load(RESIDUALS[kind])(grouping=grouping, dtype=dtype) for kind in sorted(kinds)}
    return RoutedResidual(
        routes=dict.fromkeys(grouping.grouped, residuals[scheme.grouped])
        | dict.fromkeys(grouping.specific, residuals[scheme.specific]),
        other=residuals[scheme.other],
    )
