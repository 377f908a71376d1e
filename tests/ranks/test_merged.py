"""Merged messages between processes, over gloo, whose all-reduce rounds by place where three ranks or more meet."""

from itertools import cycle

import pytest
import torch
from torch import nn

from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from tests.processes import all_equal, on_processes
from tests.worlds import Net, same, seeded, train

LISTS = [["first.weight", "blocks.0.down.weight"], ["blocks.2.up.weight", "blocks.1.up.weight"]]
CASES: tuple[dict[str, object], ...] = (
    {"scheme": "w+2d", "gradients": "streamed"},
    {"scheme": "baseline", "gradients": "kept", "compressor": "threshold", "residual_dtype": "int8"},
    {"scheme": "baseline", "dense": ["first.weight"]},
    {"scheme": "w+2d", "hierarchy": [[0, 1], [2, 3]], "residual_dtype": "int8"},
    {"scheme": "w+2d", "hierarchy": [[0, 1, 2, 3]]},
    {"scheme": "baseline", "compressor": "fp8-two-phase"},
)


def wide() -> nn.Module:
    """A net of which the blocks are compressed, too."""
    return Net(width=104)


def check_gathered_messages(communicator: Communicator) -> None:
    """Bit for bit those of tensors that travel alone: what is summed keeps its place in its message."""
    start = seeded(wide)
    for case, merge in zip(CASES, cycle(("one", 20_000, LISTS)), strict=False):
        alone, _ = train(communicator, start, steps=2, merge="none", **case)  # type: ignore[arg-type]
        together, optimizer = train(communicator, start, steps=2, merge=merge, **case)  # type: ignore[arg-type]
        assert same(alone, together) and all_equal(together) and not same(together, start), (case, merge)
        assert merge == 20_000 or any(len(names) > 1 and "weight" in names[0] for names in optimizer.messages)


def check_summed_messages(communicator: Communicator) -> None:
    """Equal within rounding on four ranks, bit for bit on two a level."""
    start = seeded(wide)
    for compressor, warm_up_steps in (("none", 0), ("fp16", 0), ("topk", 2)):
        for hierarchy in ("flat", [[0, 1], [2, 3]]):
            given = {"scheme": "none", "compressor": compressor, "hierarchy": hierarchy, "steps": 2}
            options = {**given, "warm_up_steps": warm_up_steps}
            alone, _ = train(communicator, start, **options)  # type: ignore[arg-type]
            together, _ = train(communicator, start, merge="one", **options)  # type: ignore[arg-type]
            assert all_equal(together) and not same(together, start)
            rounding = {"rtol": 0.0, "atol": 1e-4 if hierarchy == "flat" else 0.0}
            torch.testing.assert_close(
                torch.cat([p.flatten() for p in together.parameters()]),
                torch.cat([p.flatten() for p in alone.parameters()]),
                **rounding,
            )


def check_messages_that_one_rank_was_given_alone(communicator: Communicator) -> None:
    with pytest.raises(ConfigError, match=r"merge: .* on rank|differ between ranks"):
        train(communicator, seeded(wide), merge="one" if communicator.rank else LISTS)


def test_merged_messages_of_four_ranks() -> None:
    on_processes(4, check_gathered_messages, check_summed_messages, check_messages_that_one_rank_was_given_alone)
