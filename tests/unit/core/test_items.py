"""Every tensor of the model states is listed, and the lists add up to the totals, to the byte."""

import copy
import json
from functools import cache

import pytest
import torch
from torch import nn

import resireduce
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import SMALL, WORKLOADS
from benchmarks.training.optimizers import make_optimizer
from resireduce.__main__ import main
from resireduce.comm.local import LocalCommunicator, PretendCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.plan import plan
from resireduce.planning import STATES, Item, sums
from resireduce.planning.memory import itemise_states, measure_states
from resireduce.planning.models import without_storage
from resireduce.scheme import COMPRESSORS, SCHEMES, load
from tests.worlds import Net, seeded, sgd_for, train

PARTS = {
    "baseline": {"full"},
    "none": set(),
    "a": {"full", "average"},
    "w": {"full", "weighted"},
    "member": {"full", "member"},
    "d": {"full", "rows", "rows.rows"},
    "2d": {"full", "rows_columns", "rows_columns.rows", "rows_columns.columns"},
    "w+2d": {"full", "weighted", "rows_columns", "rows_columns.rows", "rows_columns.columns"},
    "partial": {"partial"},
    "decayed": {"full"},
}
"""What residuals of each scheme are made of, stored as the gradients are."""
SMALL_MODELS = [workload.model for workload in SMALL]


def independent(optimizer: DistributedOptimizer) -> dict[str, int]:
    """The four totals by other ways than the list: from the optimizer, the model and the residual themselves."""
    parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}.values()
    states = [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)
    ]
    return {
        "parameters": sum(p.numel() * p.element_size() for p in parameters),
        "gradients": sum(p.grad.numel() * p.grad.element_size() for p in parameters if p.grad is not None),
        "residuals": optimizer.feedback.residual.nbytes()
        + sum(tensor.nbytes for tensor in optimizer.feedback.states.tensors().values()),
        "optimizer_states": sum(t.numel() * t.element_size() for t in states)
        + sum(t.nbytes for t in optimizer.feedback.velocities.tensors().values()),
    }


@cache
def on_meta(model: str) -> nn.Module:
    with torch.device("meta"):
        built: nn.Module = load(MODELS[model])()
    return built


def small(model: str, **options: object) -> tuple[nn.Module, DistributedOptimizer]:
    """A step of a small model with its recipe's optimizer, on tensors without storage."""
    built = copy.deepcopy(on_meta(model))
    corrects = COMPRESSORS[str(options.get("compressor", "topk"))].corrects_momentum
    wrapped = make_optimizer(WORKLOADS[model], built, corrects)
    optimizer = resireduce.distribute(built, wrapped, backend=PretendCommunicator(1), **options)  # type: ignore[arg-type]
    with without_storage():
        for parameter in reversed(list(built.parameters())):
            parameter.sum().backward()
        optimizer.step()
    return built, optimizer


def check(model: nn.Module, optimizer: DistributedOptimizer) -> list[Item]:
    items = itemise_states(optimizer, model)
    assert sums(items) == independent(optimizer)
    assert {state: getattr(measure_states(optimizer), state) for state in STATES} == sums(items)
    names = [name for name, _ in model.named_parameters()]
    assert {item.name for item in items} == set(names), "a tensor has the name of its parameter, and none is missing"
    assert [item.name for item in items if item.state == "parameters"].count(names[0]) == 1
    assert len({(item.state, item.name, item.part) for item in items}) == len(items)
    return items


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", SMALL_MODELS)
def test_tensors_of_small_models_add_up(model: str, scheme: str) -> None:
    items = check(*small(model, scheme=scheme, gradients="kept"))
    assert {item.part for item in items if item.state == "residuals"} <= PARTS[scheme]


@pytest.mark.parametrize(("scheme", "dtype"), [(scheme, "int4") for scheme in SCHEMES] + [("w+2d", "int8")])
def test_tensors_stored_in_any_precision_add_up_in_real_memory(scheme: str, dtype: str) -> None:
    model, optimizer = train(
        LocalCommunicator(), seeded(Net), steps=2, scheme=scheme, residual_dtype=dtype, gradients="streamed"
    )
    items = check(model, optimizer)
    indices = {part for part in PARTS[scheme] if "." in part}
    stored = {f"{part}.{end}" for part in PARTS[scheme] - indices for end in ("codes", "scales")}
    found = {item.part for item in items if item.state == "residuals"}
    assert stored | indices >= found >= (stored if scheme == "baseline" else stored - {"full.codes", "full.scales"})
    planned = plan(Net, scheme=scheme, residual_dtype=dtype, density=0.05, world_size=1, itemised=True)["items"]
    assert set(planned) == set(items), "predicted, tensor by tensor"


def test_residuals_in_half_precision_are_listed_as_such() -> None:
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=2, scheme="w+2d", residual_dtype="bfloat16")
    kinds = {(item.part, item.dtype) for item in check(model, optimizer) if item.state == "residuals"}
    assert kinds == {("weighted", "bfloat16"), ("rows_columns", "bfloat16")} | {
        (f"rows_columns.{which}", "int32") for which in ("rows", "columns")
    }


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_what_a_compressor_keeps_is_listed(compressor: str) -> None:
    options = {"compressor": compressor, "scheme": "none" if compressor == "none" else "w", "gradients": "kept"}
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=1, **options)  # type: ignore[arg-type]
    kept = "momentum_buffer" if sgd_for(options) == "momentum" else "velocity"
    assert {item.part for item in check(model, optimizer) if item.state == "optimizer_states"} == {kept}


def test_tied_and_frozen_parameters_are_listed_once_and_by_name() -> None:
    model = seeded(lambda: Net(tied=True))
    model.norm.requires_grad_(False)
    optimizer = resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), backend="local")
    items = itemise_states(optimizer, model)
    assert [item.name for item in items if item.shape == (600, 72) and item.state == "parameters"] == ["first.weight"]
    assert {"norm.weight", "norm.bias"} <= {item.name for item in items if item.state == "parameters"}
    assert sum(item.name.startswith("untrained parameter ") for item in itemise_states(optimizer)) == 2
    assert sums(items) == independent(optimizer)


def test_residuals_in_the_hosts_memory_are_not_listed() -> None:
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=1, scheme="2d", residual_device="cpu")
    parts = {item.part for item in itemise_states(optimizer, model) if item.state == "residuals"}
    assert parts == {"rows_columns.rows", "rows_columns.columns"}


def test_a_plan_lists_tensors_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--model", "tests.worlds:Net", "--scheme", "w+2d", "--items"]
    assert main([*arguments, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    for state in STATES:
        assert sum(item["bytes"] for item in planned["items"] if item["state"] == state) == planned[state]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert len([line for line in text.splitlines() if " bytes  " in line]) == len(planned["items"])
    assert ", float32, shared by " in text and "(rows_columns.rows), " in text
