"""`plan(shards=...)` is what a rank holds under FSDP2 with `compress_fsdp`, to the byte."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from resireduce import ShardedCompressionHook
from resireduce.comm.base import Communicator
from resireduce.plan import plan
from tests.processes import on_processes
from tests.ranks.fsdp import Sharded, compressed, loss_of, mesh_of
from tests.worlds import OPTIMIZERS, residuals

SETTINGS: list[dict[str, Any]] = [
    *({"scheme": scheme} for scheme in ("baseline", "w", "2d", "w+2d", "partial", "none")),
    *({"scheme": "w+2d", "residual_dtype": dtype} for dtype in ("bfloat16", "int8", "int4")),
    {"scheme": "none", "compressor": "none"},
    {"scheme": "baseline", "compressor": "dgc-momentum"},
    {"scheme": "w+2d", "residual_device": "cpu"},
    {"scheme": "baseline", "dense": ["head.*"], "compressor": "fp16"},
]


class Frozen(Sharded):
    """A sharded net whose first layer is frozen, and which has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.blocks.register_buffer("counts", self.norm.weight.detach().clone())


def nbytes(tensors: Iterable[Any]) -> int:
    """Bytes of what this rank holds of them; a DTensor's are those of its slice."""
    return sum((one.to_local() if hasattr(one, "to_local") else one).nbytes for one in tensors)


def held(model: nn.Module, optimizer: Any, hook: ShardedCompressionHook, host: bool) -> Counter[str]:
    state, left = hook.residual_state_dict(), residuals(hook)
    on_host = [one for key, one in left.items() if host and not key.endswith((".rows", ".columns"))]
    trained = [one for one in model.parameters() if one.requires_grad]
    kept = [value for one in optimizer.state.values() for value in one.values() if isinstance(value, Tensor)]
    stored = [*left.values(), *(one for key, one in state.items() if key.startswith("compressor."))]
    return Counter(
        parameters=nbytes(trained),
        gradients=nbytes(one.grad for one in trained),
        residuals=nbytes(stored) - nbytes(on_host),
        optimizer_states=nbytes([*kept, *(one for key, one in state.items() if key.startswith("momentum."))]),
        host_residuals=nbytes(on_host),
        frozen=nbytes(one for one in model.parameters() if not one.requires_grad),
        buffers=nbytes(model.buffers()),
    )


def check_settings(mesh: DeviceMesh, build: type[nn.Module], name: str, settings: dict[str, Any]) -> None:
    name = "sgd" if settings.get("compressor") == "dgc-momentum" else name
    model, hook = compressed(mesh, build, **settings)
    optimizer = OPTIMIZERS[name]([one for one in model.parameters() if one.requires_grad])
    for seed in range(2):
        optimizer.zero_grad()
        loss_of(model, torch.Generator().manual_seed(10 * seed + dist.get_rank())).backward()
        optimizer.step()
    planner = "sgd" if name in ("sgd", "momentum") else name
    planned = plan(build, optimizer=planner, world_size=4, shards=mesh["shard"].size(), density=0.05, **settings)
    found = held(model, optimizer, hook, "residual_device" in settings)
    if mesh["shard"].get_local_rank() == 0:
        assert {key: planned[key] for key in found} == found, (settings, name)
    else:
        assert all(found[key] <= planned[key] for key in found), "the first rank holds most"


def check_plans(_: Communicator) -> None:
    mesh = mesh_of(2, 2)
    for number, settings in enumerate(SETTINGS):
        check_settings(mesh, Frozen if number % 2 else Sharded, ("momentum", "adamw")[number // 2 % 2], settings)
    check_settings(mesh_of(1, 4), Sharded, "adamw", {"scheme": "w+2d"})


def test_a_plan_for_shards_is_what_each_first_rank_holds_to_the_byte() -> None:
    on_processes(4, check_plans)
