"""`python -m benchmarks check`: does a run still show what the committed measurements show? Imports no torch."""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any, Self
from xml.etree import ElementTree

from benchmarks.analysis.claims.evidence import fact_of, print_doubts
from benchmarks.analysis.claims.sound import fewer_than_planned, unsound
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import printable, say, short_labels
from benchmarks.analysis.load_run import Run, load_run, strays
from benchmarks.analysis.table import BASELINE
from benchmarks.analysis.tables.run_tables import memory_record, throughput_record
from benchmarks.core.cell import Cell
from benchmarks.core.config_reader import read_config
from benchmarks.core.files import load_json, save_bytes, save_text, writable
from benchmarks.core.prepared import find_root
from benchmarks.core.progress import counted
from benchmarks.core.provenance import provenance
from benchmarks.core.record import BYTE_FIELDS, STATE_FIELDS, CellResult
from benchmarks.core.run_config import get_cells, write_specs
from benchmarks.launching.outcomes import to_result
from resireduce.errors import ConfigError, is_count
from resireduce.scheme import load

# --- The rows of a reference: a setting's bytes, metric, and speed against its baseline's ---

Row = dict[str, Any]
"""A setting: name, cell (the fields that differ from defaults), seeds; GUARDED, those of the seed and rank with most;
baseline_total_bytes, and normalised by them; of a long run throughput_ratio, and the metric, a mean over the seeds."""
GUARDED = tuple(name for name in BYTE_FIELDS if name != "peak_resident_bytes")
"""Bytes that are compared; the resident memory of a whole process varies from run to run."""
SHORT_STEPS = 50
"""Fewest steps for which a run's speed and metric mean something."""
DEFAULTS = Cell(model="resnet-digits").to_dict()


def rows_of(run: Run) -> dict[Cell, Row]:
    """Return a row for each setting of a run with a finished seed."""
    return {setting: _row_of(run, setting, results) for setting, results in run.settings.items() if results}


def _row_of(run: Run, setting: Cell, results: Sequence[CellResult]) -> Row:
    """Return a setting's row, computed as in the tables, without what is not known."""
    memory, plain = memory_record(run, setting, results), setting.to_dict()
    row: Row = {
        "name": setting.name,
        "cell": {name: value for name, value in plain.items() if name == "model" or value != DEFAULTS[name]},
        "seeds": sorted(result.cell.seed for result in results),
        **{name: memory[name] for name in (*GUARDED, "baseline_total_bytes")},
    }
    if all(result.steps >= SHORT_STEPS for result in results):
        ratio = throughput_record(run, setting, results)["ratio_to_baseline"]
        row |= {"throughput_ratio": ratio and round(ratio, 4)}
        row |= {name: getattr(results[0], name) for name in ("metric_name", "higher_is_better")}
        row |= {"metric": mean(float(result.metric or 0) for result in results)}
    known = {name: value for name, value in row.items() if value is not None}
    return known | _normalised(known)


def _normalised(row: Row) -> Row:
    whole = row.get("baseline_total_bytes")
    return {"normalised": round(row["total_bytes"] / whole, 6)} if whole else {}


# --- The file ---

FORMAT = 1
MADE_BY = "python -m benchmarks check --accept"
FACTS = ("device", "torch", "python", "cpu", "commit", "dirty")
"""Where measurements come from."""
ONE_OF = ("device", "torch")
"""Facts that decide how exactly they can be compared: all measurements of a reference, and of a run, have the same."""


@dataclass(frozen=True)
class Reference:
    """The measurements that a run is compared with."""

    path: Path
    rows: dict[Cell, Row]
    provenance: dict[str, Any]
    """FACTS of the records; a fact with several values is a list."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """For each acceptance: date, reason, commit, and lines on what changed."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a reference. Raises ConfigError, one line, for what is none, and if less would be compared with it."""
        try:
            values = load_json(path)
            if (values.get("made_by"), values.get("format")) != (MADE_BY, FORMAT):
                raise ValueError(f"check --accept has not written it, in format {FORMAT}")
            rows = {Cell.from_dict(row["cell"]): row for row in values["rows"]}
            wrong = [row["name"] for cell, row in rows.items() if not _is_whole(cell, row)]
            if wrong or not rows or len(rows) < len(values["rows"]):
                raise ValueError(f"{(wrong or ['a row'])[0]} is there twice or is not whole")
            source = {name: values["provenance"][name] for name in FACTS}
            return cls(path, rows, source, [*values["history"]])
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(
                f"reference: {path} cannot be compared with: {why}; restore it, or --accept one"
            ) from None

    def save(self) -> None:
        """Write it atomically, one row per line, so that a change of one setting changes one line."""
        head = {"format": FORMAT, "made_by": MADE_BY, "provenance": self.provenance, "history": self.history}
        lines = [json.dumps(row, allow_nan=False) for row in self.rows.values()]
        text = json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}")
        save_text(text + ',\n "rows": [\n' + ",\n".join(f"  {line}" for line in lines) + "\n ]\n}\n", self.path)


def _is_whole(cell: Cell, row: Row) -> bool:
    """Say whether a row has the seeds and all bytes of its setting, and what follows from these."""
    adds_up = sum(row[name] for name in STATE_FIELDS) == row["total_bytes"] <= row["peak_states_bytes"]
    same = row["name"] == cell.name and row.get("normalised") == _normalised(row).get("normalised")
    return adds_up and same and is_count(row["in_flight_bytes"]) and row["seeds"] == sorted(set(row["seeds"])) != []


def provenance_of(results: Iterable[CellResult]) -> dict[str, Any]:
    """Return FACTS of records; a fact with several values gives a sorted list."""
    sources = [one.provenance | {"torch": fact_of(one.provenance, "packages: torch")} for one in results]
    found = {name: sorted({str(one.get(name)): one.get(name) for one in sources}.items()) for name in FACTS}
    return {name: [one for _, one in its] if len(its) > 1 else its[0][1] for name, its in found.items() if its}


# --- How far a run may be from its reference ---

SAVINGS = {"saving": "total_bytes", "saving at the fullest moment": "peak_states_bytes"}
"""Shares of the baseline's model states at a step boundary, and the bytes that each is about."""
PEAKS = ("in_flight_bytes", "peak_states_bytes", "saving at the fullest moment")
QUANTITIES = (*SAVINGS, *GUARDED, "throughput_ratio", "metric")
WORDS = {
    "total_bytes": "total",
    "peak_states_bytes": "fullest moment",
    "throughput_ratio": "speed against the baseline's",
}
UNEVEN = (
    *("dgc", "dgc+packed", "dgc-momentum", "dgc-simple", "threshold", "topk+packed"),
    *("gaussian", "redsync", "redsync-trim", "sidco-exp", "sidco-gp", "sidco-gamma", "adtopk-threshold", "ok-topk"),
)
"""Compressors whose message length depends on the values, and with it the bytes in flight."""


def band_of(quantity: str, compressor: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> float | None:
    """Return by how much a quantity may differ, of measurements with these provenances; None if it is not compared.

    It is absolute for savings, else relative. On shared cores speeds vary by a tenth; other machines and releases of
    torch sum metrics in other orders, and have other temporaries at the fullest moment.
    """
    same_device = then["device"] == now["device"]
    on_cpu = same_device and now["device"] == "cpu"
    if quantity == "metric":
        return 0.03
    if quantity == "throughput_ratio":
        return 0.15 if same_device else None
    if quantity in PEAKS and same_device:
        same_torch = str(then["torch"]).split(".")[:2] == str(now["torch"]).split(".")[:2]
        exact = on_cpu and same_torch and compressor not in UNEVEN
        return 0.0 if exact else 0.02 if quantity in SAVINGS else 0.05
    return None if quantity in PEAKS else 0.0 if on_cpu else 0.0025


# --- Compare a run with a reference ---

HEADINGS = {
    "problem": "NOT COMPARED, since there is no valid record",
    "worse": "WORSE than the reference",
    "new": "NEW, not in the reference",
    "better": "BETTER than the reference",
}
FAILING = ("problem", "worse")


@dataclass(frozen=True)
class Outcome:
    """A difference between a run and its reference."""

    label: str
    """Name of the setting for people: "w+2d, kept on vgg-digits"."""
    verdict: str
    """One of HEADINGS."""
    text: str


def compare(reference: Reference, run: Run) -> list[Outcome]:
    """Return all that differs, in the order of the reference, then of the run."""
    rows, now = rows_of(run), provenance_of(run.results.values())
    found = [Outcome(label_of(cell, reference), "problem", why) for cell, why in problems(run)]
    for setting, old in reference.rows.items():
        label = label_of(setting, reference)
        named = {cell.seed for cell in run.cells if replace(cell, seed=0) == setting}
        if lost := [seed for seed in old["seeds"] if seed not in named]:
            text = f"missing: seeds {', '.join(map(str, lost))} are in the reference and not in the run's config"
            found.append(Outcome(label, "problem", text))
        if new := rows.get(setting):
            its = (_differs(setting, old, new, quantity, reference.provenance, now) for quantity in QUANTITIES)
            found += [Outcome(label, *one) for one in its if one]
    return found + [
        Outcome(label_of(one, reference), "new", "not in the reference") for one in rows if one not in reference.rows
    ]


def label_of(cell: Cell, reference: Reference) -> str:
    """Return a cell's scheme and gradients, with the rarer fields in which it differs from the first baseline."""
    baselines = (one for one in reference.rows if all(getattr(one, name) == BASELINE[name] for name in BASELINE))
    seed = f", seed {cell.seed}" if cell.seed else ""
    return f"{short_labels([replace(cell, seed=0), next(baselines, cell)])[0]} on {cell.model}{seed}"


def problems(run: Run) -> Iterator[tuple[Cell, str]]:
    """Yield the cells without a measurement, and those whose record contradicts itself, another, or is there twice."""
    for cell, hole in run.holes.items():
        yield cell, f"{hole.status}: {hole.reason}; to fill it: {hole.command}"
    for cell, result in run.results.items():
        if why := unsound(result) or run.doubts.get(cell):
            yield cell, f"{why}; such a record was not measured: delete it, and run its cell again"
    for results in run.settings.values():
        for one in results[1:]:  # a row keeps only the seed with most
            held = [[getattr(result, name) for name in STATE_FIELDS] for result in (results[0], one)]
            if held[0] != held[1]:
                yield one.cell, f"it holds {held[1]}, seed {results[0].cell.seed} {held[0]}; run the wrong one again"
    for path, result in strays(run):
        if result.cell in run.results:
            yield result.cell, f"there twice: cells/{result.cell.name}.json and cells/{path.name} are records of it"


def _differs(
    setting: Cell, old_row: Row, new_row: Row, quantity: str, then: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return verdict and text of a quantity; None if it is as in the reference, or not compared."""
    old, new = value_of(old_row, quantity), value_of(new_row, quantity)
    word = WORDS.get(quantity, quantity.removesuffix("_bytes").replace("_", " "))
    band = band_of(quantity, setting.compressor, then, now)
    if old is None:
        return None
    if new is None:
        why = "there is no record of its baseline" if quantity in SAVINGS else f"needed are {SHORT_STEPS} steps"
        return "problem", f"{word}: the reference has it, the run has not: {why}"
    if quantity == "metric" and any(old_row[name] != new_row[name] for name in ("metric_name", "higher_is_better")):
        return (
            "problem",
            f"{word}: it was {old_row['metric_name']}, and is {new_row['metric_name']}, or better otherwise",
        )
    if fewer := fewer_than_planned(setting, quantity, old, new):
        return "problem", f"{word}: {fewer}"
    apart = abs(new - old)
    relative = apart if quantity in SAVINGS else apart / abs(old) if old else float(new != old)
    if band is None or relative <= band:
        return None
    more_is_worse = quantity in GUARDED or (quantity == "metric" and old_row["higher_is_better"] is False)
    direction = "more" if new > old else "less"
    if quantity in SAVINGS:
        text = f"{word} {100 * old:.2f} % -> {100 * new:.2f} %: {100 * apart:.2f} points {direction}"
    elif quantity in GUARDED:
        text = f"{word} {old:,} -> {new:,}: {apart:,} bytes {direction}"
    else:
        text = f"{word} {old:.6g} -> {new:.6g}: {100 * relative:.3g} % {direction}"
    return "worse" if (new > old) == more_is_worse else "better", text


def value_of(row: Row, quantity: str) -> Any:
    """Return a quantity of a row; None if it has none."""
    if quantity not in SAVINGS:
        return row.get(quantity)
    whole = row.get("baseline_total_bytes")
    return 1 - row[SAVINGS[quantity]] / whole if whole else None


def difference_text(outcomes: Iterable[Outcome]) -> str:
    """Return all that differs, by verdict and setting."""
    lines = []
    for verdict, heading in HEADINGS.items():
        by_label = grouped((one.label, one.text) for one in outcomes if one.verdict == verdict)
        lines += [f"\n{heading}: {len(by_label)}"] if by_label else []
        for label, (first, *others) in by_label.items():
            lines += [f"  {label}: {first}", *(f"    {text}" for text in others)]
    return "\n".join(lines)


def junit(outcomes: Iterable[Outcome], labels: Iterable[str]) -> bytes:
    """Return a JUnit file with a test case for each setting; what fails the check is its failure."""
    suite = ElementTree.Element("testsuite", name="benchmarks check")
    told = grouped((one.label, one) for one in outcomes)
    for label in dict.fromkeys([*labels, *told]):
        case = ElementTree.SubElement(suite, "testcase", classname="check", name=printable(label))
        for name, fails in (("failure", True), ("system-out", False)):
            if texts := [one.text for one in told.get(label, ()) if (one.verdict in FAILING) == fails]:
                ElementTree.SubElement(case, name).text = printable("\n".join(texts))
    suite.attrib |= {"tests": str(len(suite)), "failures": str(len(suite.findall("testcase/failure")))}
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


# --- The command ---


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.epilog = "Exit status: 0 as the reference or better, 1 worse or without valid records, 2 wrong use."
    parser.add_argument("--run", required=True, type=Path, help="the run's folder, e.g. results/runs/memory")
    parser.add_argument("--reference", required=True, type=Path, help="file of committed measurements")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the outcome as a JUnit file too")
    text = "make the run the reference, which keeps the reason; with exit status 0"
    parser.add_argument("--accept", metavar="REASON", help=text)
    text = "train the cells of this config first, those of one rank in this process, into the run's folder"
    parser.add_argument("--measure", metavar="CONFIG", type=Path, help=text)


def main(args: argparse.Namespace) -> int:
    """Compare, say what differs, and return the exit status. Raises ConfigError, with one line, for wrong use."""
    named = args.reference
    path = named if named.suffix == ".json" else named.with_name(f"{named.name}.json")
    if args.accept is not None and not args.accept.strip():
        raise ConfigError("accept: '' is no reason; say why the measurements may change: --accept 'why'")
    for name, file in (("reference", path if args.accept else None), ("junit", args.junit)):
        if file is not None:
            writable(name, file)
    reference = None if args.accept and not path.exists() else Reference.load(path)
    if args.measure is not None:
        measure(args.measure, args.run)
    run = load_run(args.run)
    now = provenance_of(run.results.values())
    if several := [f"{name} {now[name]}" for name in ONE_OF if now and not isinstance(now[name], str)]:
        raise ConfigError(f"run: {run.folder} has records of several setups, or none: {'; '.join(several)}")
    print_doubts(run)
    for note in [*run.notes, *_other_setup(run, reference, now)]:
        say(f"Note: {note}")
    outcomes = [] if reference is None else compare(reference, run)
    if reference is not None:
        say(f"{run.folder} against {path}: {len(reference.rows)} settings\n{difference_text(outcomes)}")
        if args.junit is not None:
            save_bytes(junit(outcomes, [label_of(one, reference) for one in reference.rows]), args.junit)
    if args.accept is not None:
        return _accept(run, args.accept, path, reference, outcomes)
    failed = {one.label for one in outcomes if one.verdict in FAILING}
    say(f"Check {f'FAILED: {len(failed)} settings' if failed else 'PASSED'}")
    if outcomes:
        say("To make what is told here the reference: the same command with --accept 'why'")
    return 1 if failed else 0


def _other_setup(run: Run, reference: Reference | None, now: Mapping[str, Any]) -> Iterator[str]:
    here = provenance()["commit"]
    if others := sum(one.provenance.get("commit") != here for one in run.results.values()):
        yield f"{others} records are not of this checkout's commit, {here}"
    then = reference.provenance if reference else now
    for name in ONE_OF if now else ():
        if now[name] != then[name]:
            less = ": bytes in flight and speeds are not compared" if name == "device" else ""
            yield f"{name} is {now[name]}, that of the reference {then[name]}{less}"


def _accept(run: Run, reason: str, path: Path, old: Reference | None, outcomes: list[Outcome]) -> int:
    """Make a run the reference, whose history gets the reason and the changes; a run with gaps is refused."""
    wrong = [*(f"{cell.name}: {why}" for cell, why in problems(run)), *run.notes]
    wrong += [f"{one.label}: {one.text}" for one in outcomes if one.text.startswith("missing: ")]
    rows = rows_of(run)
    if wrong or not rows:
        raise ConfigError(f"accept: {run.folder} cannot be a reference: {[*wrong, 'no records'][0]}")
    if old is not None and not outcomes:
        say(f"Nothing differs: {path} stays as it is")
        return 0
    told = [f"{one.label}: {one.text}" for one in outcomes] or [f"{len(rows)} settings measured for the first time"]
    here, day = provenance(), datetime.now(UTC).date().isoformat()
    entry = {"date": day, "reason": " ".join(reason.split()), "commit": here["commit"], "dirty": here["dirty"]}
    history = [*(old.history if old else []), entry | {"changes": told}]
    Reference(path, rows, provenance_of(run.results.values()), history).save()
    say(f"Accepted: {path} has {len(rows)} settings, and why: {entry['reason']}")
    return 0


def measure(config_file: Path, folder: Path) -> None:
    """Write a record for every cell of a config into a run's folder, replacing existing ones.

    Cells with backend local are trained in this process, one after another, as a process for each would take most of
    the time. Their speed and the memory resident in the process therefore mean nothing.
    The others are trained as always, by `python -m benchmarks run`. No cell starts from pretrained weights here,
    because bytes do not depend on them. Raises ConfigError, with one line, for an invalid config.
    """
    config = read_config(config_file)
    cells = get_cells(config)
    write_specs(str(folder), config, cells.values())
    (folder / "logs").mkdir(exist_ok=True)
    for cell in counted("measured cells", cells.values(), len(cells)):
        record = folder / f"cells/{cell.name}.json"
        for old in (record, record.with_suffix(".failed.json")):
            old.unlink(missing_ok=True)
        with (folder / f"logs/{cell.name}.log").open("w", encoding="utf-8") as file:
            if cell.backend == "local":
                with redirect_stderr(file):
                    _train_here(cell).save(record)
            else:
                command = [sys.executable, "-m", "benchmarks", "run", "--cell", str(folder / f"specs/{cell.name}.json")]
                subprocess.run([*command, "--output", str(record)], stdout=file, stderr=file, check=False)


def _train_here(cell: Cell) -> CellResult:
    from resireduce.comm.local import LocalCommunicator

    started = time.monotonic()
    outcome = load("benchmarks.training.rank:run_rank")(cell, LocalCommunicator(), None, find_root())
    gc.collect()  # so that leftovers of a cell do not count for the next one
    return to_result(cell, [outcome], time.monotonic() - started, None)
