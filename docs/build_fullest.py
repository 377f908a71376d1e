"""`python docs/build_fullest.py`: the tables of docs/memory.md about the fullest moment, by plan; it takes minutes.

Given names of models, it makes their rows anew and leaves the others as they are.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.core.registry import MODELS
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
BETWEEN, FULLEST = "normalised", "peak_normalised"


@dataclass(frozen=True)
class Column:
    """What stands in a column: which figure of which plan."""

    title: str
    figure: str
    scheme: str = "baseline"
    precision: str | None = None
    world_size: int = 2


TABLES = {
    "precisions": [
        Column("float32, between steps", BETWEEN),
        Column("fullest, 2 ranks", FULLEST),
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
        Column("fullest", FULLEST, "w"),
        Column("`2d`, between", BETWEEN, "2d"),
        Column("fullest", FULLEST, "2d"),
        Column("`w+2d`, between", BETWEEN, "w+2d"),
        Column("fullest", FULLEST, "w+2d"),
        Column("64 ranks", FULLEST, "w+2d", world_size=64),
    ],
}


@cache
def planned(model: str, scheme: str, precision: str | None, world_size: int) -> dict[str, Any]:
    """Return the plan of a model with streamed gradients and top-k at 0.01."""
    optimizer = "sgd" if "SGD" in ROWS[model] else "adamw"
    return plan(
        load(MODELS[model]), optimizer=optimizer, scheme=scheme, residual_dtype=precision, gradients="streamed",
        compressor="topk", density=0.01, world_size=world_size,
    )  # fmt: skip


def row(model: str, columns: Sequence[Column]) -> list[str]:
    """Return the row of a model: its name, and per cent of the paper's states."""
    plans = (planned(model, one.scheme, one.precision, one.world_size)[one.figure] for one in columns)
    return [ROWS[model], *(f"{100 * share:.1f}" for share in plans)]


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
