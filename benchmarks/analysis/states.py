"""`python -m benchmarks measure states`: the bytes of the claims' models by `plan`, as a table for the ledger."""

import argparse
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.claims.sound import STATES_FILE, setting_name
from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json, writable
from benchmarks.core.registry import MODELS
from resireduce.scheme import RESIDUAL_DTYPES, SCHEMES, load

DTYPES = (None, *(name for name in RESIDUAL_DTYPES if name != "float64"))
"""Precisions in which the residuals of models in float32 can be stored."""
SETTINGS = tuple(product((name for name in SCHEMES if name != "none"), DTYPES))
"""The settings (scheme, residual_dtype) of all cells that keep residuals and have no options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--output", type=Path, default=STATES_FILE, help="JSON file (default: the committed one)")


def main(args: argparse.Namespace) -> int:
    """Write the table. This takes minutes, as it goes through the largest models tensor by tensor."""
    writable("output", args.output)
    scopes = [scope for claim in load_claims().claims for scope in (claim.paper, claim.small) if scope and scope.roles]
    models = dict.fromkeys(model for scope in scopes for model in scope.models)
    save_json({"made_by": "python -m benchmarks measure states", "models": states(models)}, args.output)
    print(args.output)
    return 0


def states(models: Iterable[str]) -> dict[str, Any]:
    """Return, by model, the bytes of parameters, gradients and optimizer states, and those of residuals by setting."""
    found = {}
    for model in models:
        whole = load("benchmarks.training.plan_of_cell:plan_of")(Cell(model=model, scheme="baseline"))
        dense = {f"{name}_bytes": whole[name] for name in ("parameters", "gradients", "optimizer_states")}
        residuals = {setting_name(*one): residuals_bytes(model, *one) for one in SETTINGS}
        found[model] = {**dense, "residuals_bytes": residuals}
    return found


def residuals_bytes(model: str, scheme: str, residual_dtype: str | None) -> int:
    """Return the planned bytes of residuals: those that are allocated before the first step, without storage."""
    import torch

    from resireduce import distribute

    with torch.device("meta"):
        built = load(MODELS[model])()
    stateless = torch.optim.SGD(built.parameters(), lr=0.1)
    with distribute(built, stateless, scheme, backend="local", residual_dtype=residual_dtype) as optimizer:
        return int(optimizer.feedback.residual.nbytes())
