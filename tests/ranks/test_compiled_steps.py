"""Training steps that are compiled as a whole, compiled autograd, and wrappers that call parts of a model."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch._dynamo as dynamo
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce.errors import UsageError
from tests.worlds import Net, loss_of, same, seeded

MODES = {
    "streamed": {}, "kept": {"gradients": "kept"},
    "in_backward": {"compressor": "none", "update": "in_backward"},
}  # fmt: skip


def train(mode: str, compiled: Callable[[Callable], Callable] | None = None, whole: bool = False) -> nn.Module:
    """Three steps, in which forward and backward pass, with `whole` the update too, are within what is `compiled`."""
    model = seeded(lambda: Net(blocks=1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if mode == "ddp":
        model = DistributedDataParallel(model)
        resireduce.compress_ddp(model, density=0.05)
    else:
        optimizer = resireduce.distribute(model, optimizer, density=0.05, **MODES[mode])

    def passes(x: Tensor, y: Tensor) -> None:
        nn.functional.cross_entropy(model(x), y).backward()
        if whole:
            optimizer.step()

    run, generator = passes if compiled is None else compiled(passes), torch.Generator().manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        run(torch.randn(6, 600, generator=generator), torch.randint(10, (6,), generator=generator))
        if not whole:
            optimizer.step()
    return model


def compiled(step: Callable) -> Callable:
    dynamo.reset()
    return torch.compile(step, backend="aot_eager")


@pytest.mark.parametrize("mode", [*MODES, "ddp"])
def test_a_step_that_is_compiled_as_a_whole_is_the_same(alone: None, mode: str) -> None:
    plain, whole = train(mode), train(mode, compiled, whole=True)
    if mode == "ddp":  # the optimizer is torch's, and within the graph; before torch 2.13 its last bit can be another
        torch.testing.assert_close([*plain.parameters()], [*whole.parameters()])
    else:
        assert same(plain, whole)


@pytest.mark.parametrize("mode", MODES)
def test_compiled_autograd_is_refused_unless_nothing_happens_in_the_backward_pass(alone: None, mode: str) -> None:
    plain = train(mode)
    refused = pytest.raises(UsageError, match=r"compiled.autograd off")
    expected = nullcontext() if mode == "kept" else refused
    with dynamo.config.patch(compiled_autograd=True), expected:
        assert same(plain, train(mode, compiled))


class Parts(nn.Module):
    """Calls the layers of a model, and not the model."""

    def __init__(self, model: Net):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.head(self.model.norm(self.model.first(x)))


@pytest.mark.parametrize("flags", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_a_wrapper_is_found_whatever_it_calls_of_the_model(alone: None, mode: str, flags: dict[str, bool]) -> None:
    model = seeded(Net)
    optimizer = resireduce.distribute(model, torch.optim.SGD(model.parameters(), 0.1), **MODES[mode])
    parallel = DistributedDataParallel(Parts(model), **flags)
    with pytest.raises(UsageError, match="DistributedDataParallel"):
        loss_of(parallel, torch.Generator()).backward()
    optimizer.close()
