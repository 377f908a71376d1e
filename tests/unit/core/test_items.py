"""Every tensor of the model states is listed, and the lists add up to the totals, to the byte."""

import copy
import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import resireduce
from benchmarks.core.cell import Cell
from benchmarks.core.outcome import Outcome
from benchmarks.core.rank_memory import pack, unpack
from benchmarks.core.record import CellResult, RecordError
from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import SMALL, WORKLOADS
from benchmarks.launching.outcomes import to_result
from benchmarks.training.measure.tracker import measure_memory
from benchmarks.training.optimizers import make_optimizer
from resireduce.__main__ import main
from resireduce.comm.local import LocalCommunicator, PretendCommunicator
from resireduce.core.optimizer import DistributedOptimizer
from resireduce.plan import plan
from resireduce.planning.item import STATES, Item, sums
from resireduce.planning.memory import itemise_states, measure_states
from resireduce.planning.optimizers import without_storage
from resireduce.scheme import COMPRESSORS, SCHEMES, load
from tests.records import make_result
from tests.worlds import Net, loss_of, seeded, sgd_for, train

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
    momentum = optimizer.feedback.momentum
    return {
        "parameters": sum(p.numel() * p.element_size() for p in parameters),
        "gradients": sum(p.grad.numel() * p.grad.element_size() for p in parameters if p.grad is not None),
        "residuals": optimizer.feedback.residual.nbytes()
        + sum(tensor.nbytes for tensor in optimizer.feedback.states.tensors().values()),
        "optimizer_states": sum(t.numel() * t.element_size() for t in states)
        + sum(t.nbytes for t in ({} if momentum is None else momentum.tensors()).values()),
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
    with without_storage(wrapped, "the recipe's"):
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
    assert unpack(pack(items)) != [] and sums(unpack(pack(items))) == sums(items)


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


# --- records ---


@cache
def net_items(scheme: str = "w+2d", gradients: str = "kept") -> tuple[Item, ...]:
    return tuple(plan(Net, scheme=scheme, gradients=gradients, itemised=True)["items"])


def record_of(scheme: str = "w+2d", gradients: str = "kept", **cell: object) -> CellResult:
    """A record whose bytes are those of Net, whatever model the cell names."""
    plain = make_result(Cell(model="gpt2-bytes", scheme=scheme, gradients=gradients, **cell)).to_dict()  # type: ignore[arg-type]
    totals = sums(list(net_items(scheme, gradients)))
    plain |= {f"{state}_bytes": held for state, held in totals.items()}
    plain |= {"total_bytes": sum(totals.values()), "items": {"rank": 1, **pack(net_items(scheme, gradients))}}
    return CellResult.from_dict(plain)


@pytest.mark.parametrize(("scheme", "gradients"), [("w+2d", "kept"), ("baseline", "streamed"), ("none", "kept")])
def test_items_come_back_from_a_record(scheme: str, gradients: str) -> None:
    result = CellResult.from_dict(json.loads(json.dumps(record_of(scheme, gradients).to_dict())))
    assert set(unpack(result.items)) == set(net_items(scheme, gradients))


def damaged(key: str, value: object) -> dict[str, object]:
    packed = record_of().items
    return copy.deepcopy(packed) | {key: value}


def with_kind(**changes: object) -> dict[str, object]:
    packed = copy.deepcopy(record_of().items)
    packed["kinds"][0] |= changes
    return packed


BAD_ITEMS = [
    (lambda: {"rank": 0}, "^items: damaged: KeyError: 'names'"),
    (lambda: damaged("names", ["a"]), "^items: 1 names and [0-9]+ shapes"),
    (lambda: damaged("kinds", []), "^items: the parameters add up to 0 bytes, not to parameters_bytes, [0-9]+"),
    (lambda: with_kind(state="activations"), "^items: activations float32: not a state; allowed: parameters, "),
    (lambda: with_kind(bytes=1), "^items: parameters float32: its tensors add up to [0-9]+ bytes, not to 1$"),
    (lambda: with_kind(of=[0, 0]), "^items: parameters float32: a tensor is there twice"),
]


@pytest.mark.parametrize(("items", "message"), BAD_ITEMS)
def test_items_that_do_not_add_up_are_refused_in_one_line(items: object, message: str) -> None:
    plain = record_of().to_dict() | {"items": items()}  # type: ignore[operator]
    with pytest.raises(RecordError, match=message) as error:
        CellResult.from_dict(plain)
    assert "\n" not in str(error.value)


def test_a_saving_that_its_tensors_do_not_have_is_refused() -> None:
    plain = record_of().to_dict()
    plain |= {"residuals_bytes": plain["residuals_bytes"] - 4, "total_bytes": plain["total_bytes"] - 4}
    with pytest.raises(RecordError, match="items: the residuals add up to"):
        CellResult.from_dict(plain)


def test_the_record_has_the_tensors_of_the_rank_that_holds_most() -> None:
    model, optimizer = train(LocalCommunicator(), seeded(Net), steps=1, scheme="w+2d", gradients="kept")
    items = itemise_states(optimizer, model)
    memory = measure_memory(optimizer, lambda: loss_of(model, torch.Generator()), model)
    assert memory["residuals_bytes"] == sums(items)["residuals"] and set(unpack(memory["items"])) == set(items)
    common = {"ladder": [], "phase_seconds": {}, "sampling": None, "difference": None}
    less = common | dict.fromkeys(memory, 0) | {"items": {}}
    result = make_result(cell := Cell(model="gpt2-bytes", scheme="w+2d"))
    names = ("metric_name", "higher_is_better", "metric", "steps", "steps_per_second", "step_seconds")
    outcome = Outcome(status="ok", data_hash="", threads=1, **{name: getattr(result, name) for name in names})
    found = to_result(cell, [replace(outcome, memory=less), replace(outcome, memory=common | memory)], 1.0, None)
    assert found.items == {"rank": 1, **pack(items)}
    assert not any("items" in rank for rank in found.per_rank), "one rank's are enough"
