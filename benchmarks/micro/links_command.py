"""`python -m benchmarks measure links`: times steps of a few nodes with slow links, in every form, round by round.

All forms train in the same processes, in turn, so other work on the machine affects all alike. Each node is a network
namespace of its own on this machine, which needs Linux and root. Imports no torch.
"""

import argparse
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.analysis.statistics import median_interval
from benchmarks.core.cell import Cell
from benchmarks.core.checks import integer
from benchmarks.core.devices import DEVICE_VARIABLE
from benchmarks.core.files import save_json, writable
from benchmarks.core.programs import output_of
from benchmarks.core.provenance import timing_provenance
from benchmarks.core.workloads import WORKLOADS
from benchmarks.launching.processes import die_with_parent
from benchmarks.micro.pace import add_timing, cells_of_configs, make_cells, rounds_and_steps, train_on
from resireduce.errors import ConfigError, choose
from resireduce.scheme import MERGES

NODES, RANKS_PER_NODE, MOST_RANKS = 2, 2, 64
SIZE_BYTES = 1 << 15
"""Bytes of a fixed-size message: about a third of what a rank sends for the small models at density 0.01."""
TOPK = {"compressor": "topk", "scheme": "baseline", "density": 0.01}
FORMS: tuple[dict[str, Any], ...] = (
    {"compressor": "none", "scheme": "none"},
    {"compressor": "fp16", "scheme": "none"},
    {**TOPK, "density": 0.001},
    *({**TOPK, "merge": merge} for merge in (MERGES[0], MERGES[1], SIZE_BYTES, *MERGES[2:])),
)
MERGED: tuple[dict[str, Any], ...] = ({"merge": "none"}, {"merge": 1 << 20})
"""A message for each tensor, which leaves earlier, or messages of at most a MiB, which are fewer: without compression
`gpt2-bytes` sends five MiB. Everything is timed in both ways, and compared in its better one."""
EXCHANGES: tuple[dict[str, Any], ...] = (
    {"compressor": "none", "scheme": "none"},
    {"compressor": "fp16", "scheme": "none"},
    *({"compressor": f"{kind}-two-phase", "scheme": "baseline"} for kind in ("block8", "block4", "fp8")),
    {"compressor": "block8", "scheme": "baseline"},
    TOPK,
    {**TOPK, "scheme": "w+2d", "gradients": "streamed"},
    {**TOPK, "residual_dtype": "int4", "gradients": "streamed"},
)
NAMES = ("compressor", "scheme", "gradients", "residual_dtype", "density", "optimizer", "hierarchy", "merge")
"""Fields of a cell that a row has."""
SETS = {"merges": FORMS, "exchanges": [form | merge for form in EXCHANGES for merge in MERGED]}
"""By the name of a set: the forms that are timed, flat and, where possible, by nodes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    add_timing(parser, 20, 2, "results/runs/links.json")
    text = "merges: top-k by each merging rule; exchanges: what sends all, beside top-k (default: %(default)s)"
    parser.add_argument("--forms", choices=SETS, default="merges", help=text)
    text = "in place of --forms: each setting of the model in these configs, with a message for each tensor and merged"
    parser.add_argument("--config", metavar="FILE", type=Path, nargs="+", help=text)
    parser.add_argument("--model", default="gpt2-bytes", help="one of the suite's (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=NODES, help="how many (default: %(default)s)")
    parser.add_argument("--ranks-per-node", type=int, default=RANKS_PER_NODE, help="each (default: %(default)s)")
    text = "of a node's link, each way, or unslowed (default: %(default)s)"
    parser.add_argument("--rate", default="100mbit", help=text)


def main(args: argparse.Namespace) -> int:
    """Write the seconds of all forms, print their medians, and return 0. Raises ConfigError for unusable input."""
    rounds, steps = rounds_and_steps(args)
    nodes = integer("nodes", args.nodes, 2, MOST_RANKS)
    ranks_per_node = integer("ranks_per_node", args.ranks_per_node, 1, MOST_RANKS // nodes)
    model = choose("model", args.model, WORKLOADS)
    if args.config:
        ranks = nodes * ranks_per_node
        cells = [one for merge in MERGED for one in cells_of_configs(args.config, model, world_size=ranks, **merge)]
        if not cells:
            raise ConfigError(f"config: no setting of {model} in {', '.join(map(str, args.config))}")
    else:
        cells = make_cells(model, SETS[args.forms], nodes, ranks_per_node)
    writable("output", args.output)
    timed, _ = time_on_nodes(cells, args.rate, nodes, rounds, steps)
    for cell, row in zip(cells, timed["rows"], strict=True):
        seconds = f"{row['median']:.4f} s ({row['low']:.4f} to {row['high']:.4f})"
        print(f"{cell.name} ({row['messages']} messages): {seconds}", flush=True)
    forms = [str(file) for file in args.config] if args.config else args.forms
    setting = {"model": args.model, "forms": forms, "nodes": nodes, "ranks_per_node": ranks_per_node}
    setting |= {"rate": args.rate, "rounds": rounds, "steps": steps}
    save_json({**setting, **timed, "measured": timing_provenance()}, args.output)
    print(f"Medians of a step over {rounds} rounds, and their 95 % intervals: {args.output}")
    return 0


def time_on_nodes(
    cells: Sequence[Cell], rate: str, nodes: int, rounds: int, steps: int, inputs: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Train cells in turn on nodes that links of `rate` join, and return what all ranks have found, beside this:

    `load_before`, and `rows`: each cell's form, messages, median seconds of a step, and the seconds of all rounds.
    """
    os.environ[DEVICE_VARIABLE] = "cpu"
    load = list(os.getloadavg())
    with slow_nodes(rate, nodes) as held:
        found = train_on(held, cells, rounds, steps, inputs, variables={"GLOO_SOCKET_IFNAME": INTERFACE})
    rows = []
    for cell, seconds, merged in zip(cells, found[0]["seconds"], found[0]["merged"], strict=True):
        each = [one / steps for one in seconds]
        median, low, high = median_interval(each)
        row = {name: getattr(cell, name) for name in NAMES} | merged
        rows.append(row | {"median": median, "low": low, "high": high, "step_seconds": each})
    return {"load_before": load, "rows": rows}, found


# --- Nodes on one machine, joined by slow links ---


INTERFACE = "eth0"
"""Name of the link on both nodes."""
UNSLOWED = "unslowed"
"""The rate of links that are as fast as the machine allows."""
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _within(holder: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder}/ns/net"]


@contextmanager
def slow_nodes(rate: str, count: int = 2) -> Iterator[list[list[str]]]:
    """Make `count` nodes, each joined to the others by a link of `rate` in each direction, until the end of the block.

    A rate is such as 100mbit, as tc has it, or UNSLOWED; far above 10gbit, tc's queues hold nothing back. Two nodes
    share one link; more have one each, to a switch. Yields for each node the beginning of a command line that runs
    there. Ranks of one node reach each other as fast as the machine allows. The machine's own network is not touched.
    Raises ConfigError if no such nodes can be made.
    """
    with ExitStack() as stack:
        holders = [stack.enter_context(_holder()) for _ in range(count)]
        nodes = [_within(holder) for holder in holders]
        if count == 2:
            ends = [["name", INTERFACE, "netns", str(holder)] for holder in holders]
            _do(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]])
        else:
            _join(holders, stack.enter_context(_holder()), rate)
        for number, node in enumerate(nodes, start=1):
            _do([*node, "ip", "address", "add", f"10.88.0.{number}/24", "dev", INTERFACE])
            for interface in ("lo", INTERFACE):
                _do([*node, "ip", "link", "set", interface, "up"])
            _slow(node, INTERFACE, rate)
        yield nodes


def _join(holders: Sequence[int], switch: int, rate: str) -> None:
    """Plug the nodes of `holders` into a bridge in the network of `switch`, whose ports send to them at `rate`."""
    within = _within(switch)
    _do([*within, "ip", "link", "add", "switch", "type", "bridge"])
    _do([*within, "ip", "link", "set", "switch", "up"])
    for number, holder in enumerate(holders, start=1):
        end, port = ["name", INTERFACE, "netns", str(holder)], ["name", f"port{number}", "netns", str(switch)]
        _do(["ip", "link", "add", *end, "type", "veth", "peer", *port])
        _do([*within, "ip", "link", "set", f"port{number}", "master", "switch", "up"])
        _slow(within, f"port{number}", rate)


def _slow(node: Sequence[str], interface: str, rate: str) -> None:
    if rate != UNSLOWED:
        limit = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
        _do([*node, "tc", "qdisc", "add", "dev", interface, *limit])


@contextmanager
def _holder() -> Iterator[int]:
    """Yield the id of a process in a network of its own, which lives as long as the block."""
    process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo there; exec sleep infinity"],
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent,  # noqa: PLW1509  (this process has no threads)
    )
    try:
        if process.stdout is None or not process.stdout.readline():
            raise ConfigError("unshare: no namespaces for this user; be root, in a container that is --privileged")
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def _do(command: Sequence[str]) -> None:
    output_of(command, name=" ".join(command), env=os.environ | {"PATH": PATH})
