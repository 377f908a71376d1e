"""The code and the tables of docs/fsdp.md, as they stand there."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from benchmarks.training.sharded import measure
from resireduce.comm.base import Communicator
from resireduce.errors import ConfigError
from tests.processes import on_processes
from tests.ranks.fsdp import whole
from tests.ranks.trainers import change, loss, seeded_gpt2, shared_folder, tokens
from tests.worlds import residuals

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/fsdp.md").read_text(encoding="utf-8")
PROGRAM, REDISTRIBUTED, ACCELERATED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SIZES = "NODES, STEPS, SAVE_EVERY, CONTEXT, WIDTH = 2, 300, 100, 64, 128"


def run(steps: int) -> dict[str, object]:
    """What the program has made after so many steps, saving every second; torchrun has joined the ranks already."""
    names: dict[str, object] = {}
    code = change(PROGRAM, {SIZES: f"NODES, STEPS, SAVE_EVERY, CONTEXT, WIDTH = 2, {steps}, 2, 16, 104"})
    joined = patch("torch.distributed.init_process_group"), patch("torch.distributed.destroy_process_group")
    with joined[0], joined[1]:
        exec(code, names)
    dist.barrier()
    return names


def check_program() -> None:
    """Stopped after two steps and started again, it is where one is that was never stopped."""
    run(2)
    with shared_folder():
        expected = run(4)
    found = run(4)
    assert found["hook"].steps == 4 and residuals(found["hook"])  # type: ignore[attr-defined]
    ours, theirs = whole(found["model"]), whole(expected["model"])  # type: ignore[arg-type]
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    before = {name: tensor.clone() for name, tensor in found["hook"].residual_state_dict().items()}  # type: ignore[attr-defined]
    exec(change(REDISTRIBUTED, {"000300": "000004"}), found)
    after = found["hook"].residual_state_dict()  # type: ignore[attr-defined]
    for name, tensor in before.items():  # shared out to as many replicas as before
        torch.testing.assert_close(after[name], tensor)


@contextmanager
def accelerated() -> Iterator[None]:
    """The environment of `accelerate launch`, on CPUs in place of the GPUs without which it knows no FSDP."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType

    rank = str(dist.get_rank())
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    backend = patch.object(PartialState, "_prepare_backend", lambda *_, **__: ("gloo", DistributedType.MULTI_XPU))
    device = patch.object(PartialState, "set_device", lambda self: setattr(self, "device", torch.device("cpu")))
    try:
        with patch.dict(os.environ, environment), backend, device:
            yield
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def check_accelerated() -> None:
    names = {"model": seeded_gpt2(), "dataset": tokens(64), "loss": loss}
    before = {name: tensor.clone() for name, tensor in names["model"].state_dict().items()}  # type: ignore[attr-defined]
    with accelerated():
        exec(ACCELERATED, names)
    with accelerated(), pytest.raises(ConfigError, match="sharded over a mesh that has replicas too"):
        exec(change(ACCELERATED, {"= ShardsAlone(": "= ParallelismConfig("}), names | {"model": seeded_gpt2()})
    assert names["compressed"].steps == 2, "64 samples on four ranks, 4 at once, two passes a step"  # type: ignore[attr-defined]
    after = whole(names["model"])  # type: ignore[arg-type]
    assert not torch.equal(after["transformer.wte.weight"], before["transformer.wte.weight"])


def check_measured() -> None:
    """What the table compares: between nodes half of what flat compression gathers, and residuals of half the size."""
    flat, sliced = measure(steps=1, seed=0, names=("flat", "fsdp"))
    assert flat["perplexity"] > 1 and sliced["perplexity"] > 1
    assert flat["residuals_bytes"] == 2 * sliced["residuals_bytes"] > 0
    gathered = 0.01 * 8 * flat["residuals_bytes"] / 4  # of a node: a value and an index for each element that is sent
    assert flat["node_bytes_per_step"] - sliced["node_bytes_per_step"] == pytest.approx(gathered, rel=0.02)


def check_page(communicator: Communicator) -> None:
    for check in (check_program, check_accelerated, check_measured):
        with shared_folder():
            check()


def test_the_program_and_the_trainer_of_the_page_train_on_four_ranks() -> None:
    on_processes(4, check_page)
