"""Speed with large tensors in slices, from pace-slices.json, which `python -m benchmarks pace --pairs slices` makes."""

from benchmarks.analysis.labels import markdown_table, with_half
from benchmarks.analysis.readme.measured import Measured, Row, machine

FILE = "pace-slices"


def slices_time(measured: Measured) -> str:
    """Return a table of the speed with slices, in that of the same setting without, with a row for each model."""
    found = measured.load(FILE)
    models = dict.fromkeys(row["model"] for row in found["rows"])
    columns = list(dict.fromkeys(map(_column, found["rows"])))
    ratios = {(row["model"], _column(row)): with_half(row["ratio"], row["half_width"], 2) for row in found["rows"]}
    rows = [[model, *(ratios[model, column] for column in columns)] for model in models]
    facts = found["measured"]
    return (
        f"{markdown_table(('', *columns), rows, 'l' + 'r' * len(columns))}\n\nMeasured on "
        f"{machine(facts['cpu'], facts['cores'])}, commit `{facts['commit'][:7]}`, {found['rounds']} rounds of "
        f"{found['steps']} steps in turn."
    )


def _column(row: Row) -> str:
    """Return the heading of a setting: its residual, and its slices."""
    residual = row["residual_dtype"] or f"`{row['scheme']}`"
    return residual + (", `slices=True`" if row["slices"] is True else f", {row['slices'] >> 10} KiB")
