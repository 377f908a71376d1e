"""What users do by mistake: each is answered with the cure, none changes anything silently."""

import pytest
import torch
from torch import nn

import resireduce
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from resireduce.grouping import Grouping, find_groups
from resireduce.optimizer import DistributedOptimizer
from tests.worlds import Net, loss_of, seeded


def distributed(model: nn.Module, **options: object) -> DistributedOptimizer:
    wrapped = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    return resireduce.distribute(model, wrapped, **{"backend": "local", "scheme": "baseline", **options})  # type: ignore[arg-type]


def loss(model: nn.Module) -> torch.Tensor:
    return loss_of(model, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("compressor", ["topk", "none"])
def test_kept_gradients_that_are_clipped_too_late(compressor: str) -> None:
    model = seeded(Net)
    optimizer = distributed(model, gradients="kept", compressor=compressor)
    loss(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(UsageError, match=r"changed between backward\(\) and step\(\)"):
        optimizer.step()


def test_kept_gradients_that_are_dropped_before_the_step() -> None:
    model = seeded(Net)
    optimizer = distributed(model, gradients="kept")
    loss(model).backward()
    model.zero_grad()
    with pytest.raises(UsageError, match=r"changed between backward\(\) and step\(\)"):
        optimizer.step()


def test_kept_gradients_may_be_changed_where_they_only_add_up() -> None:
    model = seeded(Net)
    optimizer = distributed(model, gradients="kept")
    with optimizer.no_sync():
        loss(model).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)
    loss(model).backward()
    optimizer.step()


@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_gradients_that_are_dropped_between_two_passes(gradients: str) -> None:
    model = nn.ModuleList([nn.Linear(120, 120), nn.Linear(120, 120)])
    optimizer = distributed(model, gradients=gradients)
    with optimizer.no_sync():
        model[0](torch.ones(2, 120)).sum().backward()
    model.zero_grad()
    model[1](torch.ones(2, 120)).sum().backward()
    with pytest.raises(UsageError, match=r"'0\.(weight|bias)' was dropped between two backward passes"):
        optimizer.step()


def test_no_sync_within_no_sync() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    with optimizer.no_sync():
        with optimizer.no_sync():
            loss(model).backward()
        loss(model).backward()
        assert model.first.weight.grad is not None, "still within the outer one"
    loss(model).backward()
    assert model.first.weight.grad is None
    optimizer.step()


def test_a_model_that_is_distributed_already() -> None:
    model = seeded(Net)
    distributed(model)
    with pytest.raises(ConfigError, match=r"'first\.weight' is distributed already"):
        distributed(model)


def test_two_optimizers_share_a_model() -> None:
    model = seeded(Net)
    parts = [list(model.blocks.parameters()), list(model.head.parameters())]
    optimizers = [
        resireduce.distribute(model, torch.optim.SGD(part, 0.1), "baseline", backend="local") for part in parts
    ]
    before = [part[0].clone() for part in parts]
    loss(model).backward()
    for optimizer in optimizers:
        optimizer.step()
    assert not any(torch.equal(part[0], old) for part, old in zip(parts, before, strict=True))


def test_sparse_gradients() -> None:
    model = nn.Embedding(200, 100, sparse=True)
    distributed(model)
    with pytest.raises(UsageError, match=r"'weight' is sparse: make its layer with sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()


def test_after_a_nan_nothing_goes_on() -> None:
    model = seeded(Net)
    optimizer = distributed(model)
    with pytest.raises(NonFiniteGradient):
        (loss(model) * torch.inf).backward()
    for call in (optimizer.zero_grad, optimizer.step, lambda: loss(model).backward()):
        with pytest.raises(UsageError, match="from a checkpoint"):
            call()


def test_a_gradient_from_before_is_not_taken_for_an_average() -> None:
    model = nn.ModuleList([nn.Linear(120, 120), nn.Linear(120, 120)])
    model[1](torch.ones(2, 120)).sum().backward()
    before = model[1].weight.clone()
    optimizer = distributed(model)
    model[0](torch.ones(2, 120)).sum().backward()
    optimizer.step()
    assert torch.equal(model[1].weight, before)


def test_groups_are_found_among_what_is_trained() -> None:
    model = seeded(Net)
    whole = find_groups(model)
    model.blocks[0].requires_grad_(False)
    optimizer = distributed(model, scheme="w+2d")
    grouped = {name for group in find_groups(model).groups for name in group}
    assert grouped == {name for group in whole.groups for name in group if not name.startswith("blocks.0.")}
    assert all("blocks.0." not in name for name in optimizer.residual_state_dict())
    half = seeded(Net)
    wrapped = torch.optim.SGD([*half.first.parameters(), *half.blocks[0].parameters()], 0.1)
    with pytest.warns(UserWarning, match="saves nothing"):
        resireduce.distribute(half, wrapped, "w", backend="local")


def test_a_scheme_that_saves_nothing_here_says_so(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(UserWarning, match=r"scheme 'w\+2d' saves nothing in this model.*Grouping"):
        distributed(nn.Linear(120, 120), scheme="w+2d")
    recwarn.clear()
    for scheme in ("baseline", "none"):
        distributed(nn.Linear(120, 120), scheme=scheme)
    distributed(seeded(Net), scheme="w", groups=Grouping(groups=(("blocks.0.up.weight", "blocks.1.up.weight"),)))
    assert not recwarn.list


def test_a_residual_wider_than_its_gradient() -> None:
    model = seeded(Net).bfloat16()
    with pytest.raises(ConfigError, match=r"residual_dtype: torch\.float32 is not allowed for gradients of .*bfloat16"):
        distributed(model, residual_dtype="float32")
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
