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


def ways(is_sgd: bool) -> dict[str, dict[str, Any]]:
    """Return what is planned with activations, by the title of its column: settings of `plan`."""
    usual = {"optimizer": "sgd"} if is_sgd else {"optimizer": "adamw", "optimizer_args": {"fused": True}}
    plain = {"optimizer": "sgd", "optimizer_args": {"momentum": 0.0}}
    second, factored = plain if is_sgd else {"optimizer": "second-moment-adamw"}, {"optimizer": "adafactor"}
    none = {"compressor": "none", "scheme": "none"}
    int4 = {"scheme": "baseline", "residual_dtype": "int4"}
    return {
        "no compression, kept": usual | none | {"gradients": "kept"},
        "paper's baseline": usual | {"scheme": "baseline", "gradients": "kept"},
        "`w+2d`, streamed": usual | {"scheme": "w+2d"},
        "int4, streamed": usual | int4,
        "int4, no first moment": second | int4,
        "int4, Adafactor": factored | int4,
        "no compression, no first moment": second | none | {"update": "in_backward"},
        "no compression, Adafactor": factored | none | {"update": "in_backward"},
    }


def with_activations(model: str) -> list[list[str]]:
    """Return the rows of a model, plain and checkpointed: GiB at the fullest moment, of each of `ways`."""
    build, batch = load(MODELS[model]), WORKLOADS[model].batch_per_rank
    settings = {"batch": batch, "inputs": build.inputs, "world_size": 2, "density": 0.01}
    found = [plan(build, **settings, **way)["choices"][0] for way in ways("SGD" in ROWS[model]).values()]
    rows = []
    for kind, words in ("fullest_bytes", ""), ("checkpointed_fullest_bytes", ", checkpointed"):
        if all(kind in one for one in found):  # VGG has no blocks that could be computed anew
            figures = [f"{one[kind] / 2**30:.2f}" for one in found]
            rows.append([f"{ROWS[model]}, {batch} a rank{words}", *figures])
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
    rows = [line.strip("| ").split(" | ") for line in old.splitlines()[2:]]
    for model in set(models) & {*PAPERS}:
        at = [place for place, line in enumerate(rows) if line[0].startswith(ROWS[model])]
        rows[at[0] : at[-1] + 1] = with_activations(model)
    table = markdown_table(["GiB at the fullest moment", *ways(False)], rows, "l" + "r" * len(ways(False)))
    return f"{before}{begin}{table}\n{end}{after}"


if __name__ == "__main__":
    asked = sys.argv[1:] or [*ROWS]
    if unknown := set(asked) - ROWS.keys():
        sys.exit(f"usage: python docs/build_fullest.py [MODEL ...]; {min(unknown)} is none of {', '.join(ROWS)}")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), asked), encoding="utf-8")
