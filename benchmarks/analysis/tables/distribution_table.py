"""The distributions table: are the residuals of a reusable group alike, and different from other groups'? (Fig. 4)"""

from typing import Any

from benchmarks.analysis.grouping import first_of
from benchmarks.analysis.labels import ABSENT, short_labels
from benchmarks.analysis.load_run import Run
from benchmarks.analysis.table import Record, Table, setting_record

NAME = "distributions"
KINDS = ("wasserstein", "jensen_shannon")
DIGITS = {"within": 3, "between": 3, "ratio": 1}
HEAD = ["Model", "Scheme, gradients", "Ranks", "Groups", "Within", "Between", "Ratio", "JS within", "JS between"]
HEAD += ["JS ratio"]
OBSERVED = ("densities of residuals by group", "make run RUN=mini PART=distributions")
"""What a run without observing cells lacks, and the command that measures it."""
READING = (
    "Residuals of rank 0 after the last step: how far apart the values of two tensors are distributed, mean over pairs "
    "within one reusable group and of different groups. First the 1-Wasserstein distance, in standard deviations of "
    "the pair, then the Jensen-Shannon (JS) divergence of their histograms, in bits; 0 for equal distributions. A "
    "ratio between / within above 1 says that groups gather what is alike."
)


def distributions(run: Run) -> Table:
    """Return the distributions table of a run; empty if no cell observed them."""
    records: list[Record] = []
    body = []
    whole = (
        (s, one) for s, results in run.settings().items() for one in results if _is_whole(one.observations.get(NAME))
    )
    observed = first_of(whole)
    labels = short_labels(list(observed))
    for (setting, result), label in zip(observed.items(), labels, strict=True):
        seen = result.observations[NAME]
        common = setting_record(setting, [result]) | {"seed": result.cell.seed, "bins": seen["bins"]}
        records.append(common | _columns("all", seen))
        records += [common | _columns(group["members"][0], group) for group in seen["groups"]]
        body.append([setting.model, label, str(setting.world_size), str(len(seen["groups"])), *_texts(seen)])
    return Table(
        NAME,
        "Distributions",
        READING,
        records,
        HEAD,
        body,
        figure="benchmarks.analysis.charts.curves_chart:densities_chart",
        text_columns=2,
        lacks=() if body else (OBSERVED,),
        notes=["One seed and one rank each. Distances of every group, and its densities: tables/distributions.csv."],
    )


def _is_whole(seen: Any) -> bool:
    """Return whether an observation is complete; a record is valid with any observations."""
    try:
        _texts(seen)
        for group in seen["groups"]:
            _columns(group["members"][0], group)
            float(group["standard_deviation"]), [len(density) for density in group["densities"]]
        return seen["bins"]["low"] < seen["bins"]["high"] and seen["bins"]["count"] > 0
    except (LookupError, TypeError, ValueError, AttributeError):
        return False


def _columns(name: str, seen: dict[str, Any]) -> Record:
    """Return what was observed of a group, or of all: distances, and the fields that only a group has."""
    record: Record = {"group": name, "members": seen.get("members"), "shape": seen.get("shape")}
    for kind in KINDS:
        within, between = (seen[pairs][kind] for pairs in ("within", "between"))
        ratio = between / within if within and between is not None else None
        record |= {f"{kind}_within": within, f"{kind}_between": between, f"{kind}_ratio": ratio}
    record |= {f"pairs_{pairs}": seen[pairs]["pairs"] for pairs in ("within", "between")}
    return record | {name: seen.get(name) for name in ("standard_deviation", "densities")}


def _texts(seen: dict[str, Any]) -> list[str]:
    found = _columns("all", seen)
    values = [(found[f"{kind}_{what}"], digits) for kind in KINDS for what, digits in DIGITS.items()]
    return [ABSENT if value is None else f"{value:.{digits}f}" for value, digits in values]
