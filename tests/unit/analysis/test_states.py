"""The committed table of what models hold, against `plan`: the ledger checks records by it without torch."""

from functools import partial

import pytest
import torch

from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.claims.sound import load_planned, setting_name
from benchmarks.analysis.states import states
from benchmarks.core.cell import Cell
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import SMALL, WORKLOADS
from benchmarks.training.plan_of_cell import plan_of
from resireduce.plan import plan
from resireduce.scheme import load

AT_HAND = [workload.model for workload in SMALL]


@pytest.mark.parametrize("model", AT_HAND)
def test_small_models_hold_what_plan_says(model: str) -> None:
    planned = load_planned()[model]
    assert states([model])[model] == vars(planned)
    for scheme, dtype in (("w+2d", None), ("d", "bfloat16"), ("partial", "int4")):
        cell = Cell(model=model, scheme=scheme, residual_dtype=dtype)
        assert plan_of(cell)["residuals"] == planned.residuals_bytes[setting_name(scheme, dtype)]


@pytest.mark.parametrize("model", [model for model in load_planned() if model not in AT_HAND])
def test_full_models_hold_what_plan_says(model: str) -> None:
    """Without states of the optimizer, which take a plan of Adam half a minute: those follow from the count."""
    planned = load_planned()[model]
    stateless = plan(
        load(MODELS[model]), optimizer=partial(torch.optim.SGD, lr=0.1), scheme="w+2d", gradients="kept", world_size=2
    )
    assert stateless["parameters"] == stateless["gradients"] == planned.parameters_bytes
    assert stateless["residuals"] == planned.residuals_bytes["w+2d"]
    counts = load_claims().counts[model]
    assert planned.residuals_bytes["baseline"] == 4 * counts.residuals
    with torch.device("meta"):
        tensors = sum(1 for _ in load(MODELS[model])().parameters())
    steps = 4 * tensors if WORKLOADS[model].optimizer == "adamw" else 0
    assert planned.optimizer_states_bytes == counts.copies * planned.parameters_bytes + steps
