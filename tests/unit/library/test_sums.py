"""Residual and gradient are added where the largest are looked for: with the same bits as one after the other."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from resireduce.comm.local import LocalCommunicator
from resireduce.compressors.topk import TopK
from resireduce.core.feedback import ErrorFeedback
from resireduce.core.payload import Payload
from resireduce.errors import NonFiniteGradient
from resireduce.grouping import Grouping
from resireduce.residuals.base import Residual
from resireduce.residuals.full import FullResidual
from resireduce.residuals.group import WeightedResidual
from resireduce.residuals.stored import Blocks
from resireduce.scheme import build_residual

SHAPE = (300, 257)


@dataclass(frozen=True)
class InTurn(TopK):
    """Adds nothing on its way."""


class Halved(FullResidual):
    """Adds half of the gradient."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return super().compensate_(grad.div_(2), name)


def pipeline(compressor: TopK, residual: Residual, dtype: torch.dtype) -> ErrorFeedback:
    feedback = ErrorFeedback(compressor, residual, LocalCommunicator(), frozenset())
    for name in ("a", "b"):
        feedback.register(name, torch.zeros(SHAPE, dtype=dtype))
    return feedback


def sent(feedback: ErrorFeedback, dtype: torch.dtype, steps: int = 3) -> list[Tensor]:
    """Return all that is sent and stored in some steps."""
    source, found = torch.Generator().manual_seed(0), list[Tensor]()
    for step in range(steps):
        feedback.begin_step(step)
        for name in ("b", "a"):
            payload = feedback.compress(torch.randn(SHAPE, generator=source).to(dtype), name, step)
            assert isinstance(payload, Payload)
            found.append(payload.buffer)
        feedback.residual.end_step(step)
        found += [tensor.clone() for tensor in feedback.residual.tensors().values()]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "kind", ["full", "w", "w of compensated", "bfloat16", "int8", "int4", "w in int8", "half of each gradient"]
)
def test_all_that_is_sent_and_stored_is_as_if_they_were_added_first(kind: str, dtype: torch.dtype) -> None:
    together = Grouping(groups=(("a", "b"),))
    make = {
        "full": lambda: FullResidual(grouping=together),
        "w": lambda: WeightedResidual(grouping=together),
        "w of compensated": lambda: WeightedResidual(grouping=together, norms="compensated"),
        "bfloat16": lambda: FullResidual(grouping=together, dtype="bfloat16"),
        "int8": lambda: FullResidual(grouping=together, dtype="int8"),
        "int4": lambda: FullResidual(grouping=together, dtype="int4"),
        "w in int8": lambda: WeightedResidual(grouping=together, dtype="int8"),
        "half of each gradient": lambda: Halved(grouping=together),
    }[kind]
    ours, plain = (sent(pipeline(compressor, make(), dtype), dtype) for compressor in (TopK(0.01), InTurn(0.01)))
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


class Seen:
    """Stands in the place of a residual, and counts what is compensated."""

    def __init__(self, inner: Residual):
        self.inner, self.count = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        self.count += 1
        return self.inner.compensate_(grad, name)


def test_what_stands_in_the_place_of_a_residual_sees_all_that_is_compensated() -> None:
    feedback = pipeline(TopK(0.01), FullResidual(grouping=Grouping()), torch.float32)
    seen = feedback.residual = Seen(feedback.residual)  # type: ignore[assignment]
    sent(feedback, torch.float32, steps=3)
    assert seen.count == 6


def test_what_is_put_in_the_place_of_the_update_of_a_scheme_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    feedback = pipeline(TopK(0.01), build_residual("w", Grouping()), torch.float32)
    update, seen = feedback.residual.update, []
    monkeypatch.setattr(feedback.residual, "update", lambda *given: (seen.append(given[0]), update(*given)))
    sent(feedback, torch.float32, steps=3)
    assert len(seen) == 6


def test_a_gradient_that_does_not_lie_in_a_row_is_added_all_the_same() -> None:
    residual = FullResidual(grouping=Grouping())
    residual.register("w", torch.zeros(3, 2))
    assert residual.addends(torch.ones(2, 3).t(), "w") is None
    assert residual.compensate_(torch.arange(6.0).view(2, 3).t(), "w").tolist() == [[0, 3], [1, 4], [2, 5]]


class Doubled(Blocks):
    """Adds twice what is stored."""

    def add_to_(self, target: Tensor) -> Tensor:
        return super().add_to_(super().add_to_(target))


def test_what_is_stored_in_a_way_of_its_own_is_added_by_itself() -> None:
    residual = FullResidual(grouping=Grouping(), dtype="int8")
    residual.register("w", torch.zeros(SHAPE))
    residual._stored["w"] = Doubled(SHAPE, "int8", torch.device("cpu"))
    assert residual.addends(torch.ones(SHAPE), "w") is None


@pytest.mark.parametrize("dtype", [None, "int8", "int4"])
def test_a_gradient_that_is_not_finite_changes_no_residual(dtype: str | None) -> None:
    feedback = pipeline(TopK(0.01), FullResidual(grouping=Grouping(), dtype=dtype), torch.float32)
    sent(feedback, torch.float32)
    before = {name: tensor.clone() for name, tensor in feedback.residual.tensors().items()}
    grad = torch.ones(SHAPE)
    grad[-1, -1] = float("nan")
    with pytest.raises(NonFiniteGradient, match="its residual is unchanged"):
        feedback.compress(grad, "a", 3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in feedback.residual.tensors().items())
