"""Residuals in the host's memory: the same training, with none of them on the device between two steps."""

from itertools import cycle

import pytest
import torch

from resireduce.comm.local import LocalCommunicator
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes, measure_states
from resireduce.scheme import GRADIENTS, SCHEMES
from tests.worlds import Net, loss_of, residuals, same, seeded, train, train_world

DTYPES = [None, "bfloat16", "int4"]


@pytest.mark.parametrize(
    ("scheme", "residual_dtype", "gradients"), zip(SCHEMES, cycle(DTYPES), cycle(GRADIENTS), strict=False)
)
def test_where_residuals_are_held_changes_nothing(scheme: str, residual_dtype: str | None, gradients: str) -> None:
    options = {"scheme": scheme, "gradients": gradients, "residual_dtype": residual_dtype, "steps": 4}
    near, _ = train_world(2, seeded(Net), **options)[0]
    far, optimizer = train_world(2, seeded(Net), residual_device="cpu", **options)[1]
    assert same(near, far) and not same(far, seeded(Net))
    held = residuals(optimizer)
    indices = sum(tensor.nbytes for name, tensor in held.items() if name.endswith((".rows", ".columns")))
    host = sum(tensor.nbytes for tensor in held.values()) - indices
    assert measure_states(optimizer).residuals == indices < 2000, "only numbers of rows and columns stay"
    planned = plan(Net, scheme=scheme, gradients=gradients, residual_dtype=residual_dtype, residual_device="cpu")
    assert (planned["host_residuals"], planned["residuals"]) == (host, indices)
    assert planned["total"] == planned["parameters"] + planned["gradients"] + indices + planned["optimizer_states"]


def test_what_was_fetched_for_a_step_goes_with_it() -> None:
    model, optimizer = train(LocalCommunicator(), seeded(Net), scheme="baseline", residual_device="cpu", steps=2)
    optimizer.zero_grad()
    largest = max(parameter.nbytes for parameter in model.parameters())
    with LiveBytes(lambda tensor: tensor.numel() >= 10_000) as alive:
        loss_of(model, torch.Generator()).backward()
        optimizer.step()
    assert alive.current_bytes == 0 and largest <= alive.peak_bytes <= 5 * largest, "what is used, and what comes next"
