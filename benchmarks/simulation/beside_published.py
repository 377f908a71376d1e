"""Compare published speeds of papers and READMEs with simulations of the clusters they name: never a reproduction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from benchmarks.analysis.labels import ABSENT, TIMES
from benchmarks.analysis.published import load_published
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
QUANTITIES = {"throughput_loss": "slower by", "throughput_gain": "faster by", "speed_up": "as fast as one rank"}
READING = (
    "Published beside simulated, which is neither a measurement nor a reproduction: the cluster is described, what "
    "training reaches of its devices' rates is assumed, and compression takes the bytes of memory that it moves, the "
    "least that it can. Nothing is published where only a picture says it."
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
    body = [[one["source"], one["model"], one["cluster"], str(one["ranks"]), *_texts(one)] for one in records]
    return Table("published", "Speed: published beside simulated", READING, records, HEAD, body, text_columns=3)


def _records(entry: Mapping[str, Any], model: str, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield a record for each number of ranks of an entry of the file."""
    cluster = find_cluster(entry["cluster"])
    for ranks in entry["ranks"]:
        cases = [Case(cluster, ranks, **entry[key], rule=RULE) for key in ("case", "beside") if key in entry]
        steps = [one.step_seconds for one in simulate(cases, settings)]
        yield {
            "source": entry["source"],
            "model": model,
            "cluster": cluster.name,
            "ranks": ranks,
            "quantity": entry["quantity"],
            "published": _published(entry, model),
            "is_most": bool(entry.get("is_most")),
            "simulated": _value(entry["quantity"], ranks, steps, cluster, settings),
            "simulated_step_seconds": steps[0],
        }


def _published(entry: Mapping[str, Any], model: str) -> float | None:
    if "numbers" in entry:
        return load_published()[f"{entry['numbers']}-{model}"].value
    return None if entry["value"] is None else float(entry["value"])


def _value(quantity: str, ranks: int, steps: Sequence[float], cluster: Any, settings: Settings) -> float:
    """Return a quantity (per cent, or a speed-up) from the step of the case and the step it is compared with."""
    if quantity == "throughput_loss":
        return 100 * (1 - steps[1] / steps[0])
    if quantity == "throughput_gain":
        return 100 * (steps[1] / steps[0] - 1)
    forward, backward = settings.layers.seconds(cluster.device)
    alone = forward + float(backward.sum()) + settings.layers.update_seconds(cluster.device)
    return ranks * alone / steps[0]


def _texts(one: Mapping[str, Any]) -> list[str]:
    """Return the compared, published and simulated values as texts for a table."""
    published = ABSENT if one["published"] is None else f"{'up to ' * one['is_most']}{one['published']:g} %"
    speed_up = one["quantity"] == "speed_up"
    return [
        QUANTITIES[one["quantity"]],
        published,
        f"{one['simulated']:.1f} {TIMES}" if speed_up else f"{one['simulated']:.2f} %",
    ]
