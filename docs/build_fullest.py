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
from benchmarks.core.workloads import WORKLOADS
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
PAPERS = [*ROWS][:6]
"""The paper's models, whose batch size is the paper's."""
FUSED, SECOND = {"fused": True}, "second-moment-adamw"
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

ACTIVATIONS = [
    "GiB at the fullest moment",
    "no compression, kept",
    "paper's baseline",
    "`w+2d`, streamed",
    "int4, streamed",
    "int4, no first moment",
    "int4, Adafactor",
    "no compression, no first moment",
    "no compression, Adafactor",
]


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


def with_activations(model: str) -> list[list[str]]:
    """Return the rows of a model, plain and checkpointed: GiB at the fullest moment, of each way to train."""
    build, recipe = load(MODELS[model]), WORKLOADS[model]
    sgd = "SGD" in ROWS[model]
    usual, args, second, plain = ("sgd", {}, "sgd", {"momentum": 0.0}) if sgd else ("adamw", FUSED, SECOND, {})
    asked = {"batch": recipe.batch_per_rank, "inputs": build.inputs, "world_size": 2, "density": 0.01}
    none = {"compressor": "none", "scheme": "none"}
    plans = [
        plan(build, optimizer=usual, optimizer_args=args, scheme="w+2d", **asked),
        plan(build, optimizer=usual, optimizer_args=args, gradients="kept", **none, **asked),
        plan(build, optimizer="adafactor", scheme="baseline", residual_dtype="int4", **asked),
        plan(build, optimizer=second, optimizer_args=plain, update="in_backward", **none, **asked),
        plan(build, optimizer="adafactor", update="in_backward", **none, **asked),
    ]
    paper, *others = ({one["choice"]: one for one in each["choices"]} for each in plans)
    kinds = [
        "full residuals, kept",
        "as asked",
        "int4 residuals, streamed",
        "int4 residuals, streamed, no first moment",
    ]
    found = [others[0]["as asked"], *(paper[kind] for kind in kinds), *(each["as asked"] for each in others[1:])]
    rows = []
    for how, words in ("", ""), ("checkpointed_", ", checkpointed"):
        figures = [one.get(f"{how}fullest_bytes") for one in found]
        if None not in figures:
            rows.append([f"{ROWS[model]}, {asked['batch']} a rank{words}", *(f"{one / 2**30:.2f}" for one in figures)])
    return rows


def page(text: str, models: Sequence[str] = tuple(ROWS)) -> str:
    """Return the `text` of the page with the rows of these `models` made anew."""
    for name, columns in TABLES.items():
        before, begin, rest = text.partition(f"<!-- planned: {name} -->\n")
        old, end, after = rest.partition("<!-- planned: end -->")
        kept = {line.split("|")[1].strip(): line.strip("| \n").split(" | ") for line in old.splitlines()}
        rows = [row(model, columns) if model in models else kept[title] for model, title in ROWS.items()]
        table = markdown_table(["", *(one.title for one in columns)], rows, "l" + "r" * len(columns))
        text = f"{before}{begin}{table}\n{end}{after}"
    before, begin, rest = text.partition("<!-- planned: activations -->\n")
    old, end, after = rest.partition("<!-- planned: end -->")
    lines = [line.strip("| ").split(" | ") for line in old.splitlines()[2:]]
    rows = [
        one
        for model in PAPERS
        for one in (
            with_activations(model) if model in models else [line for line in lines if line[0].startswith(ROWS[model])]
        )
    ]
    return f"{before}{begin}{markdown_table(ACTIVATIONS, rows, 'l' + 'r' * 8)}\n{end}{after}"


if __name__ == "__main__":
    asked = sys.argv[1:] or [*ROWS]
    if unknown := set(asked) - ROWS.keys():
        sys.exit(f"usage: python docs/build_fullest.py [MODEL ...]; {min(unknown)} is none of {', '.join(ROWS)}")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), asked), encoding="utf-8")
