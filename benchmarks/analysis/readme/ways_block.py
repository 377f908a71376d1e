"""The tables of docs/is-it-for-me.md and docs/measuring.md, from the figures of `python -m benchmarks beside`.

Imports no torch.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.analysis.labels import markdown_table
from benchmarks.core.ways import FORMS, FULLEST, FULLEST_MODEL, RESIDENT, WAYS

Values = dict[str, Any]
TITLES = {
    "ddp-view": "DistributedDataParallel, `gradient_as_bucket_view=True`",
}
"""Titles where those of other tables would refer to a row that is not above."""


def ways(values: Values) -> str:
    """Every way to train: what it holds, needs, sends and costs."""
    head = ("", "Held after `step()`", "after `zero_grad()`", "Fullest moment of a step", "Sent a step")
    rows = []
    for name, way in WAYS.items():
        row = _row(values, name, "exact")
        figures = [_both(row, f"{part}_bytes") for part in ("held", "without_gradients", "peak")]
        rows.append([way.title, *figures, _mebibytes(row["sent_bytes"]), way.costs])
    return markdown_table((*head, "What is lost, or asked for"), rows, "lrrrrl")


def forms(values: Values) -> str:
    """Error feedback as formed by others and here: memory beyond the parameters."""
    head = ("", "Residuals and gradients", "Fullest moment of a step", "as the kernel counts")
    rows = []
    for name, way in FORMS.items():
        row = _row(values, name, "exact")
        states, parameters = row["states_bytes"], row["states_bytes"]["parameters"]
        held = states["residuals"] + states["gradients"]
        peaks = (row["states_peak_bytes"] - parameters, row["peak_bytes"] - parameters)
        rows.append([way.title, *(_mebibytes(nbytes) for nbytes in (held, *peaks))])
    return markdown_table(head, rows, "lrrr")


def resident(values: Values) -> str:
    """Resident memory of a process, with glibc's malloc by default and as set for the ranks of cells."""
    mallocs = ("Resident, malloc as it is", "as cells have it", "Fullest moment, malloc as it is", "as cells have it")
    head = ("", "Model states, tensor by tensor", *mallocs)
    rows = []
    for name in RESIDENT:
        plain, settled = (_row(values, name, malloc) for malloc in ("default", "cells"))
        states = sum(plain["states_bytes"].values())
        figures = [_both(row, part) for part in ("held_bytes", "peak_bytes") for row in (plain, settled)]
        rows.append([WAYS[name].title, _times(states, plain["parameters_bytes"]), *figures])
    return markdown_table(head, rows, "lrrrrr")


def fullest(values: Values) -> str:
    """One process with a large model: memory at the fullest moment of a step, and after it."""
    head = ("", "Resident, at the fullest", "after the step", "Model states and what a step adds", "model states")
    rows = []
    for name in FULLEST:
        row = next(row for row in values["rows"] if (row["name"], row["model"]) == (name, FULLEST_MODEL))
        parts = [row["peak_bytes"], row["held_bytes"]]
        if "states_bytes" in row:
            parts += [row["states_peak_bytes"], sum(row["states_bytes"].values())]
        rows.append(
            [TITLES.get(name, WAYS[name].title), *(f"{part / row['parameters_bytes']:.2f} P" for part in parts)]
        )
        rows[-1] += [""] * (len(head) - len(rows[-1]))
    return markdown_table(head, rows, "lrrrr")


def fullest_short(values: Values) -> str:
    """The fullest moment of the same process: streamed gradients, and both forms of DistributedDataParallel."""
    found = {row["name"]: row for row in values["rows"] if row["model"] == FULLEST_MODEL}
    peaks = {name: f"{row['peak_bytes'] / row['parameters_bytes']:.2f} P" for name, row in found.items()}
    return (
        f"{peaks['baseline']} with streamed gradients, {peaks['ddp']} with PyTorch's DDP, {peaks['ddp-view']} "
        "with `gradient_as_bucket_view=True`"
    )


def streamed_peak(values: Values) -> str:
    """The most that the fullest moment of a step adds, over all ways that stream gradients."""
    return f"{max(_held(values, name, 'peak') - _held(values, name) for name in STREAMED):.2f} P"


STREAMED = ("none-streamed", "baseline", "w+2d", "int4")
TABLES: dict[str, Callable[[Values], str]] = {
    "ways": ways,
    "forms": forms,
    "resident": resident,
    "fullest": fullest,
    "fullest-short": fullest_short,
    # Memory beyond training without compression: of 4-bit residuals, and of these with 8-bit moments.
    "int4-more": lambda values: f"{_held(values, 'int4') - _held(values, 'none-streamed'):.2f} P",
    "streamed-peak": streamed_peak,
    "combined": lambda values: f"{_held(values, 'int4-eight-bit'):.1f} P",
}
"""Tables, and the figures in the text between them."""


def _held(values: Values, name: str, part: str = "held") -> float:
    """Return the bytes of a way as a multiple of the parameters' bytes."""
    row = _row(values, name, "exact")
    return float(row[f"{part}_bytes"] / row["parameters_bytes"])


def _row(values: Values, name: str, malloc: str) -> Values:
    rows = (row for row in values["rows"] if row["model"] != FULLEST_MODEL)
    found: Values = next(row for row in rows if (row["name"], row["malloc"]) == (name, malloc))
    return found


def _both(row: Values, part: str) -> str:
    return _times(row[part], row["parameters_bytes"])


def _times(nbytes: int, parameters_bytes: int) -> str:
    """Return bytes in MiB, and as a multiple of the parameters."""
    return f"{_mebibytes(nbytes)} ({nbytes / parameters_bytes:.2f} P)"


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f}" if nbytes >= 10 << 20 else f"{nbytes / 2**20:.1f}"
