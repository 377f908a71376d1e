"""Communicators: the local world, and errors that must not hang."""

import pytest
import torch
from torch import nn

from tests.processes import Checks
from tests.ranks.test_gloo import check_exchange, check_ragged
from tests.threads import LocalWorld
from tests.worlds import distributed


@pytest.mark.parametrize("check", [check_ragged, check_exchange])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_collectives_are_those_of_processes(world_size: int, check: Checks) -> None:
    LocalWorld(world_size).run(check)


def test_messages_of_small_tensors_are_bounded_and_of_one_kind() -> None:
    """Vectors, 28 MB of them and one in float64, which is among them."""
    model = nn.ParameterList(torch.zeros(9_999, dtype=torch.float64 if i == 300 else None) for i in range(701))
    with distributed(model, compressor="none", scheme="none") as optimizer:
        messages = optimizer.messages
    assert sorted(int(name) for names in messages for name in names) == list(range(701)) and ["300"] in messages
    assert len(messages) < 200 and max(map(len, messages)) * 9_999 * 4 <= 25 << 20
