"""One of the four ranks that test_horovod starts: two levels over Horovod, whose process sets are made at its start.

And the same over torch.distributed, bit for bit: of two ranks a level nothing is summed in another order.
"""

import sys

import horovod.torch as hvd
import numpy as np
import pytest
import torch
import torch.distributed as dist

from resireduce.comm.horovod import HorovodCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError
from tests.nodes import by_hand, given_gradients
from tests.ranks.horovod_rank import loss
from tests.ranks.walk import small
from tests.worlds import same, seeded, train

NODES = [[0, 1], [2, 3]]
SETS = [*NODES, [0, 2], [1, 3]]


def check_the_definition(communicator: HorovodCommunicator) -> None:
    gradients = np.random.default_rng(3).normal(size=(3, 4, 107, 100))
    moved, _, _ = by_hand(gradients, NODES, 0.01)
    found, _ = given_gradients(communicator, gradients, density=0.01, hierarchy=NODES)
    np.testing.assert_allclose(found.numpy(), moved, rtol=1e-12, atol=1e-12)


def check_that_it_is_as_over_torch(communicator: HorovodCommunicator) -> None:
    """Kept with unequal payloads, and streamed in bfloat16, which Horovod does not know."""
    other = TorchCommunicator()
    for dtype, compressor, gradients in (
        (torch.float32, "threshold", "kept"),
        (torch.bfloat16, "topk", "streamed"),
    ):
        start = seeded(small).to(dtype)
        scheme = "none" if compressor == "none" else "w+2d"
        options = {"scheme": scheme, "compressor": compressor, "gradients": gradients, "steps": 2, "hierarchy": NODES}
        first, _ = train(communicator, start, loss=loss, **options)  # type: ignore[arg-type]
        second, _ = train(other, start, loss=loss, **options)  # type: ignore[arg-type]
        assert same(first, second) and not same(first, start), (dtype, compressor)


def check_that_process_sets_are_asked_for(communicator: HorovodCommunicator) -> None:
    """Of nodes that nobody told Horovod of when it started."""
    with pytest.raises(
        ConfigError, match=r"init\(process_sets=\[hvd\.ProcessSet\(\[0, 3\]\), hvd\.ProcessSet\(\[1, 2\]"
    ):
        train(communicator, seeded(small), hierarchy=[[0, 3], [1, 2]])


CHECKS = (
    check_the_definition,
    check_that_it_is_as_over_torch,
    check_that_process_sets_are_asked_for,
)


def main(meeting_place: str) -> None:
    torch.set_num_threads(1)
    hvd.init(process_sets=[hvd.ProcessSet(ranks) for ranks in SETS])
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=hvd.rank(), world_size=hvd.size())
    communicator = HorovodCommunicator()
    for check in CHECKS:
        check(communicator)
        print(f"{check.__name__} passed on rank {hvd.rank()} of {hvd.size()}", flush=True)
    dist.barrier()  # Horovod shuts down on all ranks as soon as one leaves
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
