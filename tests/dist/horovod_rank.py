"""One of the ranks that test_horovod starts: every contract over Horovod, and equality with torch.distributed."""

import sys

import horovod.torch as hvd
import torch
import torch.distributed as dist

from resireduce.comm.horovod import HorovodCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.scheme import COMPRESSORS, SCHEMES
from tests.dist import test_gloo
from tests.worlds import Net, same, seeded, train

CHECKS = (
    test_gloo.check_ragged,
    test_gloo.check_ddp,
    test_gloo.check_lifetimes,
    test_gloo.check_start,
    test_gloo.check_optimizer_of_rank_0,
)


def check_same_as_torch(communicator: HorovodCommunicator) -> None:
    """Bit for bit, for every scheme, every compressor, and a model in 16 bits."""
    reference = TorchCommunicator()
    rows = [(scheme, "topk") for scheme in SCHEMES] + [("baseline", compressor) for compressor in COMPRESSORS]
    for dtype in (torch.float32, torch.bfloat16):
        start = seeded(Net).to(dtype)
        for scheme, compressor in rows if dtype == torch.float32 else rows[:1]:
            options = {"scheme": scheme, "compressor": compressor, "steps": 3, "loss": _loss}
            first, _ = train(communicator, start, **options)
            second, _ = train(reference, start, **options)
            assert same(first, second), (scheme, compressor, dtype)


def _loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    x = torch.randn(6, 600, generator=generator).to(next(model.parameters()).dtype)
    return model(x).float().square().mean()


def main(meeting_place: str) -> None:
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=hvd.rank(), world_size=hvd.size())
    communicator = HorovodCommunicator()
    for check in (*CHECKS, check_same_as_torch):
        check(communicator)
        print(f"{check.__name__} passed on rank {hvd.rank()} of {hvd.size()}", flush=True)
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
