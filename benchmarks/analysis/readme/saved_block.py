"""README's table beside the paper's Fig. 9, from the plans of `benchmarks.training.saved_states`. Imports no torch."""

from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.analysis.published import load_published

PARTS = ("exp1-local", "exp1-cloud")
"""Parts of the paper's first experiment: Fig. 9a and 9b."""
WAYS = {
    "w": "`w`",
    "2d": "`2d`",
    "w+2d": "`w+2d`",
    "baseline by nodes": "full residuals, by nodes",
    "w+2d by nodes": "`w+2d`, by nodes",
}


def saved_states(values: dict[str, Any]) -> str:
    """Return the savings of model states for each model, in the paper and as planned, in per cent."""
    head = ("", "`w+2d`, published (8 / 64 GPUs)", *WAYS.values())
    rows = [
        [row["model"], _published(row["model"]), *(_share(row["saved"][way]) for way in WAYS)] for row in values["rows"]
    ]
    return markdown_table(head, rows, "l" + "r" * (len(head) - 1))


def _published(model: str) -> str:
    """Return the savings that the paper states for ResiReduce, on 8 and on 64 GPUs if it states both."""
    numbers = load_published()
    found = [numbers[name] for part in PARTS if (name := f"{part}-saving-{model}") in numbers]
    return " / ".join(f"{one.value:.1f} %" for one in found)


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
