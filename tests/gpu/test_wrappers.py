"""Wrappers of torch on the device, each with what the library puts into it: DistributedDataParallel, and FSDP2."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce.comm.torch import TorchCommunicator
from tests.gpu.loops import SOME, batches, compressors, distributed, net, stream_beside
from tests.gpu.ranks import all_alike, on_ranks
from tests.ranks.fsdp import Sharded, shard
from tests.worlds import OPTIMIZERS, same, seeded, sgd_for

SMALL_BUCKETS = {"bucket_cap_mb": 0.1}
NONE: dict[str, Any] = {"compressor": "none", "scheme": "none"}
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _rank() -> int:
    return torch.distributed.get_rank()


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


# --- DistributedDataParallel ---


def _in_ddp(
    device: torch.device, beside: bool = False, ddp: dict[str, Any] = SMALL_BUCKETS, **options: Any
) -> tuple[nn.Module, Any]:
    """Train the network for three steps in the wrapper; without options with the wrapper's own all-reduce."""
    with stream_beside(device) if beside else nullcontext():
        model = net(device)
        parallel = DistributedDataParallel(model, **ddp)
        hook = resireduce.compress_ddp(parallel, **{"density": 0.05, **options}) if options else None
        optimizer = OPTIMIZERS[sgd_for(options)](list(model.parameters()))
        for batch in batches(device, _rank(), 3):
            optimizer.zero_grad()
            _loss(parallel, batch).backward()
            optimizer.step()
    return model, hook


def _kept(device: torch.device, **options: Any) -> tuple[nn.Module, Any]:
    """Train the network for three steps without a wrapper, with kept gradients."""
    model = net(device)
    optimizer = distributed(model, TorchCommunicator(), gradients="kept", **options)
    for batch in batches(device, _rank(), 3):
        optimizer.zero_grad()
        _loss(model, batch).backward()
        optimizer.step()
    return model, optimizer


def _same_in_ddp(device: torch.device) -> None:
    """All compressors, or some of several ranks, and all kinds of residuals: all is as with kept gradients."""
    names = compressors(device) if torch.distributed.get_world_size() == 1 else SOME
    cases: list[dict[str, Any]] = [{"scheme": "baseline", "compressor": name} for name in names]
    cases += [NONE, {"scheme": "w+2d"}, {"scheme": "w+2d", "residual_dtype": "int4"}, {"scheme": "partial"}]
    cases += [{"scheme": "baseline", "residual_device": "cpu"}]
    for options in cases:
        (hooked, hook), (kept, optimizer) = _in_ddp(device, **options), _kept(device, **options)
        assert same(hooked, kept) and not same(hooked, net(device)), options
        ours, theirs = hook.residual_state_dict(), optimizer.residual_state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours), options
        assert all_alike(hooked), options
        optimizer.close()


def _ddp_as_usual(device: torch.device) -> None:
    """Without compression it is the wrapper's own all-reduce; however buckets are held; in a stream beside, too."""
    assert same(_in_ddp(device)[0], _in_ddp(device, **NONE)[0])
    usual, _ = _in_ddp(device, scheme="w+2d")
    for ddp in ({"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        assert same(usual, _in_ddp(device, ddp=SMALL_BUCKETS | ddp, scheme="w+2d")[0]), ddp
    assert same(usual, _in_ddp(device, beside=True, scheme="w+2d")[0])


def test_one_rank_in_ddp(device: torch.device) -> None:
    on_ranks(1, _backend(device), device, _same_in_ddp, _ddp_as_usual)


def test_two_ranks_in_ddp_share_the_device_over_gloo(device: torch.device) -> None:
    on_ranks(2, "gloo", device, _same_in_ddp, _ddp_as_usual)


# --- FSDP2 ---


def _mesh(device: torch.device) -> DeviceMesh:
    return init_device_mesh(device.type, (1, 1), mesh_dim_names=("replicate", "shard"))


def _sharded(
    device: torch.device, fsdp: dict[str, Any] | None = None, **options: Any
) -> tuple[nn.Module, resireduce.ShardedCompressionHook]:
    mesh = _mesh(device)
    model = shard(seeded(Sharded).to(device), mesh["shard"], **(fsdp or {}))
    return model, resireduce.compress_fsdp(model, mesh["replicate"], **{"density": 0.05, **options})


def _train(device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.Module:
    """Take four steps."""
    for batch in batches(device):
        optimizer.zero_grad()
        _loss(model, batch).backward()
        optimizer.step()
    return model


def _momentum(model: nn.Module, options: dict[str, Any]) -> torch.optim.Optimizer:
    return OPTIMIZERS[sgd_for(options)](list(model.parameters()))


def _values(model: nn.Module) -> dict[str, Tensor]:
    """All parameters, whole."""
    full = ((name, one.full_tensor() if hasattr(one, "full_tensor") else one) for name, one in model.named_parameters())
    return {name: one.detach() for name, one in full}


def _equal(found: nn.Module, expected: nn.Module) -> bool:
    ours, theirs = _values(found), _values(expected)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _as_unsharded(device: torch.device) -> None:
    """One rank holds all of every gradient: parameters and residuals are those of the model without the wrapper."""
    cases: tuple[dict[str, Any], ...] = (
        {"scheme": "baseline"}, {"scheme": "w+2d"}, {"scheme": "w+2d", "residual_dtype": "int4"},
        {"scheme": "baseline", "residual_device": "cpu"}, {"scheme": "baseline", "compressor": "threshold"},
        {"scheme": "baseline", "compressor": "dgc"}, {"scheme": "baseline", "compressor": "powersgd"}, NONE,
    )  # fmt: skip
    for options in cases:
        plain = seeded(Sharded).to(device)
        given = {"density": 0.05, "gradients": "kept", **options}
        optimizer = resireduce.distribute(plain, _momentum(plain, options), backend="local", **given)
        model, hook = _sharded(device, **options)
        _train(device, plain, optimizer)
        _train(device, model, _momentum(model, options))
        assert hook.steps == 4 and _equal(model, plain), options
        assert not _equal(model, seeded(Sharded).to(device)), options
        theirs = optimizer.residual_state_dict()
        ours = {name: one for name, one in hook.residual_state_dict().items() if not name.startswith("shard_")}
        assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
        assert all(torch.equal(ours[name], theirs[name]) for name in ours), options


def _as_fsdp_itself(device: torch.device) -> None:
    """Without compression it is FSDP without the hook, also in mixed precision, and in a stream beside."""
    for fsdp in ({}, {"mp_policy": MIXED}, {"reshard_after_forward": False}):
        made = [shard(seeded(Sharded).to(device), _mesh(device)["shard"], **fsdp), _sharded(device, fsdp, **NONE)[0]]
        usual, ours = (_train(device, model, _momentum(model, NONE)) for model in made)
        assert _equal(ours, usual), fsdp
        if not fsdp:
            with stream_beside(device):
                model, _ = _sharded(device, **NONE)
                _train(device, model, _momentum(model, NONE))
            assert _equal(model, ours)


def test_one_rank_under_fsdp(device: torch.device) -> None:
    on_ranks(1, _backend(device), device, _as_unsharded, _as_fsdp_itself)
