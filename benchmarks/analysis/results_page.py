"""`python -m benchmarks pages`: make docs/results.md and the pictures of docs/ from results/reference."""

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.analysis import gpu_records
from benchmarks.analysis.claims.claim import published_savings
from benchmarks.analysis.claims.claims_command import adjusted
from benchmarks.analysis.claims.kinds import load_claims
from benchmarks.analysis.claims.metric_claims import margin_and_spread, metrics_of, seeds_needed
from benchmarks.analysis.grouping import grouped
from benchmarks.analysis.labels import ABSENT, metric_heading, percent, signed_with_half, with_half
from benchmarks.analysis.page.page import rendered
from benchmarks.analysis.statistics import interval, p_beyond, paired, power
from benchmarks.analysis.summaries import SETTING, intervals_table, row_labels, usual_rows
from benchmarks.analysis.tuned import CLAIMS, WORDS, verdicts
from benchmarks.core.cell import Cell
from benchmarks.core.files import load_json, save_text
from benchmarks.core.ways import FORMS, WAYS
from benchmarks.core.workloads import PAPER
from resireduce.scheme import load

RATES = ("100mbit", "1gbit")
"""The rates of links at which steps were timed for the time to accuracy, as the names of the records have them."""
REFERENCE, PAGE, TEMPLATE = Path("results/reference"), Path("docs/results.md"), "docs/results.md.j2"
Row = dict[str, Any]
Setting = tuple[str, str, str]
"""Compressor, scheme and gradients."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no options: it is for the project's folder, which it is run in."""


def main(args: argparse.Namespace) -> int:
    """Write the page and its pictures."""
    save_text(render(Path()), PAGE)
    reference = Reference(REFERENCE)
    for name, (chart, rows) in PICTURES.items():
        drawn = load(f"benchmarks.analysis.charts.{chart}")(*rows(reference))
        save_text(load("benchmarks.analysis.charts.draw:drawn")(name, drawn).svg + "\n", Path(f"docs/{name}.svg"))
    print(PAGE)
    return 0


def whole_rows(rows: Iterable[Row]) -> list[Row]:
    """Return rows with the fields that cells have gained since, at their defaults."""
    return [Cell(model=row["model"]).to_dict() | row for row in rows]


def render(root: Path) -> str:
    """Return the text of docs/results.md."""
    filters = {"where": where, "percents": "{:.1f} %".format}
    return rendered(TEMPLATE, root, filters, **Reference(root / REFERENCE).words()).removesuffix("\n")


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Return the rows with these values."""
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def machine(cpu: str, cores: int | str) -> str:
    """Return the usual name of a processor, from the name that the kernel gives it."""
    plain = re.sub(r"\((R|TM)\)| Processor| CPU", "", cpu)
    return f"{cores} cores (" + re.sub(r" @ ([0-9.]+)GHz", r" at \1 GHz", plain) + ")"


class Reference:
    """The files of results/reference, and what the template says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Any] = {}

    def words(self) -> dict[str, Any]:
        """Return all names that the template may use."""
        plain: list[Callable[..., Any]] = [interval, paired, power, seeds_needed, percent, machine]
        plain += [span, mib, saved, intervals_table, label, verdicts]
        found = {name: getattr(self, name) for name in vars(Reference) if name[0] != "_"}
        found |= {one.__name__: one for one in plain}
        found |= {"pm": with_half, "signed": signed_with_half, "heading": metric_heading}
        found |= {"claims": CLAIMS, "words": WORDS, "ways": WAYS, "forms": FORMS, "published": published_savings}
        found["mean"] = lambda rows, name: mean(row[name] for row in rows)
        found["paper_models"] = [workload.model for workload in PAPER]
        return found

    def ref(self, name: str) -> Any:
        """Return the values of a file."""
        if name not in self.files:
            self.files[name] = load_json(self.folder / f"{name}.json")
        return self.files[name]

    def rows(self, name: str, /, **wanted: Any) -> list[Row]:
        """Return the rows of a file with these values."""
        return where(self.ref(name)["rows"], **wanted)

    def one(self, name: str, /, **wanted: Any) -> Row:
        """Return the first of these rows."""
        return self.rows(name, **wanted)[0]

    def fastest(self, name: str, /, **wanted: Any) -> Row:
        """Return of these rows the one with the least median: that of the better way to merge messages."""
        return min(self.rows(name, **wanted), key=lambda row: row["median"])

    def by_model(self, name: str, key: str = "model") -> list[list[Row]]:
        """Return the rows of each model."""
        return list(grouped((row[key], row) for row in self.rows(name)).values())

    def origin(self, name: str) -> str:
        """Return on which machine and from which commit a file was measured, and for cells with how many seeds."""
        measured = self.ref(name)["measured"]
        if "commit" in measured:
            return f"{machine(measured['cpu'], measured['cores'])}, commit `{measured['commit'][:7]}`"
        seeds = [row["seeds"] for row in self.rows(name)]
        count = " to ".join(str(one) for one in sorted({min(seeds), max(seeds)}))
        machines = " and ".join(machine(cpu, cores) for cpu in measured["Processor"] for cores in measured["Cores"])
        commits = ", ".join(f"`{commit[:7]}`" for commit in measured["Commit"])
        dirty = " with uncommitted changes" if measured.get("Uncommitted changes", ["no"]) != ["no"] else ""
        return f"{count} seed{'' if max(seeds) == 1 else 's'} on {machines}, commit {commits}{dirty}"

    def usual(self, name: str) -> dict[str, dict[Setting, Row]]:
        """Return, by model and setting, the rows of two ranks at the usual density."""
        return usual_rows(self.rows(name))

    def of_models(self, *setting: str, field: str = "normalised") -> list[float]:
        """Return a field of a setting of the smoke matrix, model by model."""
        return [its[setting][field] for its in self.usual("smoke").values()]  # type: ignore[index]

    def shares(self, compressor: str, scheme: str, gradients: str, field: str = "normalised") -> str:
        """Return a setting's share of the baseline's memory, model by model."""
        values = self.of_models(compressor, scheme, gradients, field=field)
        return f"{' / '.join(f'{100 * one:.1f}' for one in values)} %"

    def settled(self) -> list[Row]:
        """Return the advantage of int4 over shared residuals by model, with its p-value by Holm's correction."""
        found = []
        for its in self.by_model("settle"):
            bits, shared = where(its, residual_dtype="int4")[0], where(its, residual_dtype=None)[0]
            sign = 1 if bits["higher_is_better"] else -1
            gain = interval([sign * one for one in paired(bits["metrics"], shared["metrics"])])
            assert gain is not None
            found.append({"model": bits["model"], **vars(gain), "p": p_beyond(gain, 0.0) or 0.0})
        return [row | {"p": p} for row, p in zip(found, adjusted([row["p"] for row in found]), strict=True)]

    def powers(self) -> list[tuple[str, float, float]]:
        """Return margin and spread of each small model's metric."""
        book = load_claims()
        return [(name, *margin_and_spread(book, one, {})) for name, one in metrics_of(self.rows("mini")).items()]

    def speeds(self) -> dict[tuple[Any, ...], Row]:
        """Return the speeds of compressors that were timed in turn, by setting."""
        names = ("model", "compressor", "scheme", "density")
        return {tuple(row[name] for name in names): row for row in self.rows("rivals-pace")}

    def times(self) -> list[Row]:
        """Return the rows of reach.json for each rate of the links, with the seconds of a step and to the level.

        A row gains rate; step, and time where every seed reaches the level: each median, low and high, in seconds. The
        ends of the time's interval are those of the steps' times those of the step's.
        """
        found = []
        for row, rate in product(self.rows("reach"), RATES):
            own = {name: row[name] for name in SETTING if name != "learning_rate"}
            timed = self.fastest(f"time/{row['model']}-{rate}", **own)
            step = {name: timed[name] for name in ("median", "low", "high")}
            time = None
            if row["steps_mean"] is not None:
                half = row["steps_half_width"] or 0.0
                steps = {"median": row["steps_mean"], "low": row["steps_mean"] - half, "high": row["steps_mean"] + half}
                time = {name: steps[name] * step[name] for name in steps}
            found.append(row | {"rate": rate, "step": step, "time": time})
        return found

    def gpus(self) -> list[gpu_records.Device]:
        """Return the GPUs with records that count."""
        return [one for one in gpu_records.read_devices(self.folder) if any(case.ranks for case in one.cases)]


def label(models: Mapping[Setting, Row], setting: Setting, settings: Sequence[Setting]) -> str:
    """Return the words for a setting among others of one model."""
    return row_labels([models[one] for one in settings])[list(settings).index(setting)]


def span(values: Sequence[float], whole: float, factor: float) -> str:
    """Return "a to b" of the least and the greatest of whole + factor * value."""
    found = sorted(whole + factor * value for value in values)
    return " to ".join(dict.fromkeys(f"{one:.0f}" for one in (found[0], found[-1])))


def mib(nbytes: int) -> str:
    """Return bytes in MiB."""
    return f"{nbytes / 2**20:,.0f}" if nbytes >= 10 << 20 else f"{nbytes / 2**20:.1f}"


def saved(gpu: gpu_records.Device, model: str, rung: str, **wanted: Any) -> str:
    """Return what a cell saves of the baseline at a rung, in per cent; a dash if one of them was not measured."""
    try:
        tested, against = (
            gpu_records.bytes_at(one, rung)
            for fields in ({**gpu_records.USUAL, **wanted}, gpu_records.BASELINE)
            for one in [next(one for one in gpu_records.matching(gpu, model, fields) if one.ranks)]
        )
        return f"{100 * (1 - tested / against):.1f} %"
    except (gpu_records.Unread, StopIteration, RuntimeError, ValueError):
        return ABSENT


PICTURES: Mapping[str, tuple[str, Callable[[Reference], Sequence[list[Row]]]]] = {
    "memory-against-accuracy": ("rows_chart:trade_off_chart", lambda found: [whole_rows(found.rows("mini"))] * 2),
    "contraction-against-bytes": ("rivals_chart:contraction_chart", lambda found: [found.rows("rivals")]),
    "lost-against-bytes": ("rivals_chart:lost_chart", lambda found: [found.rows("rivals")]),
    "systems": ("rivals_chart:systems_chart", lambda found: [found.rows("systems")]),
    "time-to-accuracy": ("curves_chart:times_chart", lambda found: [found.times()]),
    "larger": ("curves_chart:steps_chart", lambda found: [found.rows("larger")]),
}
"""Pictures of docs/, each with the function that draws it and its arguments. They are not compared, since the widths of
letters depend on the machine."""
