"""Gradients that are made some rows at a time, twice, where the residual cannot hold their sum with it."""

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.blocks import row_slices
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalCommunicator, LocalWorld
from resireduce.compressors.topk import TopK
from resireduce.error_feedback import ErrorFeedback
from resireduce.errors import NonFiniteGradient
from resireduce.grouping import Grouping
from resireduce.kernels.largest import LargestOfParts, largest_magnitudes
from resireduce.kernels.native import SWITCH, library
from resireduce.payload import Payload
from resireduce.plan import plan
from resireduce.planning.memory import LiveBytes
from resireduce.residuals.average import AverageResidual
from resireduce.residuals.base import Residual
from resireduce.residuals.full import FullResidual
from resireduce.residuals.moving import Moving
from resireduce.residuals.rows_columns import RowsColumnsResidual
from resireduce.residuals.weighted import WeightedResidual
from resireduce.scheme import NONE, ROWS_COLUMNS, Scheme, build_residual
from tests.worlds import distributed, same, seeded, take_steps

PRECISIONS = ["bfloat16", "float8_e4m3", "int8", "int4"]


@pytest.mark.parametrize("switch", ["0", "1"])
@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "rising"])
def test_what_is_selected_from_parts_is_what_is_selected_from_the_whole(
    monkeypatch: pytest.MonkeyPatch, kind: str, switch: str
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    library.cache_clear()
    drawn = torch.randn(30_011, generator=torch.Generator().manual_seed(3))
    flat = {"normal": drawn, "ties": drawn.sign(), "zeros": drawn * 0, "rising": torch.arange(30_011.0)}[kind]
    for k in (1, 300, 20_000, 30_010):
        for size in (64, 7000, 40_000):
            found = LargestOfParts(flat, k)
            for start in reversed(range(0, len(flat), size)):
                found.add(flat[start : start + size], start)
            assert torch.equal(found.indices(), largest_magnitudes(flat, k)), (k, size)
    library.cache_clear()


def pipeline(precision: str | None, scheme: str = "baseline", half: bool = False) -> ErrorFeedback:
    residual = build_residual(scheme, Grouping(specific=("w",)), precision, rank=1)
    return ErrorFeedback(TopK(0.05, half=half), residual, LocalCommunicator(), frozenset())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("scheme", "precision"),
    [
        *(("baseline", one) for one in PRECISIONS),
        ("none", None),
        ("decayed", "int8"),
        *((one, precision) for one in ("d", "2d") for precision in (None, "bfloat16")),
    ],
)
@pytest.mark.parametrize("shape", [(130, 33), (40, 3, 5, 7), (517, 64)])
def test_payload_and_residual_are_those_of_the_whole_gradient(
    shape: tuple[int, ...], scheme: str, precision: str | None, half: bool
) -> None:
    whole, cut = (pipeline(precision, scheme, half) for _ in range(2))
    like, generator = torch.empty(shape), torch.Generator().manual_seed(0)
    for one in (whole, cut):
        one.register("w", like)
    assert cut.takes_parts("w", like)
    for step in range(3):
        grad = torch.randn(shape, generator=generator)
        expected = whole.compress(grad.clone(), "w", step)
        found = cut.compress_parts(
            lambda part, g=grad: g[part].clone(), row_slices(like.shape, 4, 4096), like, "w", step
        )
        assert isinstance(expected, Payload) and isinstance(found, Payload)
        assert torch.equal(found.buffer, expected.buffer) and found.layout == expected.layout
        held, other = whole.residual.tensors(), cut.residual.tensors()
        assert all(torch.equal(other[key].view(torch.uint8), value.view(torch.uint8)) for key, value in held.items())


@pytest.mark.parametrize(("scheme", "precision"), [("baseline", "int8"), ("d", None), ("2d", None)])
def test_a_part_that_is_not_finite_leaves_the_residual_as_it_was(scheme: str, precision: str | None) -> None:
    feedback, like = pipeline(precision, scheme), torch.empty(200, 64)
    feedback.register("w", like)
    cut = partial(feedback.compress_parts, rows=row_slices(like.shape, 4, 4096), like=like, name="w")
    cut(lambda part: torch.ones(200, 64)[part].clone(), step=0)
    before = {key: tensor.clone() for key, tensor in feedback.residual.tensors().items()}
    with pytest.raises(NonFiniteGradient, match="its residual is unchanged"):
        cut(lambda part: torch.full((200, 64), torch.nan if part.start == 0 else 1.0)[part], step=1)
    assert all(torch.equal(tensor, before[key]) for key, tensor in feedback.residual.tensors().items())


class Layers(nn.Module):
    """A layer that is used twice, and one that is used once. Of one sample an element is one product."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(112, 112), nn.Linear(112, 640)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(torch.relu(self.one(x))))).square().mean()


WAYS: dict[str, dict[str, Any]] = {
    "int8": {"scheme": "baseline", "residual_dtype": "int8"},
    "bfloat16": {"scheme": "baseline", "residual_dtype": "bfloat16"},
    "rows": {"scheme": Scheme(NONE, "resireduce.residuals.rows:RowsResidual", NONE)},
    "rows and columns": {"scheme": Scheme(NONE, ROWS_COLUMNS, NONE), "options": {"choice": "softmax"}},
}


def trained(communicator: Communicator, start: Layers, slices: int | None, way: str) -> nn.Module:
    model = Layers()
    model.load_state_dict(start.state_dict())
    optimizer = resireduce.distribute(
        model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), density=0.05, backend=communicator,
        groups={"specific": ["two.weight"]}, slices=slices, **WAYS[way],
    )  # fmt: skip
    assert set(optimizer.twice_gradients) == ({"one.weight", "two.weight"} if slices else set())
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(1, 112, generator=torch.Generator().manual_seed(10 * step + communicator.rank))
        if step == 2 and communicator.rank:  # nothing of it, and of the first all the same
            model.one(x).sum().backward()
        else:
            model(x).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("way", WAYS)
def test_training_is_that_of_whole_gradients(way: str) -> None:
    start = seeded(Layers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, cut = (LocalWorld(2).run(lambda c, s=s: trained(c, start, s, way)) for s in (None, 8192))
    assert same(whole[0], cut[0]) and same(cut[0], cut[1]) and not same(cut[0], start)


def test_what_comes_outside_of_the_layers_is_added() -> None:
    def run(slices: int | None) -> nn.Module:
        model = seeded(Layers)
        optimizer = distributed(model, residual_dtype="int8", slices=slices)
        take_steps(optimizer, lambda: model(torch.ones(1, 112)) + model.two.weight.square().sum(), 2)
        return model

    assert same(run(8192), run(None))


def test_no_whole_gradient_is_alive_in_the_backward_pass() -> None:
    def peak(slices: int | None) -> int:
        model = seeded(Layers)
        optimizer = distributed(model, residual_dtype="int4", slices=slices)
        with LiveBytes(lambda tensor: tensor.is_floating_point() and tensor.nbytes > 8192) as alive:
            model(torch.ones(1, 112)).backward()
        optimizer.step()
        return alive.peak_bytes

    assert peak(None) >= 640 * 112 * 4 and peak(8192) < 640 * 112 * 4 / 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compressor": "gaussian"}, "GaussianK selects from the whole gradient, where topk can do without"),
        ({"backward_passes_per_step": 2}, "gradients of several passes are added up"),
        ({"scheme": "2d", "groups": {"specific": ["two.weight"]}}, "cannot be read and written some rows at a time"),
    ],
)
def test_why_a_gradient_is_not_made_twice(options: dict[str, object], reason: str) -> None:
    given = {"scheme": "baseline", "residual_dtype": "int8", **options}
    planned = plan(Layers, slices=8192, **given)  # type: ignore[arg-type]
    assert reason in planned["whole_gradients"]["two.weight"]


class Transposed(Layers):
    """Layers of which the second has a weight that lies in memory column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.two.weight = nn.Parameter(self.two.weight.detach().t().contiguous().t())


def test_a_weight_whose_rows_lie_apart_has_a_whole_gradient() -> None:
    planned = plan(Transposed, slices=8192, scheme="baseline", residual_dtype="int8")
    assert "do not lie one after the other in memory" in planned["whole_gradients"]["two.weight"]


def test_rows_and_columns_that_are_stored_take_the_place_of_those_before_them() -> None:
    """Oracle: the rows as a whole. New ones come late, early, or at once, of which those that are too early wait."""
    matrix = torch.arange(60.0).view(12, 5)
    for old, new in (([0, 1, 2], [9, 10, 11]), ([9, 10, 11], [0, 1, 2]), ([1, 5, 9], [1, 2, 9])):
        values, columns = torch.zeros(3, 2), torch.tensor([1, 4])
        moving = Moving(values, torch.tensor(old), torch.tensor(new), columns, 12)
        ends = []
        for first in range(0, 12, 4):
            kept = values.clone()
            ends.append(moving.write(matrix[first : first + 4], first))
            unread = [place for place, row in enumerate(old) if row >= first + 4]
            assert torch.equal(values[unread], kept[unread]), "rows that will be read are as they were"
        assert ends == [False, False, True] and torch.equal(values, matrix[new][:, columns])


def test_a_plan_states_what_is_made_thrice_and_what_that_saves() -> None:
    given = {"scheme": "2d", "groups": {"specific": ["two.weight"]}}
    whole, cut = (plan(Layers, slices=slices, **given) for slices in (None, 8192))  # type: ignore[arg-type]
    assert "five products" in cut["twice_gradients"]["two.weight"]
    assert cut["total"] == whole["total"] and cut["peak_states"] < whole["peak_states"] - 640 * 112 * 4 / 2


def test_a_plan_states_what_is_made_twice_and_what_that_saves() -> None:
    whole, cut = (plan(Layers, scheme="baseline", residual_dtype="int8", slices=slices) for slices in (None, 8192))
    assert set(cut["twice_gradients"]) == {"one.weight", "two.weight"} and not cut["whole_gradients"]
    assert cut["peak_states"] < whole["peak_states"] - 640 * 112 * 4 / 2


@pytest.mark.parametrize("order", ["cba", "acb", "bac"])
@pytest.mark.parametrize(
    ("scheme", "precision"), [("w", None), ("w", "int8"), ("w", "bfloat16"), ("a", "int4"), ("a", None)]
)
def test_members_of_a_group_are_folded_as_whole_ones_are(scheme: str, precision: str | None, order: str) -> None:
    whole, cut = (group_of_three(scheme, precision) for _ in range(2))
    like, generator = torch.empty(130, 33), torch.Generator().manual_seed(0)
    for step in range(3):
        for name in order if step < 2 else order[:2]:
            grad = torch.randn(like.shape, generator=generator)
            expected = whole.compress(grad.clone(), name, step)
            found = cut.compress_parts(
                lambda part, g=grad: g[part].clone(), row_slices(like.shape, 4, 4096), like, name, step
            )
            assert isinstance(expected, Payload) and torch.equal(found.buffer, expected.buffer)
        for one in (whole, cut):
            one.residual.end_step(step)
        held, other = whole.residual.tensors(), cut.residual.tensors()
        assert all(torch.equal(other[key].view(torch.uint8), value.view(torch.uint8)) for key, value in held.items())
        assert any(value.any() for value in held.values())


def group_of_three(scheme: str, precision: str | None) -> ErrorFeedback:
    residual = build_residual(scheme, Grouping(groups=(("a", "b", "c"),)), precision, rank=1)
    feedback = ErrorFeedback(TopK(0.05), residual, LocalCommunicator(), frozenset())
    for name in "abc":
        feedback.register(name, torch.empty(130, 33))
    return feedback


class HalfSent(FullResidual):
    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return super().compensate_(grad.mul_(0.5), name)


class HalfKept(FullResidual):
    def update(self, name: str, error: Any, step: int) -> None:
        super().update(name, lambda: error().mul_(0.5), step)


class HalfFolded(WeightedResidual):
    def fold(self, folded: Any, error: Tensor, name: str, room: Tensor | None) -> Any:
        return super().fold(folded, error * 0.5, name, room)


class ByNorm(AverageResidual):
    def weight(self, error: Tensor, name: str) -> Tensor:
        return torch.linalg.vector_norm(error)


class Cornered(RowsColumnsResidual):
    def update(self, name: str, error: Any, step: int) -> None:
        super().update(name, lambda: error().mul_(0.5), step)


class Inherited(HalfFolded):
    pass


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("kind", [HalfSent, HalfKept, HalfFolded, ByNorm, Cornered, Inherited])
def test_what_a_residual_of_ones_own_does_to_whole_gradients_is_done(
    kind: type[Residual], precision: str | None
) -> None:
    def trained_with(slices: int | None) -> nn.Module:
        model, names = seeded(lambda: nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))), ("0.weight", "1.weight")
        groups = Grouping((names,)) if issubclass(kind, AverageResidual) else Grouping(specific=names)
        options = {"scheme": Scheme(kind, kind, kind), "groups": groups, "residual_dtype": precision, "slices": slices}
        optimizer = distributed(model, gradients="streamed", density=0.01, **options)
        source = torch.Generator().manual_seed(0)
        take_steps(optimizer, lambda: model(torch.randn(4, 128, generator=source)).square().mean(), 3)
        return model

    assert same(trained_with(None), trained_with(20_000))
