"""`python -m benchmarks measure testbed`: times steps on nodes with slow links, and the inputs of the simulator.

`python -m benchmarks simulate --measured FILE` compares the two. Imports no torch.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.core.checks import first_twice, integer
from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import cores, timing_provenance
from benchmarks.core.workloads import WORKLOADS
from benchmarks.micro.links_command import (
    FORMS,
    INTERFACE,
    TOPK,
    UNSLOWED,
    check_rate,
    check_that_nodes_can_be_made,
    slow_nodes,
    timed_row,
)
from benchmarks.micro.train_on_nodes import make_cells, train_on
from resireduce.errors import ConfigError, choose

LAYOUTS = {"2x2": (2, 2), "4x1": (4, 1)}
"""Number of nodes, and of ranks per node."""
RATES = ("100mbit", "1gbit", UNSLOWED)
COMPARED = (
    *(form for form in FORMS if form.get("density") != 0.001),
    {**TOPK, "compressor": "adtopk"},
)
"""Forms that are timed, flat and by nodes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    text = "how often each form is timed, in turn with the others (default: %(default)s)"
    parser.add_argument("--rounds", type=int, default=6, help=text)
    parser.add_argument("--steps", type=int, default=2, help="training steps of a round (default: %(default)s)")
    parser.add_argument("--model", default="gpt2-bytes", help="one of the suite's (default: %(default)s)")
    known = ", ".join(LAYOUTS)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), help=f"nodes x ranks of each (default: {known})")
    parser.add_argument("--rates", nargs="+", default=list(RATES), help=f"of links (default: {', '.join(RATES)})")
    place = Path("results/runs/testbed.json")
    parser.add_argument("--output", type=Path, default=place, help="JSON file (default: %(default)s)")


def main(args: argparse.Namespace) -> int:
    """Write the measurements, setting by setting, and return 0. Raises ConfigError for unusable input."""
    rounds, steps = integer("rounds", args.rounds, 2, 10**4), integer("steps", args.steps, 1, 10**4)
    model = choose("model", args.model, WORKLOADS)
    layouts = [choose("layouts", one, LAYOUTS) for one in args.layouts]
    for name, given in (("layouts", layouts), ("rates", args.rates)):
        if twice := first_twice(given):
            raise ConfigError(f"{name}: {twice!r} is there twice; give each once")
    for rate in args.rates:
        check_rate(rate)
    check_that_nodes_can_be_made()
    os.environ[DEVICE_VARIABLE] = "cpu"
    writable("output", args.output)
    here, settings = timing_provenance(), []
    for layout in layouts:
        for rate in args.rates:
            settings.append(measured(model, LAYOUTS[layout], rate, rounds, steps))
            print(f"{layout}, {rate}: {len(settings[-1]['rows'])} forms timed", flush=True)
            setting = {"model": model, "rounds": rounds, "steps": steps, "settings": settings}
            save_json({**setting, "measured": here}, args.output)
    print(f"Compare it with: python -m benchmarks simulate --measured {args.output}")
    return 0


def measured(model: str, layout: tuple[int, int], rate: str, rounds: int, steps: int) -> dict[str, Any]:
    """Return the measurements with one layout and one rate: a row for each form, and the inputs of the simulator."""
    cells, load = make_cells(model, COMPARED, *layout), list(os.getloadavg())
    with slow_nodes(rate, layout[0]) as nodes:
        found = train_on(nodes, cells, rounds, steps, True, variables={"GLOO_SOCKET_IFNAME": INTERFACE})
    rows = [timed_row(*one, steps) for one in zip(cells, found.seconds, found.merged, strict=True)]
    for row in rows:
        del row["costs"]  # the library measured these in the steps that are compared
    place = {"nodes": layout[0], "ranks_per_node": layout[1], "rate": rate, "load_before": load}
    return {**place, "inputs": typical(found.inputs, cores()), "rows": rows}


# --- Inputs of a simulated step: medians over rounds, mostly of the latest rank ---


Samples = Sequence[Sequence[dict[str, Any]]]
"""For each rank, its measurements in each round, in the form of `benchmarks.training.inputs`."""
PASSES = ("forward_seconds", "backward_seconds", "step_seconds")


def typical(samples: Samples, cores: int) -> dict[str, Any]:
    """Return the inputs of a simulated step as plain values, by the medians of all rounds.

    Passes and messages are those of the latest rank, for which all others wait; compression, and the processor time of
    messages, are means over ranks. cores: processors that all ranks share.
    """
    rounds = list(zip(*samples, strict=True))
    return {
        "cores": cores,
        "passes": {hierarchy: _passes(rounds, hierarchy) for hierarchy in rounds[0][0]["passes"]},
        "copied_bytes_per_second": median(fmean(rank["copied_bytes_per_second"] for rank in one) for one in rounds),
        "compression": _compression(rounds),
        "messages": {name: _messages(rounds, name) for name in rounds[0][0]["messages"]},
    }


def _passes(rounds: Sequence[Sequence[dict[str, Any]]], hierarchy: str) -> dict[str, Any]:
    """Return the seconds of passes, and the arrival of each gradient by name, in their order."""
    steps = range(len(rounds[0][0]["passes"][hierarchy]))
    each = [[rank["passes"][hierarchy][step] for rank in one] for one in rounds for step in steps]
    arrived = {
        name: median(max(passes["arrived_seconds"][name] for passes in one) for one in each)
        for name in each[0][0]["arrived_seconds"]
    }
    found = {key: median(max(passes[key] for passes in one) for one in each) for key in PASSES}
    return {**found, "arrived_seconds": dict(sorted(arrived.items(), key=lambda item: item[1]))}


def _compression(rounds: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each form and size: the seconds of the mean tensor of that size, medians over rounds."""
    rows = []
    for number, form in enumerate(rounds[0][0]["compression"]):
        for size in sorted({tensor["elements"] for tensor in form["tensors"]}):
            each = [[tensor for rank in one for tensor in rank["compression"][number]["tensors"]] for one in rounds]
            tensors = [[tensor for tensor in one if tensor["elements"] == size] for one in each]
            averaging = {
                peers: _typical(tensors, lambda tensor, peers=peers: tensor["average_seconds"][peers])  # type: ignore[misc]
                for peers in tensors[0][0]["average_seconds"]
            }
            compress = _typical(tensors, lambda tensor: tensor["compress_seconds"])
            named = {"compressor": form["compressor"], "density": form["density"], "elements": size}
            rows.append(named | {"compress_seconds": compress, "average_seconds": averaging})
    return rows


def _typical(rounds: Sequence[Sequence[dict[str, Any]]], read: Callable[[dict[str, Any]], float]) -> float:
    return median(fmean(map(read, one)) for one in rounds)


def _messages(rounds: Sequence[Sequence[dict[str, Any]]], name: str) -> list[dict[str, Any]]:
    rows = []
    for place, row in enumerate(rounds[0][0]["messages"][name]):
        found = {
            key: median(max(rank["messages"][name][place][key] for rank in one) for one in rounds)
            for key in ("in_turn", "at_once")
        }
        busy = median(fmean(rank["messages"][name][place]["processor"] for rank in one) for one in rounds)
        rows.append({"bytes": row["bytes"], **found, "processor": busy})
    return rows
