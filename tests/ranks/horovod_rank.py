"""One of the ranks that test_horovod starts: contracts over Horovod, and equality with torch.distributed in 16 bits."""

import sys
import threading

import horovod.torch as hvd
import pytest
import torch
import torch.distributed as dist

import resireduce
from resireduce.comm.horovod import HorovodCommunicator
from resireduce.comm.torch import TorchCommunicator
from resireduce.errors import ConfigError
from tests.ranks import test_gloo
from tests.worlds import Net, same, seeded, train

CHECKS = (
    test_gloo.check_ragged,
    test_gloo.check_exchange,
    test_gloo.check_ddp,
    test_gloo.check_start,
    test_gloo.check_optimizer_of_rank_0,
    test_gloo.check_gradients_that_cannot_be_used,
)


def check_half_precision_is_as_over_torch(communicator: HorovodCommunicator) -> None:
    """A model in bfloat16, which Horovod does not know, bit for bit; test_walk has all others."""
    start, options = seeded(Net).to(torch.bfloat16), {"scheme": "baseline", "steps": 3, "loss": loss}
    first, _ = train(communicator, start, **options)
    second, _ = train(TorchCommunicator(), start, **options)
    assert same(first, second) and not same(first, start)


def check_merged_messages(communicator: HorovodCommunicator) -> None:
    """Whatever travels together, parameters are the same, of gathers of equal sizes and of others."""
    start = seeded(lambda: Net(blocks=1))
    for compressor in ("topk", "threshold"):
        options = {"scheme": "w+2d", "compressor": compressor, "steps": 2, "loss": loss}
        alone, _ = train(communicator, start, **options)
        together, _ = train(communicator, start, merge="one", **options)
        assert same(alone, together) and not same(together, start)


def check_an_optimizer_that_averages_too(communicator: HorovodCommunicator) -> None:
    """Horovod's DistributedOptimizer is refused: its hooks would average gradients while they are compressed."""
    model = seeded(Net)
    theirs = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
    with pytest.raises(ConfigError, match=r"optimizer: horovod\.torch\.DistributedOptimizer is not .*leave it out"):
        resireduce.distribute(model, theirs, backend="horovod")


def check_what_ranks_are_given_at_the_start(communicator: HorovodCommunicator) -> None:
    """States of other parameters are asked about, or stay each rank's own; a number of the rank and a lock stay."""
    model = seeded(Net)
    parameters, rank = [*model.parameters()], communicator.rank
    plain = torch.optim.SGD(parameters, 0.1, momentum=0.9)
    own = {"lock": threading.Lock(), "rank": rank}
    plain.param_groups[0].update(own)
    for one in parameters[rank::2]:
        plain.state[one]["momentum_buffer"] = torch.full_like(one, 1.0 + rank)
    given = {"backend": communicator, "compressor": "none", "scheme": "none"}
    with pytest.raises(ConfigError, match="ranks hold the state of different parameters"):
        resireduce.distribute(model, plain, **given)  # type: ignore[arg-type]
    plain.state_differs_by_rank = True  # type: ignore[attr-defined]
    resireduce.distribute(model, plain, **given).close()  # type: ignore[arg-type]
    assert all(plain.param_groups[0][key] is value for key, value in own.items())
    assert {float(plain.state[one]["momentum_buffer"].max()) for one in parameters[rank::2]} == {1.0 + rank}
    assert plain.state.keys() == set(parameters[rank::2])


def loss(model: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    """Return the mean square of the model's outputs for a random batch in its own precision."""
    x = torch.randn(6, 600, generator=generator).to(next(model.parameters()).dtype)
    return model(x).float().square().mean()


def main(meeting_place: str) -> None:
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gloo", init_method=f"file://{meeting_place}", rank=hvd.rank(), world_size=hvd.size())
    communicator = HorovodCommunicator()
    own = (check_half_precision_is_as_over_torch, check_merged_messages)
    own += (check_what_ranks_are_given_at_the_start,)
    for check in (*CHECKS, *own, check_an_optimizer_that_averages_too):
        check(communicator)
        print(f"{check.__name__} passed on rank {hvd.rank()} of {hvd.size()}", flush=True)
    dist.destroy_process_group()
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
