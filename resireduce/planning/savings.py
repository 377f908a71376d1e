"""The bytes of each scheme's residuals for a model, counted by the residuals themselves."""

from collections.abc import Mapping

from torch import Tensor

from resireduce.grouping import Grouping
from resireduce.scheme import SCHEMES, build_residual


def residual_bytes(parameters: Mapping[str, Tensor], grouping: Grouping) -> dict[str, int]:
    """Return the bytes of all residuals of `parameters` (by name) with each scheme, default options, in the parameters'
    dtype.

    grouping: of those tensors. Residuals are registered for tensors without storage, so that nothing is allocated.
    """
    held = {}
    for scheme in SCHEMES:
        residual = build_residual(scheme, grouping)
        for name, parameter in parameters.items():
            residual.register(name, parameter.to("meta"))
        held[scheme] = residual.nbytes()
    return held


def saved_bytes(held: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes that each scheme saves against `baseline`, of those `held` with each; `baseline` is left out."""
    return {scheme: held["baseline"] - nbytes for scheme, nbytes in held.items() if scheme != "baseline"}
