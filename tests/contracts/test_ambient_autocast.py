"""Autocast around `backward()` and `step()`: it may round what autograd multiplies, and nothing of the library's."""

from itertools import cycle

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.core.feedback import exactly
from resireduce.scheme import COMPRESSORS
from tests.threads import LocalWorld
from tests.worlds import OPTIMIZERS, same, seeded, sgd_for

WITHIN = {"device_type": "cpu", "dtype": torch.bfloat16}


class Given(nn.Module):
    """Weights whose gradients are what they are multiplied by, element by element: two in a group, and a third."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {"one": (128, 90), "two": (128, 90), "three": (100, 101)}
        self.inner = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})

    def forward(self, generator: torch.Generator) -> Tensor:
        return sum((p * torch.randn(p.shape, generator=generator)).sum() for p in self.parameters())  # type: ignore[return-value]


def trained(communicator: Communicator, start: Given, dtype: torch.dtype, within: bool, **options: object) -> Given:
    model = Given().to(dtype)
    model.load_state_dict(start.state_dict())
    wrapped = OPTIMIZERS[sgd_for(options)](list(model.parameters()))
    groups = {"groups": [["inner.one", "inner.two"]], "specific": ["inner.three"]}
    optimizer = resireduce.distribute(
        model, wrapped, backend=communicator, density=0.05, groups=groups, max_grad_norm=1.0, **options
    )  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(communicator.rank)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(generator)
        with torch.autocast(**WITHIN, enabled=within):  # type: ignore[arg-type]
            loss.backward()
            optimizer.step()
    return model


@pytest.mark.parametrize(("compressor", "dtype"), zip(COMPRESSORS, cycle([torch.float32, torch.float64]), strict=False))
def test_training_is_that_without_autocast(compressor: str, dtype: torch.dtype) -> None:
    """In one message, where that is allowed: torch.cat refuses float16 and float64 in an autocast to bfloat16."""
    start, sizes = seeded(Given), COMPRESSORS[compressor]
    merge = None if COMPRESSORS[compressor].in_rounds else "one"
    scheme = "w+2d" if sizes.selects else "baseline"

    def run(communicator: Communicator, within: bool) -> Given:
        return trained(communicator, start, dtype, within, compressor=compressor, merge=merge, scheme=scheme)

    plain, cast = (LocalWorld(2).run(lambda c, w=within: run(c, w)) for within in (False, True))
    assert same(plain[0], cast[0]) and same(cast[0], cast[1]) and not same(plain[0], start.to(dtype))


def test_what_runs_exactly_runs_so_within_an_autocast_alone() -> None:
    product = exactly(torch.mm)
    with torch.autocast(**WITHIN):  # type: ignore[arg-type]
        assert product(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.float32
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16
