"""Inputs of a simulated step from the ranks' measurements: medians over rounds, mostly of the latest rank."""

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

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
