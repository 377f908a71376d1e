"""`python -m benchmarks measure testbed`: times steps on nodes with slow links, and the inputs of the simulator.

`python -m benchmarks simulate --measured FILE` compares the two. Imports no torch.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.core.checks import first_twice, integer
from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.files import save_json, writable
from benchmarks.core.provenance import cores, timing_provenance
from benchmarks.core.workloads import WORKLOADS
from benchmarks.micro.links_command import FORMS, TOPK, timed_row
from benchmarks.micro.slow_nodes import INTERFACE, UNSLOWED, check_rate, check_that_nodes_can_be_made, slow_nodes
from benchmarks.micro.train_on_nodes import make_cells, train_on
from benchmarks.micro.typical_inputs import typical
from resireduce.errors import ConfigError, choose

LAYOUTS = {"2x2": (2, 2), "4x1": (4, 1)}
"""Number of nodes, and of ranks per node."""
RATES = ("100mbit", "1gbit", UNSLOWED)
COMPARED = (
    *(form for form in FORMS if form.get("density") != 0.001 and not str(form.get("merge")).startswith("dear")),
    {**TOPK, "compressor": "adtopk"},
)
"""Forms that are timed, flat and by nodes; DeAR is left out, as a lone reduce-scatter is not among the inputs."""


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
        found = train_on(nodes, cells, rounds, steps, "inputs", GLOO_SOCKET_IFNAME=INTERFACE)
    rows = [timed_row(*one, steps) for one in zip(cells, found.seconds, found.merged, strict=True)]
    for row in rows:
        del row["costs"]  # the library measured these in the steps that are compared
    place = {"nodes": layout[0], "ranks_per_node": layout[1], "rate": rate, "load_before": load}
    return {**place, "inputs": typical(found.inputs, cores()), "rows": rows}
