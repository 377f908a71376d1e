"""What is Signum's own: whose momentum counts, and what it takes."""

import pytest
import torch

import resireduce
from resireduce.compressors.signs import SignSGD, Signum
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.planning.memory import measure_states
from resireduce.scheme import build_compressor
from tests.worlds import Net, same, seeded, train_world


def test_it_holds_as_much_as_the_momentum_of_sgd() -> None:
    planned = plan(Net, world_size=2, compressor="signum", scheme="none")
    usual = plan(Net, world_size=2, compressor="signsgd", scheme="none", optimizer_args={"momentum": 0.9})
    assert planned["optimizer_states"] == usual["optimizer_states"] and planned["residuals"] == 0
    for _, optimizer in train_world(2, seeded(Net), steps=2, compressor="signum", scheme="none"):
        assert measure_states(optimizer).as_dict() == {key: planned[key] for key in measure_states(optimizer).as_dict()}


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_momentum_is_not_formed_twice(optimizer: type[torch.optim.Optimizer]) -> None:
    model = seeded(Net)
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    with pytest.raises(ConfigError, match=r"compressor: Signum corrects momentum and is not allowed with"):
        wrapped = optimizer(model.parameters(), lr=0.1, **options)
        resireduce.distribute(model, wrapped, "none", "signum", backend="local")


def test_without_a_factor_it_is_signsgd() -> None:
    start, options = seeded(Net), {"optimizer": "sgd", "scheme": "none", "steps": 4}
    ends = [train_world(2, start, compressor=one, **options)[0][0] for one in (Signum(0), SignSGD(), Signum(0.9))]
    assert same(ends[0], ends[1]) and not same(ends[1], ends[2])
    assert build_compressor("signum", 0.1) == Signum(0.9)


def test_settings_that_cannot_be_used() -> None:
    for bad in (1, -0.1, "a", True):
        with pytest.raises(ConfigError, match=r"momentum_factor: .* is not allowed; give a number, 0 <= it < 1"):
            Signum(bad)
