"""Buckets: their borders, and that what a step does does not grow with the number of their tensors."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import resireduce
from resireduce import watchers
from resireduce.core.bucket import Bucket, arrange
from tests.processes import Checks
from tests.ranks.test_gloo import check_exchange, check_ragged
from tests.threads import LocalWorld
from tests.worlds import distributed

MIB = 2**20
MOST_FILES = 12
"""So many files a reader of a plain step opens: one weight, top-k, full residuals, streamed, torch.distributed, and
compiled code on a CPU."""


class Tensor:
    """What decides when its bucket leaves."""

    def __init__(self, name: str, small: bool):
        self.name, self.small = name, small


def test_a_bucket_of_small_tensors_leaves_when_the_next_of_them_begins() -> None:
    order = [Tensor("a", True), Tensor("b", False), Tensor("c", True), Tensor("d", False)]
    assert [one.slots[0].name for one in arrange([Bucket([one]) for one in order], order)] == ["b", "a", "d", "c"]


class Operations(TorchDispatchMode):
    """Counts what torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Plain(torch.optim.SGD):
    """An optimizer whose steps dispatch nothing."""

    step_is_separable = True

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        return


def operations(tensors: int, gradients: str, **options: object) -> Counter[str]:
    """What the library dispatches in the third step of one bucket, the backward pass of the model not counted."""
    model = nn.ParameterList(torch.zeros(110, 100) for _ in range(tensors))
    wrapped = Plain(model.parameters(), lr=0.1)
    optimizer = distributed(model, wrapped, merge="one", density=0.01, gradients=gradients, **options)
    factors = [torch.randn(110, 100, generator=torch.Generator().manual_seed(i)) for i in range(tensors)]
    for _ in range(3):
        optimizer.zero_grad()
        losses = [(one * factor).sum() for one, factor in zip(model, factors, strict=True)]
        with Operations() as seen:
            for loss in reversed(losses):
                loss.backward()
            optimizer.step()
    assert len(optimizer.messages) == 1
    for name in ("ones_like", "expand", "mul"):  # autograd's
        seen.counts[f"aten.{name}.default" if name != "mul" else "aten.mul.Tensor"] -= tensors
    seen.counts["aten.detach.default"] -= tensors
    return +seen.counts


@pytest.mark.parametrize("options", [{}, {"residual_dtype": "int4"}], ids=str)
@pytest.mark.parametrize("gradients", ["kept", "streamed"])
def test_what_is_dispatched_does_not_grow_with_the_tensors_of_a_bucket(
    gradients: str, options: dict[str, object]
) -> None:
    few, many = (operations(tensors, gradients, **options) for tensors in (3, 40))
    # Streamed: memory for the average of each, which is its `.grad`; few bits are written where they were; and on a CPU
    # each is looked at for NaN.
    alone = {"aten.empty.memory_format", "aten.view.default", "aten.sum.default", "aten._local_scalar_dense.default"}
    if torch.__version__.startswith("2.9."):
        alone.add("aten.detach.default")  # later ones detach without dispatching it
    assert {name: count for name, count in many.items() if few[name] != count}.keys() <= alone
    assert sum(few.values()) <= 12 + 3 * len(alone)


def test_a_plain_step_passes_few_files_of_the_library(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "_FOLLOWERS", WeakValueDictionary())  # without those of other tests
    folder, passed = str(Path(resireduce.__file__).parent), set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            passed.add(frame.f_code.co_filename)

    model = nn.Linear(120, 120, bias=False)
    optimizer = distributed(model, backend="torch", scheme="baseline")
    for step in range(4):
        optimizer.zero_grad()
        sys.setprofile(note if step == 3 else None)
        model(torch.ones(2, 120)).sum().backward()
        optimizer.step()
    sys.setprofile(None)
    assert len(passed) <= MOST_FILES, sorted(passed)
    assert not {Path(one).name for one in passed} & {"forms.py", "node.py", "grad_scaler.py", "settings.py"}, "options"


def messages(sizes: list[int], **options: object) -> list[list[int]]:
    """The buckets of square weights of these widths, by number."""
    model = nn.ParameterList(torch.zeros(width, width, device="meta") for width in sizes)
    with distributed(model, **options) as optimizer:
        return [sorted(map(int, names)) for names in optimizer.messages]


def test_a_bucket_is_small_beside_the_model_and_holds_at_most_25_mib() -> None:
    assert messages([128] * 64) == [[i, i + 1] for i in range(62, -1, -2)], "each a 32nd of all"
    assert messages([128] * 10) == [[i] for i in range(9, -1, -1)]
    large = messages([1024] * 300)  # 4 MiB each
    assert {len(one) for one in large} == {6} and sorted(i for one in large for i in one) == [*range(300)]
    assert [300] in messages([1024] * 300 + [4096]), "one that is larger is alone"
    assert messages([128] * 64, merge="none") == [[i] for i in range(63, -1, -1)]


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
