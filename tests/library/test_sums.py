"""Residual and gradient are added where the largest are looked for: with the same bits as one after the other."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from resireduce.compressors.topk import TopK
from resireduce.grouping import Grouping
from resireduce.residuals.base import FullResidual
from resireduce.scheme import Scheme
from tests.worlds import Given, averages, distributed, residuals

SHAPE = (300, 257)


@dataclass(frozen=True)
class InTurn(TopK):
    """Adds nothing on its way."""


class Halved(FullResidual):
    """Adds half of the gradient."""

    def compensate_(self, grad: Tensor, name: str) -> Tensor:
        return super().compensate_(grad.div_(2), name)


def trained(compressor: TopK, options: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """Return parameters and residuals after each of some steps."""
    model, source = Given(dtype, a=SHAPE, b=SHAPE), torch.Generator().manual_seed(0)
    groups = Grouping(groups=(("a", "b"),))
    found = list[Tensor]()
    with distributed(model, lr=1.0, compressor=compressor, groups=groups, **options) as optimizer:
        for _ in range(3):
            averages(model, optimizer, {name: torch.randn(SHAPE, generator=source).to(dtype) for name in "ab"})
            found += [one.detach().clone() for one in (*model.parameters(), *residuals(optimizer).values())]
    return found


KINDS: dict[str, dict[str, Any]] = {
    "full": {"scheme": "baseline"},
    "w": {"scheme": "w"},
    "w of compensated": {"scheme": "w", "options": {"norms": "compensated"}},
    "bfloat16": {"residual_dtype": "bfloat16"},
    "int8": {"residual_dtype": "int8"},
    "int4": {"residual_dtype": "int4"},
    "w in int8": {"scheme": "w", "residual_dtype": "int8"},
    "half of each gradient": {"scheme": Scheme(Halved, Halved, Halved)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_sent_and_stored_is_as_if_they_were_added_first(kind: str, dtype: torch.dtype) -> None:
    ours, plain = (trained(compressor, KINDS[kind], dtype) for compressor in (TopK(0.01), InTurn(0.01)))
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True)) and ours[0].any()
