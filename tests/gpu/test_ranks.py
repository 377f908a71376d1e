"""Ranks in processes of their own: two that share the device and meet over gloo, and one over NCCL."""

import torch

from resireduce.comm.torch import TorchCommunicator
from tests.gpu.loops import compressors, net, trained
from tests.gpu.ranks import all_alike, on_ranks
from tests.worlds import same


def _share(device: torch.device) -> None:
    """Compressors and none, streamed and kept, and residuals of both kinds in the host's memory."""
    for compressor in (*compressors(device), "none"):
        scheme = "none" if compressor == "none" else "w+2d"
        options = {"steps": 3, "communicator": TorchCommunicator(), "compressor": compressor, "scheme": scheme}
        pair = [trained(device, gradients=one, **options) for one in ("kept", "streamed")]  # type: ignore[arg-type]
        assert same(*pair) and not same(pair[0], net(device)), compressor
        assert all_alike(pair[0]), compressor
    far = trained(device, steps=3, communicator=TorchCommunicator(), scheme="w+2d", residual_device="cpu")
    assert all_alike(far)


def _share_messages(device: torch.device) -> None:
    """Whatever travels together, also by the times of the first steps, parameters are the same bit for bit."""
    for compressor in ("topk", "threshold", "none"):
        options = {"compressor": compressor, "scheme": "none" if compressor == "none" else "w+2d", "steps": 7}
        made = [
            trained(device, communicator=TorchCommunicator(), merge=merge, **options)  # type: ignore[arg-type]
            for merge in (None, "one", 4096, "mg-wfbp")
        ]
        assert all(same(made[0], other) for other in made) and all_alike(made[0]), compressor


def _ways(device: torch.device) -> None:
    """Without compression, however averages come back and are used."""

    def train(**options: object) -> torch.nn.Module:
        return trained(device, communicator=TorchCommunicator(), steps=3, **options)  # type: ignore[arg-type]

    usual = train(compressor="none", scheme="none")
    for way in ({"gradients": "kept"}, {"update": "in_backward"}):
        assert same(train(compressor="none", scheme="none", **way), usual), way
    assert same(train(warm_up_steps=3), usual) and all_alike(usual)


def test_ranks_share_the_device_over_gloo_and_merge_messages(device: torch.device) -> None:
    on_ranks(2, "gloo", device, _share, _share_messages, _ways)


def test_one_rank_over_nccl(device: torch.device) -> None:
    on_ranks(1, "nccl" if device.type == "cuda" else "gloo", device, _ways)
