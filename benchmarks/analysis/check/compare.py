"""Compare a run with a reference: an outcome for each setting and quantity, and for each cell without a record."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.analysis.check.reference import (
    ONE_OF,
    PEAKS,
    QUANTITY_WORDS,
    SHORT_STEPS,
    Reference,
    Row,
    label_of,
    provenance_of,
    rows_of,
    usual_of,
)
from benchmarks.analysis.claims.sound import fewer_than_planned, unsound
from benchmarks.analysis.labels import percent
from benchmarks.analysis.load_run import Run, strays
from benchmarks.core.cell import Cell
from benchmarks.core.record import STATE_FIELDS

# --- How far a run may be from its reference, by quantity and by the devices that both were measured on ---


CPU = "cpu"
GPU_BYTES = 0.0025
"""Relative, for the model states on a GPU."""
INEXACT_PEAKS = 0.05
"""Relative, for the fullest moment on a GPU or with another release of torch, whose temporaries it includes."""
GPU_SAVING = 0.0025
"""Share of the baseline: a quarter of a point."""
INEXACT_PEAK_SAVING = 0.02
UNEVEN = (
    *("dgc", "dgc+packed", "dgc-momentum", "dgc-simple", "threshold", "topk+packed"),
    *("gaussian", "redsync", "redsync-trim", "sidco-exp", "sidco-gp", "sidco-gamma", "adtopk-threshold", "ok-topk"),
)
"""Compressors whose message length depends on the values, and with it the bytes in flight."""
THROUGHPUT = 0.15
"""Relative, for the ratio to the baseline; on shared cores it varies by a tenth."""
METRIC = 0.03
"""Relative; other machines and versions of torch sum in other orders."""


@dataclass(frozen=True)
class Bands:
    """The conditions that decide the bands between one reference and one run."""

    exact_bytes: bool
    """Whether both were measured on a CPU."""
    same_device: bool
    same_torch: bool
    """Whether both have the same release of torch, such as 2.13."""
    same_machine: bool
    """Whether processor or GPU, torch and Python are the same: metrics then agree in every digit."""

    @classmethod
    def between(cls, reference: Mapping[str, Any], run: Mapping[str, Any]) -> "Bands":
        """Return the bands for two provenances, as made by `reference.provenance_of`."""
        same = {name: reference.get(name) == run.get(name) for name in ("device", "torch", "python", "cpu")}
        return cls(
            exact_bytes=reference.get("device") == run.get("device") == CPU,
            same_device=same["device"],
            same_torch=_release(reference.get("torch")) == _release(run.get("torch")),
            same_machine=all(same.values()),
        )

    def of(self, quantity: str, setting: Cell | None = None) -> float | None:
        """Return the band of a quantity of a setting, or of those with the narrowest bands.

        It is absolute for savings, else relative; None if the quantity is not compared.
        """
        uneven = setting is not None and setting.compressor in UNEVEN
        exact_peaks = self.exact_bytes and self.same_torch and not uneven
        if quantity == "saving":
            return 0.0 if self.exact_bytes else GPU_SAVING
        if quantity == "throughput_ratio":
            return THROUGHPUT if self.same_device else None
        if quantity == "metric":
            return METRIC
        if quantity in (*PEAKS, "peak_saving"):
            inexact = INEXACT_PEAK_SAVING if quantity == "peak_saving" else INEXACT_PEAKS
            return None if not self.same_device else 0.0 if exact_peaks else inexact
        return 0.0 if self.exact_bytes else GPU_BYTES

    def words(self) -> list[str]:
        """Say in a line each what is compared, and how exactly."""
        names = {"total_bytes": "model states"}
        told = ("total_bytes", "peak_states_bytes", "throughput_ratio", "metric")
        lines = [f"{names.get(one, QUANTITY_WORDS[one])} {_how(self.of(one))}" for one in told]
        smaller = "; on this machine any smaller difference is named too" if self.same_machine else ""
        return [*lines[:-1], lines[-1] + smaller]


def _how(band: float | None) -> str:
    if band is None:
        return "not compared (another device)"
    return "to the byte" if band == 0 else f"within {percent(band)}" if band > 0.005 else f"within {100 * band:g} %"


def _release(version: object) -> tuple[str, ...] | None:
    return tuple(version.split(".")[:2]) if isinstance(version, str) else None


# --- Compare a run with a reference ---


SAVINGS = ("saving", "peak_saving")
BYTES = (*STATE_FIELDS, "total_bytes", *PEAKS)
QUANTITIES = (*SAVINGS, *BYTES, "throughput_ratio", "metric")
FAILING = ("problem", "worse")
AGAIN = "such a record was not measured: delete it, and run its cell again"
TOLD = (*FAILING, "changed", "new", "better")
"""Verdicts that are shown, the worst first; the others are "same" and "skipped"."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of comparing one quantity."""

    name: str
    """Name of the cell or setting."""
    label: str
    """Name for people: "w+2d, kept on vgg-digits"."""
    quantity: str
    """One of QUANTITIES, or "record" for a missing or new record."""
    verdict: str
    """One of TOLD, or "same" or "skipped"."""
    old: float | None = None
    new: float | None = None
    reason: str = ""
    """Why it is a problem, new, or skipped."""
    severity: float = 0.0
    """Share of the baseline's bytes for bytes and savings, else the relative change; 0 or more."""

    @property
    def fails(self) -> bool:
        """Whether it makes the check fail."""
        return self.verdict in FAILING


def compare(reference: Reference, run: Run) -> list[Outcome]:
    """Return all outcomes, in the order of the reference, then of the run."""
    rows = rows_of(run)
    bands = Bands.between(reference.provenance, measured_on(run))
    usual = usual_of([*reference.rows, *rows])
    found = _problems(run, usual)
    for setting, old in reference.rows.items():
        label, new = label_of(setting, usual), rows.get(setting)
        found += _missing(run, old, label)
        if new is not None:
            found += [_quantity(old, new, quantity, bands, label) for quantity in QUANTITIES]
    reason = "not in the reference"
    found += [
        Outcome(name=one.name, label=label_of(one, usual), quantity="record", verdict="new", reason=reason)
        for one in rows
        if one not in reference.rows
    ]
    return found


def _problems(run: Run, usual: Cell | None) -> list[Outcome]:
    """Return outcomes for cells without a measurement, and for records that contradict themselves or exist twice."""
    wrong = [(cell, f"{hole.status}: {hole.reason}; to fill it: {hole.command}") for cell, hole in run.holes.items()]
    wrong += [(cell, f"{reason}; {AGAIN}") for cell, reason in contradicted(run)]
    wrong += [*_strangers(run), *_uneven(run)]
    for cell, other in duplicates(run):
        wrong.append((cell, f"there twice: cells/{cell.name}.json and cells/{other} are records of it"))
    return [
        _no_record(
            cell.name, label_of(replace(cell, seed=0), usual) + (f", seed {cell.seed}" if cell.seed else ""), why
        )
        for cell, why in wrong
    ]


def contradicted(run: Run) -> list[tuple[Cell, str]]:
    """Return cells whose record contradicts itself, its cell or its recipe, as none that was measured does; and how."""
    found = {cell: unsound(result) or run.doubts.get(cell) for cell, result in run.results.items()}
    return [(cell, problem) for cell, problem in found.items() if problem]


def measured_on(run: Run) -> dict[str, Any]:
    """Return the provenance of a run; of several devices or releases of torch that of most records.

    One record of another device would else widen the bands of all.
    """
    every = [provenance_of([one]) for one in run.results.values()]
    common = {name: Counter(one[name] for one in every).most_common(1) for name in ONE_OF}
    return provenance_of(run.results.values()) | {name: top[0][0] if top else None for name, top in common.items()}


def _strangers(run: Run) -> Iterator[tuple[Cell, str]]:
    """Yield cells that were measured on another device, or with another torch, than most of the run."""
    usual = measured_on(run)
    for cell, result in run.results.items():
        own = provenance_of([result])
        if name := next((name for name in ONE_OF if own[name] != usual[name]), None):
            text = f"{name} is {own[name]}, that of most records {usual[name]}"
            yield cell, f"{text}; run it again with the setup of the others"


def _uneven(run: Run) -> Iterator[tuple[Cell, str]]:
    """Yield cells whose model states differ from the setting's first seed; the row keeps only the seed with most."""
    for results in run.settings().values():
        for one in results[1:]:
            pairs = ((name, getattr(results[0], name), getattr(one, name)) for name in STATE_FIELDS)
            if other := next((pair for pair in pairs if pair[1] != pair[2]), None):
                text = f"{other[0]} is {other[2]:,}, that of seed {results[0].cell.seed} {other[1]:,}"
                yield one.cell, f"{text}; model states do not depend on seeds, run the wrong one again"


def _no_record(name: str, label: str, reason: str) -> Outcome:
    return Outcome(name=name, label=label, quantity="record", verdict="problem", reason=reason, severity=math.inf)


def duplicates(run: Run) -> list[tuple[Cell, str]]:
    """Return cells that have another record under a different file name, with that name."""
    known = set(run.cells)
    return [(result.cell, path.name) for path, result in strays(run) if result.cell in known]


def _missing(run: Run, old: Row, label: str) -> list[Outcome]:
    """Return seeds of a row that the run's config does not name; seeds named but missing are problems already."""
    named = {cell.seed for cell in run.cells if replace(cell, seed=0) == old.setting}
    lacking = [seed for seed in old.seeds if seed not in named]
    if not lacking:
        return []
    what = f"seeds {', '.join(map(str, lacking))} are" if named else "it is"
    reason = f"missing: {what} in the reference and not in the run's config"
    return [_no_record(old.setting.name, label, reason)]


def _quantity(old_row: Row, new_row: Row, quantity: str, bands: Bands, label: str) -> Outcome:
    old, new = getattr(old_row, quantity), getattr(new_row, quantity)
    band = bands.of(quantity, old_row.setting)
    outcome = Outcome(name=old_row.setting.name, label=label, quantity=quantity, verdict="skipped", old=old, new=new)
    short = f"fewer than {SHORT_STEPS} steps say nothing of it"
    why_none = "there is no record of its baseline" if quantity in SAVINGS else short
    if old is None:
        return replace(outcome, reason=why_none)
    if new is None:
        reason = f"the reference has it, the run has not: {why_none}"
        return replace(outcome, verdict="problem", reason=reason, severity=math.inf)
    fewer = fewer_than_planned(old_row.setting, quantity, old, new)
    for name in ("metric_name", "higher_is_better") if quantity == "metric" else ():
        was, now = getattr(old_row, name), getattr(new_row, name)
        fewer = f"{name} was {was} and is {now}" if was != now else fewer
    if fewer:
        return replace(outcome, verdict="problem", reason=fewer, severity=math.inf)
    if band is None:
        return replace(outcome, reason="measured on another device")
    relative = abs(new - old) if quantity in SAVINGS else abs(new - old) / abs(old) if old else float(new != old)
    if relative <= band:
        told = quantity == "metric" and bands.same_machine and new != old
        return replace(outcome, verdict="changed" if told else "same", severity=relative)
    whole = old_row.baseline_total_bytes
    severity = abs(new - old) / whole if quantity in BYTES and whole else relative
    more_is_worse = quantity in BYTES or (quantity == "metric" and old_row.higher_is_better is False)
    return replace(outcome, verdict="worse" if (new > old) == more_is_worse else "better", severity=severity)
