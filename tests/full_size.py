"""Records of full-size models made by arithmetic: bytes that add up, metrics around the published ones, noise by seed.

No number of these was measured. What they are for: tables of a whole matrix, which no machine at hand can train.
"""

import math
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks.analysis.published import load_published
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from benchmarks.core.scheme_options import thaw
from benchmarks.core.workloads import WORKLOADS
from tests import records


@dataclass(frozen=True)
class Size:
    """Elements of a model: all, those with a residual, those that w and that 2d save."""

    elements: int
    with_residual: int
    saved_w: int
    saved_2d: int
    samples: int = 50_000
    units_per_sample: int = 1
    samples_per_second: float = 400.0
    """Of one rank."""


SIZES = {
    "resnet50": Size(23_705_252, 23_441_408, 14_065_664, 0, samples_per_second=600),
    "vgg19": Size(143_678_248, 143_650_816, 12_976_128, 77_070_336, samples_per_second=900),
    "bert-base": Size(108_897_794, 108_773_376, 56_623_104, 17_584_128, 88_000, 384, 30),
    "bert-large": Size(334_100_482, 333_774_848, 201_326_592, 23_445_504, 88_000, 384, 10),
    "gpt2-medium": Size(354_823_168, 354_501_632, 201_326_592, 38_597_632, 115_000, 1024, 4),
    "gpt2-large": Size(774_030_080, 773_428_480, 471_859_200, 48_247_040, 115_000, 1024, 2),
    "resnet50-imagenet": Size(25_557_032, 23_441_408, 14_065_664, 0, 1_281_167),
    # Of these only the first number is exact.
    "resnet152-imagenet": Size(60_192_808, 58_000_000, 40_000_000, 0, 1_281_167, 1, 150),
    "vgg16-imagenet": Size(138_365_992, 138_000_000, 7_000_000, 77_070_336, 1_281_167, 1, 250),
    "vit-large": Size(304_326_632, 303_000_000, 200_000_000, 0, 1_281_167, 1, 60),
    "resnet20": Size(272_474, 260_000, 120_000, 0, 50_000, 1, 5000),
    "resnet110": Size(1_730_714, 1_700_000, 1_200_000, 0, 50_000, 1, 1000),
}
METRICS = {
    "cifar": ("top1", True),
    "imagenet": ("top1", True),
    "squad": ("f1", True),
    "wikitext": ("perplexity", False),
}
WITHOUT_COMPRESSION = {"resnet50": 74.0, "vgg19": 64.2, "bert-base": 86.99, "bert-large": 89.9, "gpt2-medium": 14.69}
WITHOUT_COMPRESSION |= {"gpt2-large": 16.4, "resnet20": 91.7, "resnet110": 93.5}
LOST = {
    "baseline": 0.0,
    "none": 4.0,
    "a": 0.7,
    "w": 0.1,
    "member": 1.5,
    "d": 1.5,
    "2d": 0.2,
    "w+2d": 0.2,
    "partial": 0.8,
}
"""Points of accuracy that a scheme costs, beside those of compression."""
BYTES_EACH = {None: 4.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8_e4m3": 1.0, "int8": 1.0, "int4": 0.5}
DEVICES = {True: "NVIDIA A100-SXM4-80GB", False: "Tesla V100S-PCIE-32GB"}


def make_full_result(cell: Cell) -> CellResult:
    """Return an ok record of a cell of any model; the same for the same cell."""
    if cell.model not in SIZES:
        return records.make_result(cell)
    name, higher = METRICS[WORKLOADS[cell.model].task.split("-")[0]]
    metric, size, states = make_metric(cell, higher), SIZES[cell.model], make_states(cell)
    speed = make_speed(cell)
    steps = cell.steps or steps_of(cell)
    own = random.Random(f"steps of {cell.name}")
    return CellResult(
        cell=cell,
        status="ok",
        metric_name=name,
        higher_is_better=higher,
        metric=metric,
        metrics={name: metric},
        metric_history=make_history(cell, steps, metric, higher),
        steps=steps,
        steps_per_second=speed,
        step_seconds=[round(own.gauss(1 / speed, 0.02 / speed), 9) for _ in range(20)],
        units_per_second=speed * batch_of(cell) * cell.world_size * size.units_per_sample,
        unit="tokens" if size.units_per_sample > 1 else "images",
        phase_seconds={"forward_backward": 0.7 / speed, "compress": 0.2 / speed, "communicate": 0.1 / speed}
        | {"step": 1 / speed},
        ladder=[
            rung("model_state_itemised", states["total_bytes"]),
            rung("peak_allocated", states["peak_states_bytes"]),
        ],
        wall_seconds=steps / speed * 1.1 + 30,
        per_rank=[{"rank": rank, **states} for rank in range(cell.world_size)],
        observations={name: observed(cell) for name in cell.observe},
        provenance=make_provenance(cell),
        **states,
    )


def make_states(cell: Cell) -> dict[str, int]:
    """The bytes of a cell: float32 parameters, gradients and optimizer, and the residuals that its scheme stores."""
    size, adam = SIZES[cell.model], WORKLOADS[cell.model].optimizer != "sgd"
    whole = 4 * size.elements
    residuals = 0 if cell.compressor == "none" else int(stored_elements(cell, size) * BYTES_EACH[cell.residual_dtype])
    states = {
        "parameters_bytes": whole,
        "gradients_bytes": whole if cell.gradients == "kept" else 0,
        "residuals_bytes": residuals,
        "optimizer_states_bytes": whole * (2 if adam else 1),
    }
    total, in_flight = sum(states.values()), whole // (4 if cell.gradients == "streamed" else 40)
    peaks = {"peak_states_bytes": total + in_flight, "peak_resident_bytes": total + 3 * 2**30}
    return {**states, "total_bytes": total, "in_flight_bytes": in_flight, **peaks}


def stored_elements(cell: Cell, size: Size) -> int:
    """How many elements of residuals a scheme stores; indices are not counted."""
    options = thaw(cell.options)
    specific, full = size.saved_2d * 4 // 3, size.with_residual
    share_2d = options.get("row_ratio", 0.5) * options.get("column_ratio", 0.5)
    return {
        "baseline": full,
        "none": 0,
        "a": full - size.saved_w,
        "w": full - size.saved_w,
        "member": full - size.saved_w,
        "d": full - round(specific * (1 - options.get("row_ratio", 0.25))),
        "2d": full - round(specific * (1 - share_2d)),
        "w+2d": full - size.saved_w - round(specific * (1 - share_2d)),
        "partial": round(full * options.get("ratio", 0.5)),
    }[cell.scheme]


def make_metric(cell: Cell, higher: bool) -> float:
    """A published value or one near it, and noise: of the seed, which moves all schemes alike, and of the cell."""
    if cell.data == "synthetic":
        return 0.0 if higher else 50_257.0
    centre = published_metrics().get(setting_of(cell))
    if centre is None:
        lost = 0.0 if cell.compressor == "none" else 0.4 * (1 - math.log10(cell.density)) - 0.4 + lost_by_scheme(cell)
        best = WITHOUT_COMPRESSION.get(cell.model, 76.0)
        centre = best - lost if higher else best + 0.15 * lost
    scale = 0.2 if higher else 0.03
    noise = random.Random(f"seed {cell.seed}").gauss(0, scale) + random.Random(cell.name).gauss(0, 0.3 * scale)
    return round(centre + noise, 6)


def lost_by_scheme(cell: Cell) -> float:
    """Points of accuracy: less stored or a member of small norm loses more."""
    options, lost = thaw(cell.options), LOST[cell.scheme]
    if cell.scheme == "d":
        return {0.75: 0.3, 0.5: 1.0}.get(options.get("row_ratio", 0.25), 4.2)
    if cell.scheme == "partial":
        return 6 * (1 - float(options.get("ratio", 0.5))) ** 3
    return lost + 2.5 * bool(options.get("smallest"))


def setting_of(cell: Cell) -> tuple[object, ...]:
    """What a published metric says of its cell."""
    share = float(thaw(cell.options).get("ratio", 1.0))
    return (cell.model, cell.scheme, cell.compressor, cell.density, cell.world_size, share)


@lru_cache
def published_metrics() -> dict[tuple[object, ...], float]:
    """The paper's metrics by setting_of."""
    found = {}
    for one in load_published().values():
        if one.quantity == "metric":
            share = float(one.id.rpartition("-")[2]) / 100 if one.scheme == "partial" else 1.0
            found[one.model, one.scheme, one.compressor, one.density, one.world_size, share] = one.value
    return found


def make_speed(cell: Cell) -> float:
    """Steps per second: the fewer the more ranks there are; w+2d costs about a hundredth."""
    alone = SIZES[cell.model].samples_per_second / batch_of(cell)
    slower = 1 + 0.08 * math.log2(cell.world_size) * (2 if cell.compressor == "none" else 1)
    cost = 0.01 if cell.scheme in ("w+2d", "w", "2d") else 0.0
    noise = random.Random(f"speed of {cell.name}").gauss(1, 0.002)
    return alone / slower * (1 - cost) * noise


def batch_of(cell: Cell) -> int:
    """Samples of a rank in a step."""
    return cell.batch_per_rank or WORKLOADS[cell.model].batch_per_rank


def steps_of(cell: Cell) -> int:
    """Steps of the whole training."""
    return (WORKLOADS[cell.model].epochs or 1) * (SIZES[cell.model].samples // (batch_of(cell) * cell.world_size))


def make_history(cell: Cell, steps: int, metric: float, higher: bool) -> list[list[float | None]]:
    """[step, value] pairs that end at the metric, an epoch apart and at least ten."""
    points = min(steps, max(10, WORKLOADS[cell.model].epochs or 0))
    curve = [1 - math.exp(-5 * (i + 1) / points) for i in range(points - 1)]
    values = [metric * rest if higher else metric * (2 - rest) for rest in curve]
    return [[steps * (i + 1) // points, round(value, 6)] for i, value in enumerate([*values, metric])]


def observed(cell: Cell) -> dict[str, Any]:
    """Densities of four groups of three members each, nearly alike, and distances."""
    own = random.Random(f"densities of {cell.name}")
    groups = []
    for number in range(4):
        spread = 0.5 + 0.3 * number
        widths = [spread * own.gauss(1, 0.03) for _ in range(3)]
        groups.append(
            {
                "members": [f"layer{number}.{i}.weight" for i in range(3)],
                "shape": [256, 256],
                "standard_deviation": spread * 1e-3,
                "densities": [[round(_normal(-4 + 8 / 65 * (i + 0.5), w), 6) for i in range(65)] for w in widths],
                **distances(0.05, 0.4),
            }
        )
    bins = {"low": -4.0, "high": 4.0, "count": 65}
    return {"bins": bins, "quantiles": 4096, "groups": groups, **distances(0.05, 0.4)}


def distances(within: float, between: float) -> dict[str, Any]:
    """Means over pairs of one group and of different groups."""
    pairs = (("within", within, 3), ("between", between, 27))
    return {name: {"wasserstein": far, "jensen_shannon": far / 3, "pairs": count} for name, far, count in pairs}


def _normal(x: float, width: float) -> float:
    return math.exp(-(x**2) / (2 * width**2)) / (width * math.sqrt(2 * math.pi))


def rung(name: str, count: int) -> dict[str, Any]:
    """A rung of the ladder of memory."""
    return {"name": name, "method": "made by arithmetic", "bytes": count, "reason": None, "flags": []}


def make_provenance(cell: Cell) -> dict[str, Any]:
    """Of the paper's local cluster up to 8 ranks, of its cloud above."""
    per_host = 2 if cell.world_size <= 8 else 4
    hosts = [f"node{rank // per_host:02}" for rank in range(cell.world_size)]
    return {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "python": "3.11.9",
        "packages": {"torch": "2.9.1+cu126", "numpy": "2.4.6"},
        "cpu": "Example CPU @ 2.00GHz",
        "device": DEVICES[cell.world_size > 8],
        "process_group": "nccl",
        "threads": 1,
        "data_hash": "ab" * 32,
        "ranks_per_host": dict.fromkeys(dict.fromkeys(hosts), per_host),
        "date": f"2026-01-{1 + cell.seed:02}T12:00:00+00:00",
    }
