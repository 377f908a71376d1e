"""Autocast around `backward()` and `step()`: it may round what autograd multiplies, and nothing of the library's."""

import warnings
from itertools import cycle

import pytest
import torch
from torch import Tensor, nn

import resireduce
from resireduce.comm.base import Communicator
from resireduce.comm.local import LocalWorld
from resireduce.exactly import exactly
from resireduce.scheme import COMPRESSORS
from resireduce.slices.row_gradients import LinearRows
from tests.worlds import OPTIMIZERS, distributed, same, seeded, sgd_for

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
    merge = None if compressor in ("powersgd", "l1-chunks", "ok-topk") else "one"
    scheme = "w+2d" if sizes.selects else "baseline"

    def run(communicator: Communicator, within: bool) -> Given:
        return trained(communicator, start, dtype, within, compressor=compressor, merge=merge, scheme=scheme)

    plain, cast = (LocalWorld(2).run(lambda c, w=within: run(c, w)) for within in (False, True))
    assert same(plain[0], cast[0]) and same(cast[0], cast[1]) and not same(plain[0], start.to(dtype))


class Twice(nn.Module):
    """A layer that is used twice, and one that is used once."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(112, 112, bias=False), nn.Linear(112, 640, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(torch.relu(self.one(torch.relu(self.one(x))))).square().mean()


@pytest.mark.parametrize("options", [{}, {"residual_dtype": "int8"}, {"residual_dtype": "bfloat16"}, {"scheme": "d"}])
def test_gradients_in_slices_are_rounded_as_whole_ones_are(options: dict[str, object]) -> None:
    """A backward pass in an autocast multiplies in bfloat16, in either case, and adds up in float32.

    Where residuals absorb gradients, the two of the first layer are added in another order.
    """
    found = []
    for slices in (None, 8192):
        model = seeded(Twice)
        optimizer = distributed(model, slices=slices, density=0.01, groups={"specific": ["two.weight"]}, **options)
        for step in range(3):
            optimizer.zero_grad()
            # Of one sample an element is one product, so that slices add up nothing in another order.
            loss = model(torch.randn(1, 112, generator=torch.Generator().manual_seed(step)))
            with warnings.catch_warnings(), torch.autocast(**WITHIN):  # type: ignore[arg-type]
                warnings.simplefilter("error")
                loss.backward()
            optimizer.step()
        found.append({**model.state_dict(), **optimizer.residual_state_dict()})
    whole, cut = found
    assert all(torch.equal(whole[name], cut[name]) for name in whole if options or "one" not in name)


def test_many_small_gradients_add_up_in_the_residual() -> None:
    """At 256 a bfloat16 takes no 1 any more: sums of rows and residual are formed in the weight's dtype."""
    model = nn.Linear(64, 256, bias=False)
    optimizer = distributed(model, lr=1.0, density=1e-4, residual_dtype="int8", slices=4096)
    factors = torch.ones(256)
    factors[0] = 3000.0  # of this row top-k takes
    for _ in range(300):
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 64)) * factors).sum()
        with torch.autocast(**WITHIN):  # type: ignore[arg-type]
            loss.backward()
        optimizer.step()
    left = optimizer.feedback.residual.compensate_(torch.zeros(256, 64), "weight")
    torch.testing.assert_close(left[100], torch.full((64,), 300.0), rtol=0.01, atol=0)


def test_rows_that_autocast_rounds_to_a_narrower_range_may_be_infinite() -> None:
    inputs, outputs = torch.full((1, 8), 1e5), torch.full((1, 4), 1e-3)
    assert LinearRows(inputs, outputs).stays_below(1e30)
    with torch.autocast("cpu", torch.float16):
        rows = LinearRows(inputs, outputs)
    assert not rows.stays_below(1e30) and rows.rows(slice(0, 2)).isinf().all()
    assert rows.rows(slice(0, 2)).dtype == torch.float32


def test_what_runs_exactly_runs_so_within_an_autocast_alone() -> None:
    product = exactly(torch.mm)
    with torch.autocast(**WITHIN):  # type: ignore[arg-type]
        assert product(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.float32
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.bfloat16
