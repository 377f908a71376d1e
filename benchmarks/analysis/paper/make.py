"""Make a table of the paper from a `Spec` and a run; one function serves all tables and figures."""

from collections.abc import Sequence
from typing import Any

from benchmarks.analysis.grouping import grouped, starts_of
from benchmarks.analysis.labels import ABSENT, MINUS
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.origin import is_mixed
from benchmarks.analysis.paper.paper_rows import BEYOND, PAPER, SMALL, Row, make_rows
from benchmarks.analysis.paper.records import make_record, part_command, text_of
from benchmarks.analysis.paper.spec import Spec
from benchmarks.analysis.published import load_published
from benchmarks.analysis.table import Record, Table
from resireduce.scheme import load

HEAD = ("Model", "Line", "Ranks", "Published", "Measured", "± 95 %", "n")
TAIL = ("Hardware", "Missing")
MARKS = {PAPER: "", SMALL: " (small model, no published value)", BEYOND: " (beyond the paper)"}


def make_table(run: Run, spec: Spec) -> Table:
    """Return a table of the paper for a run; it has all rows, whatever the run holds."""
    rows = make_rows(run, spec)
    records = [make_record(run, spec, row) for row in rows]
    if spec.extra:
        extra = load(spec.extra)
        of_rows = [run.settings().get(row.setting, []) for row in rows]
        records = [record | extra(results) for record, results in zip(records, of_rows, strict=True)]
    starts = starts_of([_group(row) for row in rows])
    body = [
        [row.setting.model + MARKS[row.kind] if i in starts else "", *_texts(spec, row, record)]
        for i, (row, record) in enumerate(zip(rows, records, strict=True))
    ]
    middle = [spec.compared[0]] if spec.compared else []
    return Table(
        name=spec.name,
        title=spec.title,
        reading=spec.reading,
        records=records,
        head=[*HEAD, *middle, *(heading for heading, _ in spec.columns), *TAIL],
        body=body,
        figure=spec.figure,
        drawn=_drawn([record for record in records if record["quantity"] == spec.lines[0].quantity.name]),
        text_columns=2,
        group_starts=starts,
        notes=[*spec.notes, *_stated(spec), *_about(run, rows, records)],
        **_missing(records),
    )


def _drawn(records: Sequence[Record]) -> list[Record]:
    """Return the records of models with a measured value; the table also has the published values of the others."""
    known = {record["model"] for record in records if record["measured"] is not None}
    return [record for record in records if record["model"] in known]


def _group(row: Row) -> tuple[str, str]:
    return row.kind, row.setting.model


def _texts(spec: Spec, row: Row, record: Record) -> list[str]:
    quantity = row.line.quantity
    value, half_width = record["measured"], record["measured_half_width"]
    unit = f" {record['unit']}" if record["unit"] else ""
    texts = [
        row.label,
        str(row.setting.world_size),
        f"{row.published.value:g} {row.published.unit or ''}".strip() if row.published else "",
        ABSENT if value is None else text_of(quantity, value).replace("-", MINUS) + unit,
        text_of(quantity, half_width) if half_width is not None else "",
        str(record["measured_n"] or ""),
    ]
    texts += [_difference(record)] if spec.compared else []
    texts += [record[column] or "" for _, column in spec.columns]
    return [*texts, record["hardware"] or "", record["missing"] or ""]


def _difference(record: Record) -> str:
    value, half_width = record["difference"], record["difference_half_width"]
    if value is None:
        return ""
    text = f"{'+' if value > 0 else MINUS if value < 0 else '±'}{abs(value):.2f}"
    return text + (f" ± {half_width:.2f}: {record['verdict']}" if half_width is not None else f", {record['verdict']}")


def _stated(spec: Spec) -> list[str]:
    """Return notes on published values that concern several rows."""
    numbers = load_published()
    found = [numbers[name] for name in spec.stated]
    texts = [
        f"{one.quantity.replace('_', ' ')} {one.value:g} {one.unit or ''}".rstrip()
        + f" ({one.source}{f': {one.note}' if one.note else ''})"
        for one in found
    ]
    return [f"The paper also states: {'; '.join(texts)}."] if texts else []


def _about(run: Run, rows: Sequence[Row], records: Sequence[Record]) -> list[str]:
    notes = []
    shown = [result for row in rows for result in run.settings().get(row.setting, [])]
    if is_mixed(shown):
        notes.append("Its records come from different commits, software or devices: compare rows with care.")
    exact = all(row.line.quantity.exact for row in rows)
    if shown and not exact and all(record["measured_n"] <= 1 for record in records):
        notes.append("One seed each (n = 1): no interval, and small differences mean nothing.")
    return notes


def _missing(records: Sequence[Record]) -> dict[str, Any]:
    """Return which of the paper's rows lack a value, and the commands that fill them, by part of paper.yaml."""
    missing = [one for one in records if one["kind"] == PAPER and one["missing"]]
    if not missing:
        return {}
    chosen = ",".join(dict.fromkeys(one["part"] for one in missing))
    # Without rows whose cells belong to the run itself.
    apart = [(one["part"], one["model"], [cell["command"] for cell in one["missing_cells"]]) for one in missing]
    others = grouped((part, model) for part, model, commands in apart if part_command(part) in commands)
    lacks = [
        (f"{len(models)} row{'s' if len(models) > 1 else ''} of {', '.join(dict.fromkeys(models))}", part_command(part))
        for part, models in others.items()
    ]
    on_cluster = f"snakemake --profile slurm --config part={chosen}"
    return {
        "fills": f"What is missing here: {part_command(chosen)}, or on a cluster: {on_cluster}",
        "lacks": tuple(lacks),
    }
