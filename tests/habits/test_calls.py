"""How often the wrapped optimizer's step() is called in a training step: a bounded number of times, or once."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import resireduce
from tests.fuzz.build import Clipping
from tests.worlds import seeded


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)


def normed_blocks() -> nn.Module:
    """30 blocks of which nearly all is sent as it is."""
    return nn.Sequential(*(nn.Sequential(nn.LayerNorm(60), nn.Linear(60, 60), nn.ReLU()) for _ in range(30)))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "transformer": (transformer, lambda: torch.randn(2, 5, 64)),
    "blocks with norms": (normed_blocks, lambda: torch.randn(3, 60)),
    "one large layer": (lambda: nn.Sequential(nn.Linear(400, 300), nn.Linear(300, 9)), lambda: torch.randn(3, 400)),
}


def bytes_of_largest_layer(model: nn.Module) -> int:
    layers: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + parameter.nbytes
    return max(layers.values())


def calls(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    gradients: str,
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    hook: Callable[..., None] | None = None,
    **options: Any,
) -> list[int]:
    """In each of four steps, by SGD, whose step() calls torch's function `sgd` once for its one group."""
    module = importlib.import_module("torch.optim.sgd")
    counted, plain = [0], module.sgd

    def counting(*arguments: Any, **named: Any) -> None:
        counted[0] += 1
        plain(*arguments, **named)

    monkeypatch.setattr(module, "sgd", counting)
    build, batch = MODELS[name]
    model = seeded(build)
    wrapped = kind(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = resireduce.distribute(model, wrapped, "baseline", backend="local", gradients=gradients, **options)
    if hook is not None:
        wrapped.register_step_pre_hook(hook)
    found = []
    for _ in range(4):
        counted[0] = 0
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        assert counted[0] == 0, "nothing is updated before step()"
        optimizer.step()
        found.append(counted[0])
    return found


@pytest.mark.parametrize("options", [{}, {"compressor": "none"}, {"max_grad_norm": 1.0}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_slices_of_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]) -> None:
    model = MODELS[name][0]()
    averages = sum(parameter.nbytes for parameter in model.parameters())
    bound = 2 * averages / bytes_of_largest_layer(model) + 1
    found = calls(monkeypatch, name, "streamed", **options)
    assert all(1 <= count <= bound for count in found), (found, bound)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_it_is_one_call_kept_with_a_hook_before_the_step_and_of_an_optimizer_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    hooked: list[int] = []
    assert calls(monkeypatch, name, "kept") == [1] * 4
    assert calls(monkeypatch, name, "streamed", hook=lambda *_: hooked.append(1)) == [1] * 4 and len(hooked) == 4
    assert calls(monkeypatch, name, "streamed", Clipping) == [1] * 4
