"""Ranks in processes of their own: two that share the device and meet over gloo, and one over NCCL."""

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.training.place import settle_arithmetic
from resireduce.comm.local import LocalCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.scheme import COMPRESSORS
from tests.gpu.loops import net, trained
from tests.worlds import same

Check = Callable[[torch.device], None]


def _all_alike(model: torch.nn.Module) -> bool:
    """Whether all ranks hold the same parameters; gloo gathers those of the host only."""
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine)
    return all(torch.equal(mine, other) for other in theirs)


def _share(device: torch.device) -> None:
    """Every compressor, streamed and kept, and residuals of both kinds in the host's memory."""
    for compressor in COMPRESSORS:
        scheme = "none" if compressor == "none" else "w+2d"
        pair = [
            trained(
                device, steps=3, communicator=TorchCommunicator(), compressor=compressor, scheme=scheme, gradients=one
            )
            for one in ("kept", "streamed")
        ]
        assert same(*pair) and not same(pair[0], net(device)), compressor
        assert _all_alike(pair[0]), compressor
    far = trained(device, steps=3, communicator=TorchCommunicator(), scheme="w+2d", residual_device="cpu")
    assert _all_alike(far)


def _share_messages(device: torch.device) -> None:
    """Whatever travels together, also by the times of the first steps, parameters are the same bit for bit."""
    for compressor in ("topk", "threshold", "none"):
        options = {"compressor": compressor, "scheme": "none" if compressor == "none" else "w+2d", "steps": 7}
        made = [
            trained(device, communicator=TorchCommunicator(), merge=merge, **options)  # type: ignore[arg-type]
            for merge in (None, "one", 4096, "mg-wfbp")
        ]
        assert all(same(made[0], other) for other in made) and _all_alike(made[0]), compressor


def _share_by_nodes(device: torch.device) -> None:
    """Two nodes of two ranks: streamed as kept, bit for bit, and all ranks alike."""
    for compressor, scheme in (("topk", "w+2d"), ("threshold", "baseline"), ("none", "none")):
        options = {"compressor": compressor, "scheme": scheme, "hierarchy": [[0, 1], [2, 3]]}
        pair = [
            trained(device, steps=3, communicator=TorchCommunicator(), gradients=one, **options)
            for one in ("kept", "streamed")
        ]
        assert same(*pair) and not same(pair[0], net(device)) and _all_alike(pair[0]), compressor


def _alone(device: torch.device) -> None:
    """One rank sends to itself what it would have kept."""
    for options in ({"scheme": "w+2d"}, {"scheme": "none", "compressor": "none"}, {"compressor": "threshold"}):
        for gradients in ("kept", "streamed"):
            made = [
                trained(device, communicator=one, gradients=gradients, **options)
                for one in (TorchCommunicator(), LocalCommunicator())
            ]
            assert same(*made), options


def _rank(rank: int, size: int, folder: str, backend: str, device: torch.device, checks: Sequence[Check]) -> None:
    torch.set_num_threads(1)
    if device.type == "cuda":
        torch.cuda.set_device(0)
    settle_arithmetic(device)
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    for check in checks:
        check(device)
    dist.barrier()
    dist.destroy_process_group()


def _run(size: int, backend: str, device: torch.device, *checks: Check) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Ranks are forked off a process that has loaded torch; not on a GPU, for which nobody may ask before a fork.
        multiprocessing.set_forkserver_preload([__name__])
        method = "forkserver" if device.type == "cpu" else "spawn"
        mp.start_processes(_rank, (size, folder, backend, device, checks), nprocs=size, start_method=method)


def test_ranks_share_the_device_over_gloo_and_merge_messages(device: torch.device) -> None:
    _run(2, "gloo", device, _share, _share_messages)


def test_two_nodes_share_the_device_over_gloo(device: torch.device) -> None:
    _run(4, "gloo", device, _share_by_nodes)


def test_one_rank_over_nccl(device: torch.device) -> None:
    _run(1, "nccl" if device.type == "cuda" else "gloo", device, _alone)
