"""Compare published speeds of papers and READMEs with simulations of the clusters they name: never a reproduction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from benchmarks.analysis.claims.claim import load_published
from benchmarks.analysis.table import Table
from benchmarks.core.paths import ROOT
from benchmarks.simulation.cluster import find_cluster
from benchmarks.simulation.model_layers import Layers, layers_of
from benchmarks.simulation.results import simulate
from benchmarks.simulation.step_time import Settings
from benchmarks.simulation.wire import Case

FILE = ROOT / "benchmarks/simulation/published.yaml"
RULE = "horovod"
"""The merging rule by which the published systems send."""
QUANTITIES = {"throughput_loss": "slower by", "throughput_gain": "faster by"}
READING = (
    "Published beside simulated, which is neither a measurement nor a reproduction: the cluster is described, what "
    "training reaches of its devices' rates is assumed, and compression takes the bytes of memory that it moves, the "
    "least that it can."
)
HEAD = ["Source", "Model", "Cluster", "Ranks", "", "Published", "Simulated"]


def published_table(find_layers: Callable[[str], Layers] = layers_of, models: Sequence[str] | None = None) -> Table:
    """Return the table of everything published, or of `models` only; `find_layers` returns a model's layers.

    This takes a minute, as it goes through the largest models tensor by tensor.
    """
    records = []
    for entry in yaml.safe_load(FILE.read_text(encoding="utf-8")):
        for model in entry["models"]:
            if models is None or model in models:
                records += list(_records(entry, model, Settings(find_layers(model))))
    body = list(map(_texts, records))
    return Table("published", "Speed: published beside simulated", READING, records, HEAD, body, text_columns=3)


def _records(entry: Mapping[str, Any], model: str, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield a record, in per cent, for each number of ranks of an entry of the file."""
    cluster, quantity = find_cluster(entry["cluster"]), entry["quantity"]
    for ranks in entry["ranks"]:
        cases = [Case(cluster, ranks, **entry[key], rule=RULE) for key in ("case", "beside")]
        step, other = (one.step_seconds for one in simulate(cases, settings))
        numbers = f"{entry.get('numbers')}-{model}"
        yield {
            "source": entry["source"],
            "model": model,
            "cluster": cluster.name,
            "ranks": ranks,
            "quantity": quantity,
            "published": load_published()[numbers].value if "numbers" in entry else float(entry["value"]),
            "is_most": bool(entry.get("is_most")),
            "simulated": 100 * (1 - other / step if quantity == "throughput_loss" else other / step - 1),
            "simulated_step_seconds": step,
        }


def _texts(one: Mapping[str, Any]) -> list[str]:
    """Return a line of the table."""
    published = f"{'up to ' * one['is_most']}{one['published']:g} %"
    place = [one["source"], one["model"], one["cluster"], str(one["ranks"])]
    return [*place, QUANTITIES[one["quantity"]], published, f"{one['simulated']:.2f} %"]
