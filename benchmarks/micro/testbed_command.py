"""`python -m benchmarks measure testbed`: times steps on nodes with slow links, and the inputs of the simulator.

`python -m benchmarks simulate --measured FILE` compares the two. Imports no torch.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from statistics import fmean, median
from typing import Any

from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import cores, timing_provenance
from benchmarks.micro.links_command import FORMS, TOPK, UNSLOWED, time_on_nodes
from benchmarks.micro.pace import add_timing, make_cells, rounds_and_steps

MODEL = "gpt2-bytes"
LAYOUTS = ((2, 2), (4, 1))
"""Number of nodes, and of ranks per node."""
RATES = ("100mbit", "1gbit", UNSLOWED)
COMPARED = (*(form for form in FORMS if form.get("density") != 0.001), {**TOPK, "compressor": "adtopk"})
"""Forms that are timed, flat and by nodes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_timing(parser, 6, 2, "results/runs/testbed.json")


def main(args: argparse.Namespace) -> int:
    """Write the measurements, setting by setting, and return 0. Raises ConfigError for unusable input."""
    rounds, steps = rounds_and_steps(args)
    writable("output", args.output)
    here, settings = timing_provenance(), []
    for (nodes, ranks_per_node), rate in product(LAYOUTS, RATES):
        settings.append(measured(nodes, ranks_per_node, rate, rounds, steps))
        print(f"{nodes} x {ranks_per_node}, {rate}: {len(settings[-1]['rows'])} forms timed", flush=True)
        setting = {"model": MODEL, "rounds": rounds, "steps": steps, "settings": settings}
        save_json({**setting, "measured": here}, args.output)
    print(f"Compare it with: python -m benchmarks simulate --measured {args.output}")
    return 0


def measured(nodes: int, ranks_per_node: int, rate: str, rounds: int, steps: int) -> dict[str, Any]:
    """Return the measurements with one layout and one rate: a row for each form, and the inputs of the simulator."""
    cells = make_cells(MODEL, COMPARED, nodes, ranks_per_node)
    timed, found = time_on_nodes(cells, rate, nodes, rounds, steps, inputs=True)
    for row in timed["rows"]:
        del row["costs"]  # the library measured these in the steps that are compared
    inputs = typical([rank["inputs"] for rank in found], cores())
    return {"nodes": nodes, "ranks_per_node": ranks_per_node, "rate": rate, **timed, "inputs": inputs}


Samples = Sequence[Sequence[Any]]
"""Measurements of one thing, in the same form: for each round, those of all ranks."""
CONSTANTS = ("bytes", "elements")
MEANS = ("processor", "copied_bytes_per_second")


def typical(samples: Samples, cores: int) -> dict[str, Any]:
    """Return the inputs of a simulated step as plain values, by the medians of all rounds.

    Passes and messages are those of the latest rank, for which all others wait; compression, of the mean tensor of each
    size, and the processor time of messages, are means over ranks. `samples` has for each rank its measurements in each
    round, in the form of `benchmarks.training.pace_rank`; `cores` are those that all ranks share.
    """
    rounds = list(zip(*samples, strict=True))
    first = rounds[0][0]
    found: dict[str, Any] = {"cores": cores, "passes": {}, "compression": []}
    for key in ("copied_bytes_per_second", "messages"):
        found[key] = _typical([[{key: rank[key]} for rank in one] for one in rounds], max)[key]
    for hierarchy, steps in first["passes"].items():
        each = [[rank["passes"][hierarchy][step] for rank in one] for one in rounds for step in range(len(steps))]
        passes = _typical(each, max)
        arrived = sorted(passes["arrived_seconds"].items(), key=lambda item: item[1])
        found["passes"][hierarchy] = passes | {"arrived_seconds": dict(arrived)}
    for number, form in enumerate(first["compression"]):
        named = {"compressor": form["compressor"], "density": form["density"]}
        for size in sorted({tensor["elements"] for tensor in form["tensors"]}):
            tensors = [[one for rank in ranks for one in rank["compression"][number]["tensors"]] for ranks in rounds]
            each = [[one for one in several if one["elements"] == size] for several in tensors]
            found["compression"].append(named | _typical(each, fmean))
    return found


def _typical(rounds: Samples, of_ranks: Callable[[Iterable[float]], float]) -> Any:
    """Return what the ranks have found in the same form: each number is the median of what is made `of_ranks`."""
    first = rounds[0][0]
    if isinstance(first, dict):
        return {
            key: value if key in CONSTANTS else _typical(_parts(rounds, key), fmean if key in MEANS else of_ranks)
            for key, value in first.items()
        }
    if isinstance(first, list):
        return [_typical(_parts(rounds, place), of_ranks) for place in range(len(first))]
    return median(of_ranks(one) for one in rounds)


def _parts(rounds: Samples, key: Any) -> Samples:
    return [[values[key] for values in one] for one in rounds]
