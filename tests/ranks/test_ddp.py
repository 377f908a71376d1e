"""The communication hook of DistributedDataParallel: the same arithmetic as kept gradients without the wrapper."""

import copy
import itertools
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce import CompressionHook
from resireduce.comm.base import Communicator
from resireduce.compressors.thresholds import Threshold
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from resireduce.planning.memory import LiveBytes
from tests.processes import all_equal, on_processes
from tests.worlds import KINDS, OPTIMIZERS, Net, loss_of, residuals, same, seeded, sgd_for, train

SMALL_BUCKETS = {"bucket_cap_mb": 0.1}
"""From the second step on, a first bucket of 1 MiB and then many of this size."""


def build() -> nn.Module:
    """1.7 MB of parameters: several buckets."""
    return Net(width=144, blocks=4)


def train_ddp(
    start: nn.Module,
    *,
    steps: int = 4,
    loss: Callable[[nn.Module, torch.Generator], Tensor] = loss_of,
    ddp: dict[str, object] = SMALL_BUCKETS,
    set_to_none: bool = True,
    optimizer: str | None = None,
    **options: object,
) -> tuple[nn.Module, CompressionHook]:
    """As `tests.worlds.train`, in DistributedDataParallel with the hook."""
    model = copy.deepcopy(start)
    parallel = DistributedDataParallel(model, **ddp)  # type: ignore[arg-type]
    hook = resireduce.compress_ddp(parallel, **{"density": 0.05, **options})  # type: ignore[arg-type]
    wrapped = OPTIMIZERS[optimizer or sgd_for(options)](list(model.parameters()))
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        wrapped.zero_grad(set_to_none)
        loss(parallel, generator).backward()
        wrapped.step()
    assert hook.steps == steps
    return model, hook


def check_compressors(communicator: Communicator) -> None:
    """The hook = kept gradients for each kind of compressor, and for schemes that have several kinds of residuals."""
    start = seeded(build)
    cases = [{"scheme": "baseline", "compressor": compressor} for compressor in KINDS]
    cases += [{"scheme": scheme, "compressor": "topk"} for scheme in ("w+2d", "none", "partial", "a")]
    cases += [{"compressor": Threshold(0.02)}, {"residual_dtype": "int8"}, {"residual_device": "cpu"}]
    cases += [{"warm_up_steps": 2}, {"density": 0.5}, {"optimizer": "second-moment", "residual_dtype": "int4"}]
    for options in cases:
        kept, optimizer = train(communicator, start, gradients="kept", steps=4, **options)
        hooked, hook = train_ddp(start, **options)
        assert same(kept, hooked) and not same(hooked, start), options
        theirs, ours = optimizer.residual_state_dict(), hook.residual_state_dict()
        assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours), options
        assert all_equal(hooked)


def check_ddp_options(communicator: Communicator) -> None:
    """However the wrapper holds its gradients and forms its buckets."""
    start = seeded(build)
    kept, _ = train(communicator, start, gradients="kept", steps=4)
    for ddp in (
        {"bucket_cap_mb": 25},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
    ):
        hooked, _ = train_ddp(start, ddp=SMALL_BUCKETS | ddp)
        zeroed, _ = train_ddp(start, ddp=SMALL_BUCKETS | ddp, set_to_none=False)
        assert same(kept, hooked) and same(kept, zeroed), ddp


def check_plain(communicator: Communicator) -> None:
    """Without compression: DistributedDataParallel without a hook, clipping included."""
    trained = []
    for hooked in (False, True):
        parallel = DistributedDataParallel(seeded(build), **SMALL_BUCKETS)
        if hooked:
            resireduce.compress_ddp(parallel, compressor="none", scheme="none")
        optimizer = OPTIMIZERS["adamw"](list(parallel.parameters()))
        generator = torch.Generator().manual_seed(communicator.rank)
        for _ in range(4):
            optimizer.zero_grad()
            loss_of(parallel, generator).backward()
            norm = nn.utils.clip_grad_norm_(parallel.parameters(), 0.1)
            optimizer.step()
        assert norm > 0.1
        trained.append(parallel.module)
    assert same(*trained) and all_equal(trained[0])


def check_accumulation(communicator: Communicator) -> None:
    """Passes within the wrapper's no_sync() are added up as those within the optimizer's."""
    models = [seeded(build), seeded(build)]
    parallel = DistributedDataParallel(models[0], **SMALL_BUCKETS)
    hook = resireduce.compress_ddp(parallel, density=0.05)
    plain = OPTIMIZERS["momentum"](list(models[0].parameters()))
    kept = resireduce.distribute(
        models[1], OPTIMIZERS["momentum"](list(models[1].parameters())), density=0.05, gradients="kept"
    )
    for model, optimizer, no_sync in ((parallel, plain, parallel.no_sync), (models[1], kept, kept.no_sync)):
        generator = torch.Generator().manual_seed(communicator.rank)
        for _ in range(3):
            optimizer.zero_grad()
            with no_sync():
                loss_of(model, generator).backward()
            loss_of(model, generator).backward()
            optimizer.step()
    assert same(*models) and hook.steps == 3


class Branching(nn.Module):
    """Rank 0 uses `odd` in every other step, and all `seldom`; nobody `never`; `frozen` is not trained; a channels-last
    convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.odd, self.never, self.frozen, self.seldom = (nn.Linear(120, 120) for _ in range(5))
        self.image = nn.Conv2d(30, 40, 3).to(memory_format=torch.channels_last)
        self.frozen.requires_grad_(False)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        x = self.frozen(self.shared(x)) + self.image(x[:, :30, None, None].expand(-1, -1, 3, 3)).flatten(1).repeat(1, 3)
        x = self.seldom(x) if self.passes % 2 else x
        return self.odd(x) if dist.get_rank() == 1 or self.passes % 2 else x


def check_unused(communicator: Communicator) -> None:
    """A parameter that some ranks do not use keeps its residual there; one that none uses has no gradient, and what its
    compressor has learnt of earlier ones stays."""

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        return model(torch.randn(3, 120, generator=generator)).square().mean()

    start = seeded(Branching)
    names = ("topk", "fp16", "powersgd", "ok-topk", "block8-two-phase")
    compressed = [{"scheme": "baseline", "compressor": name} for name in names]
    for options in (*compressed, {"compressor": "none"}):
        kept, reference = train(communicator, start, gradients="kept", steps=4, loss=loss, **options)
        for view in (False, True):
            ddp = {"find_unused_parameters": True, "gradient_as_bucket_view": view}
            hooked, hook = train_ddp(start, loss=loss, ddp=SMALL_BUCKETS | ddp, **options)
            assert same(kept, hooked) and not same(hooked.odd, start.odd), options
            assert same(hooked.never, start.never) and hooked.never.weight.grad is None
            theirs = reference.residual_state_dict()
            assert all(torch.equal(theirs[name], mine) for name, mine in hook.residual_state_dict().items())


def check_left(communicator: Communicator) -> None:
    """Averages that lie in `.grad` still, of layers that this rank does not use in the next pass, count as the wrapper
    counts them: where passes add up without no_sync(), and where nobody calls zero_grad()."""
    start = seeded(Branching)
    for clears, view in itertools.product((True, False), (True, False)):
        models = [copy.deepcopy(start) for _ in range(2)]
        for model in models:
            parallel = DistributedDataParallel(
                model, **SMALL_BUCKETS, find_unused_parameters=True, gradient_as_bucket_view=view
            )  # fmt: skip
            if model is models[0]:
                resireduce.compress_ddp(parallel, compressor="none")
            optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
            generator = torch.Generator().manual_seed(communicator.rank)
            for number in range(1, 7):
                parallel(torch.randn(3, 120, generator=generator)).square().mean().backward()
                if number % 2 == 0:
                    optimizer.step()
                    if clears:
                        optimizer.zero_grad()
        assert same(*models) and not same(models[0], start), (clears, view)


def check_tied(communicator: Communicator) -> None:
    """A tensor that two layers share is one."""

    def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
        tokens = torch.randint(600, (7,), generator=generator)
        return nn.functional.cross_entropy(model(tokens), tokens.roll(1))

    start = seeded(lambda: Net(width=144, blocks=4, tied=True))
    kept, _ = train(communicator, start, gradients="kept", steps=4, loss=loss)
    assert same(kept, train_ddp(start, loss=loss)[0]) and not same(kept, start)


def check_disagreement(communicator: Communicator) -> None:
    """Ranks that were given different settings say so, instead of waiting for each other."""
    with pytest.raises(ConfigError, match=r"density=0\.\d|differ between ranks"):
        resireduce.compress_ddp(DistributedDataParallel(seeded(build)), density=0.1 + 0.1 * communicator.rank)


def check_group(communicator: Communicator) -> None:
    """Within the wrapper's process group, which need not hold all ranks."""
    groups = [dist.new_group([rank]) for rank in range(communicator.world_size)]
    hooked, _ = train_ddp(seeded(build), ddp={"process_group": groups[communicator.rank]})
    assert not all_equal(hooked)


def test_two_processes() -> None:
    on_processes(
        2, check_compressors, check_ddp_options, check_plain, check_accumulation, check_unused, check_left,
        check_tied, check_disagreement, check_group,
    )  # fmt: skip


def test_messages_leave_within_the_backward_pass_and_gathered_bytes_are_bounded(alone: None) -> None:
    parallel = DistributedDataParallel(seeded(build), **SMALL_BUCKETS)
    resireduce.compress_ddp(parallel, "baseline", density=0.1)
    gathered = LiveBytes(lambda tensor: tensor.dtype == torch.uint8 and tensor.dim() == 2)
    before_the_last: list[int] = []
    parallel.module.first.weight.register_hook(lambda grad: before_the_last.append(gathered.peak_bytes))
    gradients = sum(parameter.nbytes for parameter in parallel.parameters())
    largest = max(8 * (parameter.numel() // 10) for parameter in parallel.parameters())
    for step in range(3):
        with gathered if step else nullcontext():  # in the first, all gradients are in one bucket
            loss_of(parallel, torch.Generator()).backward()
    assert before_the_last[1] > 0 and 0 < gathered.peak_bytes <= max(largest, gradients // 16) + 8
    assert gathered.current_bytes == 0


@pytest.mark.parametrize("compressor", ["topk", "qsgd"])
def test_going_on_from_what_was_saved_is_not_stopping(alone: None, compressor: str) -> None:
    start = seeded(build)
    whole, _ = train_ddp(start, steps=4, compressor=compressor)
    _, hook = train_ddp(start, steps=2, compressor=compressor)
    state = {name: tensor.clone() for name, tensor in hook.residual_state_dict().items()}
    model = copy.deepcopy(start)
    parallel = DistributedDataParallel(model)
    optimizer = OPTIMIZERS["momentum"](list(model.parameters()))
    fresh = resireduce.compress_ddp(parallel, compressor=compressor, density=0.05)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        if step == 2:
            fresh.load_residual_state_dict(state)
            assert fresh.steps == 2
        optimizer.zero_grad()
        loss_of(parallel, generator).backward()
        optimizer.step()
    assert same(whole, model)
    with pytest.raises(ConfigError, match="does not fit"):
        resireduce.compress_ddp(DistributedDataParallel(seeded(build)), "baseline").load_residual_state_dict(state)


def test_a_nan_names_its_parameter_and_stays_out_of_the_residual(alone: None) -> None:
    parallel = DistributedDataParallel(seeded(build))
    hook = resireduce.compress_ddp(parallel)
    parallel.module.head.weight.register_hook(lambda grad: grad * torch.nan)
    with pytest.raises(NonFiniteGradient, match=r"gradient of 'head\.weight' holds NaN"):
        loss_of(parallel, torch.Generator()).backward()
    with pytest.raises(RuntimeError):  # the wrapper's own: it does not go on after a failed step
        loss_of(parallel, torch.Generator()).backward()
    assert all(tensor.isfinite().all() for tensor in hook.residual_state_dict().values())


def test_names_are_those_of_the_model_within(alone: None) -> None:
    with pytest.raises(ConfigError, match=r"dense: 'module\.blocks\.\*' matches no parameter"):
        resireduce.compress_ddp(DistributedDataParallel(seeded(build)), dense=("module.blocks.*",))
    for dense, kept in ((None, 9), (("blocks.*",), 1)):
        hook = resireduce.compress_ddp(DistributedDataParallel(seeded(build)), "baseline", dense=dense)
        names = list(residuals(hook))
        assert "full.first.weight" in names and len(names) == kept, names


def test_a_model_that_cannot_be_hooked_is_refused_with_the_cure(alone: None) -> None:
    with pytest.raises(ConfigError, match=r"model: .* type Net is not allowed; give the DistributedDataParallel"):
        resireduce.compress_ddp(seeded(build))  # type: ignore[arg-type]
    twice = DistributedDataParallel(seeded(build))
    resireduce.compress_ddp(twice)
    with pytest.raises(RuntimeError, match="can only be called once"):
        resireduce.compress_ddp(twice)
    distributed = seeded(build)
    optimizer = torch.optim.SGD(distributed.parameters(), 0.1)
    for gradients, said in (("streamed", "somebody else takes it for"), ("kept", "is trained within a wrapper")):
        with resireduce.distribute(distributed, optimizer, backend="local", gradients=gradients):
            wrapped = DistributedDataParallel(distributed)
            resireduce.compress_ddp(wrapped)
            with pytest.raises(UsageError, match=said):
                loss_of(wrapped, torch.Generator()).backward()
        given = DistributedDataParallel(seeded(build))
        plain, refused = torch.optim.SGD(given.parameters(), 0.1), pytest.raises(UsageError, match=said)
        with resireduce.distribute(given, plain, backend="local", gradients=gradients), refused:
            loss_of(given, torch.Generator()).backward()
    with pytest.raises(ConfigError, match=r"scheme: 'w2d'.*did you mean"):
        resireduce.compress_ddp(DistributedDataParallel(seeded(build)), "w2d")
    with pytest.raises(ConfigError, match=r"warm_up_steps: -1 is not allowed"):
        resireduce.compress_ddp(DistributedDataParallel(seeded(build)), warm_up_steps=-1)


def test_sparse_gradients_are_refused_by_torch(alone: None) -> None:
    sparse = DistributedDataParallel(nn.Embedding(200, 100, sparse=True))
    resireduce.compress_ddp(sparse, "baseline")
    with pytest.raises(NotImplementedError, match="Sparse"):
        sparse(torch.tensor([1, 2])).sum().backward()
