"""The table of tensors: what each holds with the baseline and with a scheme, which explains the saving."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import MINUS, TIMES, short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table, baseline_results, setting_record
from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import unpack
from benchmarks.core.record import CellResult
from resireduce.planning.item import STATES

# --- Fold tensors that are alike in all numbered layers of a model into one row: h.0-35.attn.c_attn.weight ---


NUMBER = re.compile(r"(?:(?<=[._])|^)\d+(?=\.)")
"""The number of a layer: a name part of its own, or the end of one (layers.encoder_layer_3.mlp)."""


def fold(shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return names of equal shape that differ only in layer numbers, grouped under the name of their run.

    A run stands for all combinations of the numbers in its name, so it never includes a tensor that does not exist.
    """
    alike = grouped(((NUMBER.sub("#", name), tuple(shape)), name) for name, shape in shapes.items())
    return dict(run for names in alike.values() for run in _runs(names))


def _runs(names: list[str]) -> Iterator[tuple[str, list[str]]]:
    numbers = {name: tuple(map(int, NUMBER.findall(name))) for name in names}
    different = [sorted(set(column)) for column in zip(*numbers.values(), strict=True)]
    if prod(map(len, different)) == len(names):
        yield _title(names[0], different), names
        return
    # Some combinations do not exist: fold only the number that varies most.
    widest = max(range(len(different)), key=lambda place: len(different[place]))
    for part in grouped((numbers[name][:widest] + numbers[name][widest + 1 :], name) for name in names).values():
        yield from _runs(part)


def _title(name: str, numbers: Sequence[Sequence[int]]) -> str:
    """Return `name` with its numbers replaced by those of all layers."""
    ranges = iter(numbers)
    return NUMBER.sub(lambda _: _ranges(next(ranges)), name)


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as 0-11, or 1,3-5."""
    parts = grouped((number - place, number) for place, number in enumerate(numbers)).values()
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


# --- The table of tensors: what each holds with the baseline and with a scheme, which explains the saving ---


HEAD = ["Model", "Tensors", "G before", "G after", "R before", "R after", "R saved", "Saved"]
READING = (
    "Bytes of one rank, tensor by tensor, at a step boundary: gradients G and residuals R with top-k, full residual "
    "and kept gradients (before), and with the scheme named (after). A residual that a group shares is listed with the "
    "group's first tensor; numbers of rows and columns, codes and scales count as residuals. Saved: of all four "
    "states, parameters and optimizer states with them; the sum is the difference of the totals in the memory table."
)
ROWS = 12
"""Most rows that the view shows of one model; all other tensors share one row."""
SHARE = 0.001
"""Tensors below this share of a model's saving have no row of their own."""
FEATURED = "w+2d"


@dataclass
class Held:
    """What one tensor of the model holds, in bytes by state."""

    shape: tuple[int, ...] = ()
    bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    residuals: list[str] = field(default_factory=list)
    """The parts of its residual, in words."""


def items(run: Run) -> Table:
    """Return the table of tensors of a run; empty if no record lists its tensors."""
    compared, notes = _compared(run)
    records: list[Record] = []
    body: list[list[str]] = []
    starts = []
    for model in dict.fromkeys(setting.model for setting, *_ in compared):
        tables = [(one[0], _records(run, *one)) for one in compared if one[0].model == model]
        setting, shown = min(tables, key=lambda pair: _rank(*pair))
        for _, its in tables:
            records += [record | {"shown": its is shown} for record in its]
        starts.append(len(body))
        rows = view(shown)
        rows[0][0] = f"{model}: baseline, kept \N{RIGHTWARDS ARROW} {short_labels([setting])[0]}"
        body += rows
    return Table(
        name="items",
        title="Memory, tensor by tensor",
        reading=READING,
        records=records,
        head=HEAD,
        body=body,
        figure="benchmarks.analysis.charts.states_chart:items_chart",
        text_columns=2,
        group_starts=tuple(starts),
        notes=notes,
    )


def _compared(run: Run) -> tuple[list[tuple[Cell, CellResult, CellResult]], list[str]]:
    """Return settings with their baseline's result and their own, skipping repeats within a scheme; and notes."""
    found: list[tuple[Cell, CellResult, CellResult]] = []
    missing = alike = 0
    for setting, results in run.settings().items():
        before = _fullest(baseline_results(run, setting))
        after = _fullest(results)
        if after is None or before is None:
            continue
        if not (before.items and after.items):
            missing += 1
        elif before.items["kinds"] == after.items["kinds"]:
            continue  # the baseline itself, or a setting that holds the same
        elif any(_same(one, (setting, before, after)) for one in found):
            alike += 1
        else:
            found.append((setting, before, after))
    notes = [f"Settings of which tables/items.csv has every tensor: {len(found)}."] if found else []
    if alike:
        notes.append(f"Left out because they hold the same tensors as one of these of their scheme: {alike}.")
    if missing:
        why = "their records, or their baseline's, are from before tensors were listed"
        notes.append(f"Settings that are not here, because {why}: {missing}.")
    return found, notes


def _same(one: tuple[Cell, CellResult, CellResult], other: tuple[Cell, CellResult, CellResult]) -> bool:
    return (one[0].model, one[0].scheme) == (other[0].model, other[0].scheme) and all(
        mine.items["kinds"] == theirs.items["kinds"] for mine, theirs in zip(one[1:], other[1:], strict=True)
    )


def _fullest(results: Iterable[CellResult]) -> CellResult | None:
    """Return the seed that holds most, as in the memory table; among equals one that lists its tensors."""
    return max(results, key=lambda result: (result.total_bytes or 0, bool(result.items)), default=None)


def held(result: CellResult) -> dict[str, Held]:
    """Return what each tensor of the model holds, in the order of the record."""
    found: dict[str, Held] = {}
    for item in unpack(result.items):
        one = found.setdefault(item.name, Held(item.shape))
        one.bytes[item.state] += item.nbytes
        if item.state == "residuals":
            shared = f" shared by {len(item.members)}" if item.members else ""
            one.residuals.append(f"{item.part} {_shape(item.shape, 'x')} {item.dtype}{shared}")
    return found


def _records(run: Run, setting: Cell, before: CellResult, after: CellResult) -> list[Record]:
    """Return one record per tensor of the model: all its bytes with the baseline and with the setting."""
    common = setting_record(setting, run.settings()[setting])
    old, new, nothing = held(before), held(after), Held()
    shapes = {name: one.shape for name, one in (new | old).items()}
    alike = {name: title for title, names in fold(shapes).items() for name in names}
    records = []
    for name, shape in shapes.items():
        was, now = old.get(name, nothing), new.get(name, nothing)
        record = common | {"tensor": name, "alike": alike[name], "shape": list(shape)}
        for state in STATES:
            record |= {f"baseline_{state}_bytes": was.bytes[state], f"{state}_bytes": now.bytes[state]}
        record["saved_bytes"] = sum(was.bytes.values()) - sum(now.bytes.values())
        records.append(record | {"baseline_residual": "; ".join(was.residuals), "residual": "; ".join(now.residuals)})
    return records


def _rank(setting: Cell, records: Sequence[Record]) -> tuple[object, ...]:
    """Return a sort key; the least setting is shown: the paper's own, streamed, else the one that saves most."""
    unusual = (setting.scheme != FEATURED, setting.compressor != "topk", setting.residual_dtype is not None)
    saved = sum(record["saved_bytes"] for record in records)
    return (*unusual, setting.options != (), setting.gradients != "streamed", -saved)


def view(records: Sequence[Record]) -> list[list[str]]:
    """Return a row for each group of like tensors, ordered by saving, one for all others, and the sum."""
    groups = grouped((record["alike"], record) for record in records)
    saved = {name: abs(_sum(its, "saved_bytes")) for name, its in groups.items()}
    by_saving = sorted(groups, key=lambda name: -saved[name])
    saving = [name for name in by_saving if saved[name] > SHARE * sum(saved.values())][:ROWS]
    rows = [_row(group_title(name, groups[name]), groups[name]) for name in saving]
    others = [record for name in by_saving if name not in saving for record in groups[name]]
    rows += [_row(f"other ({len(others)} tensors)", others)] if others else []
    return [*rows, _row(f"sum ({len(records)} tensors)", records)]


def group_title(name: str, records: Sequence[Record]) -> str:
    """Return a run's name with the number of its tensors and their shape."""
    count = f"{len(records)} {TIMES} " if len(records) > 1 else ""
    return f"{name}, {count}{_shape(records[0]['shape'])}"


def _row(title: str, records: Sequence[Record]) -> list[str]:
    states = ("gradients", "residuals")
    numbers = [_sum(records, f"{when}{state}_bytes") for state in states for when in ("baseline_", "")]
    numbers += [numbers[2] - numbers[3], _sum(records, "saved_bytes")]
    return ["", title, *(f"{MINUS if number < 0 else ''}{abs(number):,}" for number in numbers)]


def _sum(records: Sequence[Record], column: str) -> int:
    return sum(record[column] for record in records)


def _shape(shape: Sequence[int], by: str = TIMES) -> str:
    return f" {by} ".join(map(str, shape)) or "1"
