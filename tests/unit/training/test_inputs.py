"""What a simulated step is made of, as one rank measures it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.core.cell import Cell
from benchmarks.training.pace_rank import Collective, Compression, Passes
from benchmarks.training.pace_rank import sample_of as sample
from resireduce.comm.local import LocalCommunicator

CELL = Cell(model="gpt2-bytes", compressor="topk", world_size=4)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    meetings: list[None] = []
    monkeypatch.setattr("benchmarks.training.pace_rank.meet", lambda: meetings.append(None))
    return meetings


@pytest.mark.parametrize("levels", [{}, {"hierarchy": "node", "ranks_per_node": 2}])
def test_passes_are_timed_in_their_order_and_every_rank_meets_before_and_after(
    levels: dict[str, Any], met: list[None]
) -> None:
    passes = Passes(replace(CELL, **levels))
    before = [one.clone() for one in passes.trainer.model.parameters()]
    found = passes.sample()
    arrived = found["arrived_seconds"]
    assert [*arrived] == sorted(arrived, key=arrived.__getitem__), "in the order in which gradients come"
    assert {*arrived} == {name for name, _ in passes.trainer.model.named_parameters()}
    assert 0 < found["forward_seconds"] < min(arrived.values())
    assert max(arrived.values()) <= found["backward_seconds"] < found["step_seconds"]
    changed = [not torch.equal(*pair) for pair in zip(before, passes.trainer.model.parameters(), strict=True)]
    assert any(changed) and len(met) == 2, "the update is a part of the step"


def test_every_compressed_tensor_is_timed_with_as_many_payloads_as_are_received() -> None:
    found = Compression(CELL, [2, 4])
    sizes = {
        parameter.numel()
        for name, parameter in found.trainer.model.named_parameters()
        if name not in found.trainer.optimizer.feedback.dense
    }
    rows = found.sample()
    assert {row["elements"] for row in rows} == sizes
    assert all(row["compress_seconds"] > 0 and row["average_seconds"].keys() == {"2", "4"} for row in rows)
    half = Compression(Cell(model="gpt2-bytes", compressor="fp16", scheme="none", world_size=4), [2, 4])
    assert all(row["average_seconds"].keys() == {"1"} for row in half.sample()), "what is summed on its way is one"


@pytest.mark.parametrize(("kind", "dtype"), [("all_reduce", torch.float16), ("all_gather", torch.uint8)])
def test_collectives_have_the_sizes_that_are_asked_for(kind: str, dtype: torch.dtype, met: list[None]) -> None:
    rows = sample(Collective(LocalCommunicator(), kind, dtype, (64, 4096)))
    assert [row["bytes"] for row in rows] == [64, 4096] and len(met) == 4
    assert all(row["in_turn"] > 0 and row["at_once"] > 0 and row["processor"] >= 0 for row in rows)
