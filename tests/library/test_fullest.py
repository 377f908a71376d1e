"""The fullest moment of a whole step, planned: beside a GPU's allocator and torch's own tracker."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker

from benchmarks.core.registry import MODELS
from benchmarks.core.workloads import WORKLOADS
from benchmarks.training.optimizers import make_optimizer
from resireduce import __main__ as command_line
from resireduce.__main__ import main
from resireduce.comm.local import PretendCommunicator
from resireduce.errors import ConfigError
from resireduce.plan import plan
from resireduce.planning import fullest
from resireduce.planning.fullest import Held, hold, largest_batch, most_of, trace_passes
from resireduce.scheme import load
from resireduce.settings import Settings

RECORD = Path(__file__).parents[2] / "results/reference/nvidia-h200/memory.json"
WITHIN = 0.05
SLICES = ".slices."
"""Records of gradients in slices of rows, which the library cannot make any more."""


def built(model: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return model()


class Block(nn.Module):
    """A part that holds two activations of (batch, 4 * width) and one of (batch, width)."""

    def __init__(self, width: int = 128):
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.narrow(torch.tanh(self.wide(x))))


class Net(nn.Module):
    """Blocks in a list, and a last layer that makes logits."""

    def __init__(self, count: int = 3):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(count)])
        self.head = nn.Linear(128, 2000)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def inputs(model: nn.Module, batch: int) -> Tensor:
    return nn.functional.cross_entropy(model(torch.zeros(batch, 128)), torch.zeros(batch, dtype=torch.long))


def whole(options: dict[str, Any], batch: int, optimizer: str = "adamw", **of_optimizer: object) -> dict[str, Any]:
    """The fullest moment alone, without other choices, which take most of the time."""
    model = built(Net)
    passes = trace_passes(model, inputs, batch)
    order = [one for one, _, _ in passes.handed]
    given = Settings(backend=PretendCommunicator(2), **options)
    return most_of(passes, hold(model, order, given, optimizer, of_optimizer))


CASES = sorted(json.loads(RECORD.read_text())["cases"], key=lambda case: str(case["name"]))


@pytest.mark.parametrize("model", sorted({case["cell"]["model"] for case in CASES}))
def test_the_plan_is_within_five_per_cent_of_what_an_allocator_held(model: str) -> None:
    cases = [case for case in CASES if case["cell"]["model"] == model and SLICES not in case["name"]]
    build, recipe = load(MODELS[model]), WORKLOADS[model]
    module = built(build)
    passes = trace_passes(module, build.inputs, recipe.batch_per_rank)
    order, missed, compared = [one for one, _, _ in passes.handed], {}, 0
    for case in cases:
        cell = case["cell"]
        given = Settings(
            scheme=cell["scheme"],
            gradients=cell["gradients"],
            residual_dtype=cell["residual_dtype"],
            compressor=cell["compressor"],
            density=cell["density"],
            merge="none",  # as the cells that were measured
            backend=PretendCommunicator(cell["world_size"]),
        )

        def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
            return make_optimizer(recipe, nn.ParameterList(parameters))

        planned = most_of(passes, hold(module, order, given, make, {}))["fullest_bytes"]
        for rank in case["ranks"]:
            held = {rung["name"]: rung["bytes"] for rung in rank["memory"]["ladder"]}["peak_allocated"]
            compared += 1
            if abs(planned / held - 1) > WITHIN:
                missed[case["name"]] = planned / held - 1
    assert compared >= 4
    assert not missed


def test_passes_are_to_the_byte_what_torch_s_own_tracker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fullest, "allocated", lambda nbytes: nbytes)
    layers = [nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 300), nn.Tanh(), nn.Linear(300, 40)]
    model = built(lambda: nn.Sequential(*layers)).to("meta")

    def loss(model: nn.Module, batch: int) -> Tensor:
        out: Tensor = model(torch.zeros(batch, 64)).square().mean()
        return out

    passes = trace_passes(model, loss, 500)
    bytes_of = sum(one.nbytes for one in model.parameters())
    states = {"parameters": bytes_of, "residuals": 0, "optimizer_states": 0}
    held = Held(states, bytes_of, {one: (one.nbytes, one.nbytes) for one, _, _ in passes.handed}, 0, True)
    found = most_of(passes, [held])
    tracker = MemTracker()
    tracker.track_external(model)
    with torch.device("meta"), tracker:
        loss(model, 500).backward()
    (counted,) = tracker.get_tracker_snapshot("peak").values()
    assert found["fullest_bytes"] - fullest.WORKSPACES == counted["Total"]
    assert found["fullest_gradients_bytes"] > 0 and found["fullest_at"] == "backward"


def test_checkpoints_keep_the_inputs_of_blocks_and_chunks_some_rows_of_logits() -> None:
    batch, model = 4000, built(partial(Net, 6))
    plain, anew = (trace_passes(model, inputs, batch, checkpointed) for checkpointed in (False, True))
    chunked = trace_passes(model, inputs, batch, True, 100)
    row, logits = 4 * batch * 128, 4 * batch * 2000
    # A block keeps its input, tanh's output of four rows, and a mask of a quarter; a checkpoint keeps the input alone.
    assert plain.forward - anew.forward == pytest.approx(6 * (4 + 1 / 4) * row, rel=0.01)
    assert anew.forward == pytest.approx(7 * row + 2 * logits, rel=0.01), "logits, and their logarithms"
    assert chunked.forward == pytest.approx((6 + 4 + 4) * row, rel=0.01), "the last block, with what tanh is given"
    few = trace_passes(model, inputs, batch, True, 10)  # 400 chunks, most of which are counted together
    assert few.forward == pytest.approx(chunked.forward, rel=0.01)
    assert few.after == pytest.approx(chunked.after, rel=0.01) and len(few.handed) == len(chunked.handed)
    most = [max(one for _, one, _ in passes.handed) for passes in (few, chunked)]
    assert most[0] <= most[1] and most[1] - most[0] < 3 * 4 * 90 * 2000, "logits of fewer rows, and their gradients"
    assert model.blocks[0].forward.__self__ is model.blocks[0], "the model is left as it was"


def test_a_plan_with_a_batch_says_what_fits_and_what_other_choices_hold() -> None:
    """Each as if it had been asked for, and all that a plan without a batch says."""
    plain = plan(Net, optimizer="adamw", world_size=2)
    found = plan(Net, optimizer="adamw", world_size=2, inputs=inputs, batch=64, memory="200MB")
    assert plain == {key: found[key] for key in plain}
    more = {key for key in found.keys() - plain.keys() if not key.startswith("fullest_")}
    assert more == {"choices", "memory_bytes", "fits", "largest_batch"}
    assert found["fits"] and found["memory_bytes"] == 200_000_000
    near = [whole({}, found["largest_batch"] + one)["fullest_bytes"] for one in (0, 1)]
    assert near[0] <= 200_000_000 < near[1]
    rows = {row["choice"]: row["fullest_bytes"] for row in found["choices"]}
    assert rows["as asked"] == found["fullest_bytes"] == whole({}, 64)["fullest_bytes"]
    for kind in (
        "full residuals, kept",
        "int4 residuals, streamed",
        "no compression, kept",
        "no compression, streamed",
    ):
        assert rows[kind] == whole(fullest.KINDS[kind], 64)["fullest_bytes"], kind
    assert rows["as asked, adamw with fused=True"] == whole({}, 64, fused=True)["fullest_bytes"]
    assert rows["as asked, sgd"] == whole({}, 64, "sgd")["fullest_bytes"]
    expected = whole(fullest.KINDS["int4 residuals, streamed"], 64, "second-moment-adamw")["fullest_bytes"]
    assert rows["int4 residuals, streamed, no first moment"] == expected < rows["int4 residuals, streamed"]


@pytest.mark.parametrize("limit", [0, 1, 7, 1000, 10**7])
def test_the_largest_batch_of_any_growth(limit: int) -> None:
    """Flat at first, as where an update is the fullest moment."""
    calls: list[int] = []

    def of(batch: int) -> int:
        calls.append(batch)
        return max(700, 100 + 3 * batch)

    memory = max(699, 100 + 3 * limit) if limit else 699
    expected = 0 if memory < 700 else min(2**20, (memory - 100) // 3)
    assert largest_batch(of, 4, of(4), memory) == expected
    assert len(calls) < 40


def nothing_of_the_model(model: nn.Module, batch: int) -> Tensor:
    return torch.zeros(batch)


def wrong_width(model: nn.Module, batch: int) -> Tensor:
    out: Tensor = model(torch.zeros(batch, 3)).sum()
    return out


PLAIN: dict[str, Any] = {"build": partial(nn.Sequential, nn.Linear(128, 9)), "batch": 2}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memory": "24GB"}, "memory: '24GB' is not allowed; give batch, the samples of a step, with it"),
        ({"checkpoint": True}, "checkpoint: True is not allowed; give batch"),
        ({"batch": 0}, "batch: 0 is not allowed; give a number of samples, 1 or more"),
        ({"batch": 2, "inputs": None}, "inputs: None is not allowed; give module:callable"),
        ({"batch": 2, "memory": "24 bananas"}, "memory: '24 bananas' is not allowed; give a number of bytes"),
        ({"batch": 2, "loss_chunk": 0}, "loss_chunk: 0 is not allowed; give a number of rows, 1 or more"),
        ({"batch": 2, "inputs": nothing_of_the_model}, "inputs: it returns a tensor of shape (2,), no scalar"),
        ({"batch": 2, "inputs": wrong_width}, "inputs: no loss with a batch of 2 on the meta device: RuntimeError: "),
        (PLAIN | {"checkpoint": True}, "checkpoint: True is not allowed; give it for a model with an nn.ModuleList or"),
        (PLAIN | {"loss_chunk": 64}, "loss_chunk: 64 is not allowed; give it for a model with get_output_embeddings()"),
    ],
    ids=lambda one: one[:40] if isinstance(one, str) else "",
)
def test_what_cannot_be_planned_is_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(**{"build": Net, "inputs": inputs} | given)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_command_says_what_each_choice_holds_and_what_it_is_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = "tests.library.test_fullest"
    command = ["plan", "--model", f"{here}:Net", "--optimizer", "adamw", "--batch", "64", "--input", f"{here}:inputs"]
    assert main([*command, "--checkpoint", "--loss-chunk", "16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["choices"][0]["checkpointed_chunked_fullest_bytes"] == found["fullest_bytes"]
    monkeypatch.setattr(command_line, "SILENT_SECONDS", -1)
    assert main([*command, "--memory", "70MiB"]) == 0
    said = capsys.readouterr()
    assert "It does not fit into 70.00 MiB; the largest batch that does is 0" in said.out
    assert " s: the model's own step with a batch of 64\n" in said.err
