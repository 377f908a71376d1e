"""`python docs/build_fullest.py`: the tables of docs/memory.md about the fullest moment, by plan; it takes minutes.

Given names of models, it makes their rows anew and leaves the others as they are.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.analysis.labels import markdown_table
from benchmarks.core.registry import MODELS
from resireduce.grouping import compressible, find_groups
from resireduce.plan import plan
from resireduce.scheme import load

PAGE = Path(__file__).parent / "memory.md"
ROWS = {
    "resnet50": "ResNet-50, SGD",
    "vgg19": "VGG-19, SGD",
    "bert-base": "BERT-base, AdamW",
    "bert-large": "BERT-large, AdamW",
    "gpt2-medium": "GPT-2 medium, AdamW",
    "gpt2-large": "GPT-2 large, AdamW",
    "vgg-digits": "vgg-digits, SGD",
    "resnet-digits": "resnet-digits, SGD",
    "gpt2-bytes": "gpt2-bytes, AdamW",
    "bert-questions": "bert-questions, AdamW",
}
BETWEEN, FULLEST, BOUND = "normalised", "peak_normalised", "bound"


@dataclass(frozen=True)
class Column:
    """What stands in a column: which figure of which plan."""

    title: str
    figure: str
    scheme: str = "baseline"
    precision: str | None = None
    world_size: int = 2
    slices: bool | None = True


TABLES = {
    "precisions": [
        Column("float32, between steps", BETWEEN),
        Column("fullest, 2 ranks", FULLEST),
        Column("without slices", FULLEST, slices=None),
        Column("64 ranks", FULLEST, world_size=64),
        Column("bfloat16, between", BETWEEN, precision="bfloat16"),
        Column("fullest", FULLEST, precision="bfloat16"),
        Column("int8, between", BETWEEN, precision="int8"),
        Column("fullest", FULLEST, precision="int8"),
        Column("int4, between", BETWEEN, precision="int4"),
        Column("fullest", FULLEST, precision="int4"),
    ],
    "schemes": [
        Column("`w`, between steps", BETWEEN, "w"),
        Column("at least", BOUND, "w"),
        Column("fullest", FULLEST, "w"),
        Column("`2d`, between", BETWEEN, "2d"),
        Column("fullest", FULLEST, "2d"),
        Column("`w+2d`, between", BETWEEN, "w+2d"),
        Column("at least", BOUND, "w+2d"),
        Column("fullest", FULLEST, "w+2d"),
        Column("64 ranks", FULLEST, "w+2d", world_size=64),
        Column("without slices", FULLEST, "w+2d", slices=None),
    ],
}


@cache
def planned(model: str, scheme: str, precision: str | None, world_size: int, slices: bool | None) -> dict[str, Any]:
    """Return the plan of a model with streamed gradients and top-k at 0.01."""
    optimizer = "sgd" if "SGD" in ROWS[model] else "adamw"
    return plan(
        load(MODELS[model]), optimizer=optimizer, scheme=scheme, residual_dtype=precision, gradients="streamed",
        compressor="topk", density=0.01, world_size=world_size, slices=slices,
    )  # fmt: skip


def open_sums(model: nn.Module) -> int:
    """Return the most bytes of sums, in float32, of groups of which some members have come and some are still to come.

    Gradients come last layer first. model: may be without storage.
    """
    groups = find_groups(model, compressible(model)).groups
    group_of = {name: group for group in groups for name in group}
    come, most, nbytes = dict.fromkeys(groups, 0), 0, {n: 4 * p.numel() for n, p in model.named_parameters()}
    for name in reversed([name for name in nbytes if name in group_of]):
        come[group_of[name]] += 1
        most = max(most, sum(nbytes[group[0]] for group in groups if 0 < come[group] < len(group)))
    return most


def bound(model: str, scheme: str) -> float:
    """Return what every form holds at its fullest at least, in parts of the paper's states: docs/memory.md says why."""
    found = planned(model, scheme, None, 2, True)
    with torch.device("meta"):
        built = load(MODELS[model])()
    shared = [name for name, why in found["twice_gradients"].items() if "share" in why]
    whole = sum(parameter.nbytes for name, parameter in built.named_parameters() if name in shared)
    return float((found["total"] + open_sums(built) + whole) / found["baseline_total"])


def row(model: str, columns: Sequence[Column]) -> list[str]:
    """Return the row of a model: its name, and per cent of the paper's states."""
    cells = [ROWS[model]]
    for one in columns:
        if one.figure == BOUND:
            share = bound(model, one.scheme)
        else:
            share = planned(model, one.scheme, one.precision, one.world_size, one.slices)[one.figure]
        cells.append(f"{100 * share:.1f}")
    return cells


def page(text: str, models: Sequence[str] = tuple(ROWS)) -> str:
    """Return the `text` of the page with the rows of these `models` made anew."""
    for name, columns in TABLES.items():
        before, begin, rest = text.partition(f"<!-- planned: {name} -->\n")
        old, end, after = rest.partition("<!-- planned: end -->")
        kept = {line.split("|")[1].strip(): line.strip("| \n").split(" | ") for line in old.splitlines()}
        rows = [row(model, columns) if model in models else kept[title] for model, title in ROWS.items()]
        table = markdown_table(["", *(one.title for one in columns)], rows, "l" + "r" * len(columns))
        text = f"{before}{begin}{table}\n{end}{after}"
    return text


if __name__ == "__main__":
    asked = sys.argv[1:] or [*ROWS]
    if unknown := set(asked) - ROWS.keys():
        sys.exit(f"usage: python docs/build_fullest.py [MODEL ...]; {min(unknown)} is none of {', '.join(ROWS)}")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), asked), encoding="utf-8")
