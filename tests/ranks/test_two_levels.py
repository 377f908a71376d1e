"""Two levels of ranks between processes, over gloo: 2 nodes x 2 ranks."""

import os

import pytest
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.comm.nodes import find_nodes
from resireduce.errors import ConfigError
from tests.processes import all_equal, check_collectives_between, on_processes
from tests.worlds import Net, distributed, same, seeded, train, train_world


def halves(communicator: Communicator) -> list[list[int]]:
    """Two nodes."""
    ranks = [*range(communicator.world_size)]
    return [ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]]


def check_lifetimes(communicator: Communicator) -> None:
    """Streamed = kept, ranks agree, and gloo = the local world (of two ranks a level: more are summed otherwise)."""
    start, nodes = seeded(Net), halves(communicator)
    for scheme, compressor in (("w+2d", "topk"), ("baseline", "threshold"), ("baseline", "qsgd"), ("none", "none")):
        options = {"scheme": scheme, "compressor": compressor, "steps": 3, "hierarchy": nodes}
        kept, _ = train(communicator, start, gradients="kept", **options)  # type: ignore[arg-type]
        streamed, _ = train(communicator, start, gradients="streamed", **options)  # type: ignore[arg-type]
        assert same(kept, streamed) and all_equal(streamed) and not same(streamed, start)
        assert same(train_world(4, start, gradients="streamed", **options)[0][0], streamed)


def check_collectives_of_the_user(communicator: Communicator) -> None:
    """With layers that only one rank of each node uses."""
    model = seeded(lambda: nn.Sequential(*[nn.Linear(120, 120) for _ in range(4)]))
    optimizer = distributed(model, lr=0.01, backend=communicator, hierarchy=halves(communicator))
    check_collectives_between(optimizer, model, model if communicator.rank % 2 else [model[0], model[3]])


def check_how_nodes_are_given(communicator: Communicator) -> None:
    """Lists and Slurm's numbers mean the same."""
    lists = halves(communicator)
    wanted = tuple(map(tuple, lists))
    os.environ |= {"SLURM_PROCID": str(communicator.rank), "SLURM_STEP_NUM_TASKS": str(communicator.world_size)}
    os.environ |= {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_NODEID": str(communicator.rank // len(lists[0]))}
    for given in (lists, "node"):
        assert find_nodes(communicator, given) == wanted


def check_a_hierarchy_that_one_rank_was_given_alone(communicator: Communicator) -> None:
    with pytest.raises(ConfigError, match=r"hierarchy: .* on rank|differ between ranks"):
        train(communicator, seeded(Net), hierarchy="flat" if communicator.rank else halves(communicator))


def test_two_nodes_of_two_ranks() -> None:
    """The last check changes the environment."""
    on_processes(
        4, check_lifetimes, check_collectives_of_the_user,
        check_a_hierarchy_that_one_rank_was_given_alone, check_how_nodes_are_given,
    )  # fmt: skip
