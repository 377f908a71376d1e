"""Wrappers of torch on the device, each with what the library puts into it: DistributedDataParallel, and FSDP2."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.parallel import DistributedDataParallel

import resireduce
from resireduce.comm.torch import TorchCommunicator
from tests.gpu.loops import SOME, batches, compressors, distributed, net, stream_beside
from tests.gpu.ranks import all_alike, on_ranks
from tests.ranks.fsdp import Sharded, shard
from tests.worlds import OPTIMIZERS, same, seeded, sgd_for

Options = dict[str, Any]
SMALL_BUCKETS = {"bucket_cap_mb": 0.1}
NONE: Options = {"compressor": "none", "scheme": "none"}
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _train(device: torch.device, called: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in batches(device, torch.distributed.get_rank()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(called(x).float(), y).backward()
        optimizer.step()


def _momentum(model: nn.Module, options: Options) -> torch.optim.Optimizer:
    return OPTIMIZERS[sgd_for(options)](list(model.parameters()))


def _equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- DistributedDataParallel ---


def _in_ddp(device: torch.device, beside: bool = False, ddp: Options | None = None, **options: Any) -> Any:
    """Train the network in the wrapper; without options with the wrapper's own all-reduce."""
    with stream_beside(device) if beside else nullcontext():
        model = net(device)
        parallel = DistributedDataParallel(model, **SMALL_BUCKETS, **(ddp or {}))
        hook = resireduce.compress_ddp(parallel, **{"density": 0.05, **options}) if options else None
        _train(device, parallel, _momentum(model, options))
    return model, hook


def _same_in_ddp(device: torch.device) -> None:
    """All compressors, or some of several ranks, and all kinds of residuals: all is as with kept gradients."""
    names = compressors(device) if torch.distributed.get_world_size() == 1 else SOME
    cases: list[Options] = [{"scheme": "baseline", "compressor": name} for name in names]
    cases += [NONE, {"scheme": "w+2d"}, {"scheme": "w+2d", "residual_dtype": "int4"}, {"scheme": "partial"}]
    cases += [{"scheme": "baseline", "residual_device": "cpu"}]
    for options in cases:
        hooked, hook = _in_ddp(device, **options)
        kept = net(device)
        optimizer = distributed(kept, TorchCommunicator(), gradients="kept", **options)
        _train(device, kept, optimizer)
        assert same(hooked, kept) and not same(hooked, net(device)), options
        assert _equal(hook.residual_state_dict(), optimizer.residual_state_dict()), options
        assert all_alike(hooked), options
        optimizer.close()


def _ddp_as_usual(device: torch.device) -> None:
    """Without compression it is the wrapper's own all-reduce; however buckets are held; in a stream beside, too."""
    assert same(_in_ddp(device)[0], _in_ddp(device, **NONE)[0])
    usual, _ = _in_ddp(device, scheme="w+2d")
    for ddp in ({"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        assert same(usual, _in_ddp(device, ddp=ddp, scheme="w+2d")[0]), ddp
    assert same(usual, _in_ddp(device, beside=True, scheme="w+2d")[0])


def test_ddp_on_one_rank_and_on_two_that_share_the_device_over_gloo(device: torch.device) -> None:
    on_ranks(1, _backend(device), device, _same_in_ddp, _ddp_as_usual)
    on_ranks(2, "gloo", device, _same_in_ddp, _ddp_as_usual)


# --- FSDP2 ---


def _in_fsdp(device: torch.device, fsdp: Options | None = None, **options: Any) -> tuple[dict[str, Tensor], Any]:
    """Train in the wrapper, with its own collectives without options; return all parameters, whole, and the hook."""
    mesh = init_device_mesh(device.type, (1, 1), mesh_dim_names=("replicate", "shard"))
    model = shard(seeded(Sharded).to(device), mesh["shard"], **(fsdp or {}))
    hook = resireduce.compress_fsdp(model, mesh["replicate"], **{"density": 0.05, **options}) if options else None
    _train(device, model, _momentum(model, options))
    return {name: one.full_tensor().detach() for name, one in model.named_parameters()}, hook


def _as_unsharded(device: torch.device) -> None:
    """One rank holds all of every gradient: parameters and residuals are those of the model without the wrapper."""
    cases: tuple[Options, ...] = (
        {"scheme": "baseline"}, {"scheme": "w+2d"}, {"scheme": "w+2d", "residual_dtype": "int4"},
        {"scheme": "baseline", "residual_device": "cpu"}, {"scheme": "baseline", "compressor": "threshold"},
        {"scheme": "baseline", "compressor": "dgc"}, {"scheme": "baseline", "compressor": "powersgd"}, NONE,
    )  # fmt: skip
    for options in cases:
        plain = seeded(Sharded).to(device)
        given = {"density": 0.05, "gradients": "kept", **options}
        optimizer = resireduce.distribute(plain, _momentum(plain, options), backend="local", **given)
        _train(device, plain, optimizer)
        values, hook = _in_fsdp(device, **options)
        assert hook.steps == 4 and _equal(values, dict(plain.named_parameters())), options
        assert not same(plain, seeded(Sharded).to(device)), options
        ours = {name: one for name, one in hook.residual_state_dict().items() if not name.startswith("shard_")}
        assert _equal(ours, optimizer.residual_state_dict()), options


def _as_fsdp_itself(device: torch.device) -> None:
    """Without compression it is FSDP without the hook, also in mixed precision, and in a stream beside."""
    for fsdp in ({}, {"mp_policy": MIXED}, {"reshard_after_forward": False}):
        assert _equal(_in_fsdp(device, fsdp, **NONE)[0], _in_fsdp(device, fsdp)[0]), fsdp
    with stream_beside(device):
        beside = _in_fsdp(device, **NONE)[0]
    assert _equal(beside, _in_fsdp(device)[0])


def test_one_rank_under_fsdp(device: torch.device) -> None:
    on_ranks(1, _backend(device), device, _as_unsharded, _as_fsdp_itself)
