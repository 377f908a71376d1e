"""Autocast around `backward()` and `step()`: it may round what autograd multiplies, and nothing of the library's."""

from itertools import cycle

import pytest
import torch

import resireduce
from resireduce.comm.base import Communicator
from resireduce.scheme import COMPRESSORS
from tests.threads import LocalWorld
from tests.worlds import OPTIMIZERS, Given, same, sgd_for

WITHIN = {"device_type": "cpu", "dtype": torch.bfloat16}


SHAPES = {"one": (128, 90), "two": (128, 90), "three": (100, 101)}
"""Two in a group, and a third."""


def trained(communicator: Communicator, dtype: torch.dtype, within: bool, **options: object) -> Given:
    model = Given(dtype, **SHAPES)
    wrapped = OPTIMIZERS[sgd_for(options)](list(model.parameters()))
    groups = {"groups": [["one", "two"]], "specific": ["three"]}
    optimizer = resireduce.distribute(
        model, wrapped, backend=communicator, density=0.05, groups=groups, max_grad_norm=1.0, **options
    )  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(communicator.rank)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model({name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()})
        with torch.autocast(**WITHIN, enabled=within):  # type: ignore[arg-type]
            loss.backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(
    ("compressor", "dtype"), [*zip(COMPRESSORS, cycle([torch.float32, torch.float64]), strict=False)]
)
def test_training_is_that_without_autocast(compressor: str, dtype: torch.dtype) -> None:
    """In one message, where that is allowed: torch.cat refuses float16 and float64 in an autocast to bfloat16."""
    sizes = COMPRESSORS[compressor]
    options = {"merge": None if sizes.in_rounds else "one", "scheme": "w+2d" if sizes.selects else "baseline"}
    plain, cast = (
        LocalWorld(2).run(lambda one, w=within: trained(one, dtype, w, compressor=compressor, **options))
        for within in (False, True)
    )
    assert same(plain[0], cast[0]) and same(cast[0], cast[1]) and not same(plain[0], Given(dtype, **SHAPES))
