"""Buckets: their borders, and how few files of the library a plain step passes."""

import sys
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import resireduce
from resireduce import watchers
from tests.worlds import distributed

MOST_FILES = 12
"""So many files a reader of a plain step opens: one weight, top-k, full residuals, streamed, torch.distributed."""


def test_a_plain_step_passes_few_files_of_the_library(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "_FOLLOWERS", {})  # without what other tests of this process have left
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
