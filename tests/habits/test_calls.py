"""An optimizer that the library does not know has its step() called once in a training step, as its hooks are."""

import pytest
import torch
from torch import nn

import resireduce
from tests.fuzz.build import Clipping
from tests.worlds import seeded, take_steps


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


class Counting(Clipping):
    """Is not known to the library, and may need all averages at once."""

    calls = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.calls += 1
        super().step()


def test_an_optimizer_that_is_not_known_is_called_once_and_what_that_costs_is_said_once() -> None:
    model = seeded(transformer)
    wrapped, hooked = Counting(model.parameters(), 0.1), []
    wrapped.register_step_pre_hook(lambda *_: hooked.append(1))
    said = r"Counting is not known .* all averages, .* step_is_separable = True"
    with pytest.warns(UserWarning, match=said) as warned:
        optimizer = resireduce.distribute(model, wrapped, "baseline", backend="local")
        take_steps(optimizer, lambda: model(torch.randn(2, 5, 64)).square().mean(), 3)
    assert wrapped.calls == len(hooked) == 3
    assert len([one for one in warned if "Counting" in str(one.message)]) == 1
