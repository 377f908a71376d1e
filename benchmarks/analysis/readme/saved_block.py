"""README's table beside the paper's Fig. 9, from the plans of `benchmarks.training.saved_states`. Imports no torch."""

from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.analysis.published import published_savings

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
        [
            row["model"],
            " / ".join(f"{saving:.1f} %" for saving in published_savings(row["model"])),
            *(f"{100 * row['saved'][way]:.1f} %" for way in WAYS),
        ]
        for row in values["rows"]
    ]
    return markdown_table(head, rows, "l" + "r" * (len(head) - 1))
