"""README's tables beside the paper's Fig. 9: model states saved as planned, and on one GPU by its check. No torch.

The latter follows from results/reference/<device>, and says "not run" while no records of a GPU are there.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from benchmarks.analysis.gpu_records import (
    ALLOCATED,
    BASELINE,
    ITEMISED,
    PEAK,
    USUAL,
    Case,
    Device,
    Unread,
    bytes_at,
    matching,
    read_devices,
)
from benchmarks.analysis.labels import ABSENT, markdown_table
from benchmarks.analysis.published import published_savings
from benchmarks.analysis.readme.measured import Measured
from benchmarks.core.workloads import PAPER

NOT_RUN = "Not run: no records of a GPU are committed."
WIDTH = 120
SHARED: Mapping[str, Any] = {**USUAL, "scheme": "w+2d"}
INT4: Mapping[str, Any] = {**USUAL, "scheme": "baseline", "residual_dtype": "int4", "gradients": "streamed"}
COLUMNS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "`w+2d`": ({**SHARED, "gradients": "kept"}, ITEMISED),
    "by the allocator": ({**SHARED, "gradients": "kept"}, ALLOCATED),
    "`baseline`, streamed": ({**BASELINE, "gradients": "streamed"}, ITEMISED),
    "`w+2d`, streamed": ({**SHARED, "gradients": "streamed"}, ITEMISED),
    "full residuals in int4, streamed": (INT4, ITEMISED),
    "`w+2d`, streamed: fullest moment": ({**SHARED, "gradients": "streamed"}, PEAK),
}
"""The setting and the rung of each column, in per cent of those of the baseline."""
PUBLISHED = ("", "`w+2d`, published (8 / 64 GPUs)")
WAYS = {
    "w": "`w`",
    "2d": "`2d`",
    "w+2d": "`w+2d`",
    "baseline by nodes": "full residuals, by nodes",
    "w+2d by nodes": "`w+2d`, by nodes",
}
"""Ways of `python -m benchmarks saved-states`, and their headings."""


def saved_states(measured: Measured) -> str:
    """Return the savings of model states for each model, in the paper and as planned, in per cent."""
    rows = [
        [
            row["model"],
            " / ".join(f"{saving:.1f} %" for saving in published_savings(row["model"])),
            *(f"{100 * row['saved'][way]:.1f} %" for way in WAYS),
        ]
        for row in measured.load("saved-states")["rows"]
    ]
    return markdown_table((*PUBLISHED, *WAYS.values()), rows, "l" + "r" * (1 + len(WAYS)))


def one_gpu(measured: Measured) -> str:
    """Return a table for each GPU with records, and where they are from."""
    return "\n\n".join(filter(None, map(_table, read_devices(measured.folder)))) or NOT_RUN


def one_gpu_short(measured: Measured) -> str:
    """Return on which GPUs the check has run, or that it has not."""
    found = [device.origin for device in read_devices(measured.folder) if any(one.ranks for one in device.cases)]
    return "; ".join(found) or "not run: no records of a GPU are committed"


def _table(device: Device) -> str:
    rows = [row for workload in PAPER if (row := _row(device, workload.model))]
    if not rows:
        return ""
    refused = sum(one.doubt is not None for one in device.cases)
    where = f"Measured: one {device.origin}."
    count = f"{refused} cell{'s' if refused > 1 else ''}"
    where += f" Not counted, as they contradict themselves: {count}." if refused else ""
    table = markdown_table((*PUBLISHED, *COLUMNS), rows, "l" + "r" * (1 + len(COLUMNS)))
    return f"{table}\n\n{textwrap.fill(where, WIDTH)}"


def _row(device: Device, model: str) -> list[str]:
    """Return the cells of a model's row; none without its baseline."""
    against = _sound(device, model, BASELINE)
    if against is None:
        return []
    shares = (_share(_sound(device, model, wanted), against, rung) for wanted, rung in COLUMNS.values())
    # What the paper's savings leave.
    return [model, " / ".join(f"{100 - saving:.1f} %" for saving in published_savings(model)), *shares]


def _sound(device: Device, model: str, wanted: Mapping[str, Any]) -> Case | None:
    found = [one for one in matching(device, model, wanted) if one.ranks]
    return found[0] if len(found) == 1 else None


def _share(one: Case | None, against: Case, rung: str) -> str:
    try:
        return ABSENT if one is None else f"{100 * bytes_at(one, rung) / bytes_at(against, rung):.1f} %"
    except Unread:
        return ABSENT


SAVING: Mapping[str, tuple[Mapping[str, Any], str]] = {
    '`scheme="baseline"`: full residuals': (
        {**BASELINE, "gradients": "streamed"},
        "nothing: every metric is that of kept gradients",
    ),
    '`scheme="w+2d"`: the paper\'s reduced residuals': ({**SHARED, "gradients": "streamed"}, "accuracy"),
    '`residual_dtype="int4"`: full residuals in 4 bits': (INT4, "accuracy, less than `w+2d`"),
    '`compressor="none"`': (
        {**USUAL, "compressor": "none", "scheme": "none", "gradients": "streamed"},
        "all bytes are sent; no residual, so no error feedback",
    ),
}
"""What a user writes, which cells measured it, and what it costs."""
TRANSFORMERS = ("bert-base", "bert-large", "gpt2-medium", "gpt2-large")


def saved_at_the_peak(measured: Measured) -> str:
    """Return what streamed gradients and smaller residuals save, between two steps and at the fullest moment of one."""
    devices = read_devices(measured.folder)
    if not devices:
        return NOT_RUN
    rows = []
    for title, (wanted, costs) in SAVING.items():
        spans = []
        for rung in (ITEMISED, PEAK):
            pairs = [(_sound(devices[0], model, wanted), _sound(devices[0], model, BASELINE)) for model in TRANSFORMERS]
            found = [100 * (1 - bytes_at(one, rung) / bytes_at(other, rung)) for one, other in pairs if one and other]
            low, high = (f"{value:.1f}" for value in (min(found), max(found)))
            spans.append(f"{low} %" if low == high else f"{low} to {high} %")
        rows.append([title, *spans, costs])
    head = ("Streamed gradients and", "Saved between two steps", "Saved at the fullest moment", "What it costs")
    return markdown_table(head, rows, "lrrl")
