"""What messages and compression cost, and what a model computes: beside the definitions, and beside the real thing."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.core.registry import MODELS
from benchmarks.simulation.cluster import Link, all_gather, all_reduce, paths, presets, reduce_scatter
from benchmarks.simulation.results import Settings, rows_of, simulate
from benchmarks.simulation.what_pays import needed_bytes
from benchmarks.simulation.wire import (
    BUCKET_BYTES,
    BY_BYTES,
    MEASURED,
    Case,
    Curve,
    buckets,
    grid,
    layers_of,
    read_micro,
    works,
)
from benchmarks.training.layer_trace import payload_of, trace
from resireduce.core.bucket import SMALL_BYTES as OF_THE_LIBRARY
from resireduce.plan import plan
from resireduce.scheme import COMPRESSORS, build_compressor, load
from tests.simulated import FAST, drawn_layers, make_cluster, make_layers

LINK = Link(latency_seconds=1e-5, bandwidth_bytes_per_second=1e9)


# --- messages ---


def test_collectives_take_the_steps_and_bytes_of_a_ring() -> None:
    """Latency a and bandwidth B: 2(N-1)a + 2(N-1)/N x bytes/B, (N-1)(a + payload/B), and half of the first."""
    for ranks in (2, 5, 64):
        reduce, gather, scatter = (cost(ranks, LINK) for cost in (all_reduce, all_gather, reduce_scatter))
        assert reduce.latency == pytest.approx(2 * (ranks - 1) * 1e-5)
        assert reduce.per_byte == pytest.approx(2 * (ranks - 1) / ranks / 1e9)
        assert (gather.latency, gather.per_byte) == pytest.approx(((ranks - 1) * 1e-5, (ranks - 1) / 1e9))
        assert (2 * scatter.latency, 2 * scatter.per_byte) == pytest.approx((reduce.latency, reduce.per_byte))


def test_levels_share_the_work() -> None:
    cluster = make_cluster(latency=1e-4, bandwidth=1e9, nodes=4, ranks_per_node=8, message_seconds=1e-6)
    flat, node = paths(cluster, 32, "flat"), paths(cluster, 32, "node")
    assert flat.reduce.latency == pytest.approx(1e-6 + 2 * 31 * 1e-4), "as slow as the slowest link"
    assert node.reduce.latency == pytest.approx(1e-6 + 2 * 3 * 1e-4)
    assert node.reduce.per_byte == pytest.approx(2 * 3 / 4 / 1e9), "all slices go by way of the node's one link"
    assert node.in_node.latency == pytest.approx(1e-6 + 7 * 1e-5), "a message of its own"
    assert node.in_node.per_byte == pytest.approx(7 / 8 / 1e10) and flat.in_node.per_byte == 0
    assert (flat.peers, node.peers, flat.slices, node.slices) == (32, 4, 1, 8)
    alone = paths(cluster, 8, "flat")
    assert alone.reduce.latency == pytest.approx(1e-6 + 2 * 7 * 1e-5), "ranks of one node meet within it"


def test_small_dense_tensors_lie_in_the_librarys_buckets() -> None:
    assert BUCKET_BYTES == OF_THE_LIBRARY
    half = BUCKET_BYTES / 2
    found = buckets(np.array([0.0, half, 0.0, half, 4.0, 0.0, 8.0]))
    assert found.tolist() == [0, 0, 0, 2 * half, 0, 0, 12.0]


@pytest.mark.parametrize("compressor", ["none", "topk", "randomk", "fp16", "qsgd", "adtopk", "chunked", "signsgd"])
def test_what_travels_is_what_the_compressor_sends(compressor: str) -> None:
    shapes = [(64, 300), (7, 11, 3, 3)]
    found = payload_of(compressor, 0.01, shapes)
    made = build_compressor(compressor, 0.01)
    own = torch.Generator().manual_seed(0)
    real = [made.compress(torch.randn(shape, generator=own), "w", 0).nbytes for shape in shapes]
    assert found == {"bytes": real, "collective": made.collective, "equal_sizes": made.equal_sizes}


def test_rounds_take_as_long_as_an_all_reduce_of_half_their_bytes() -> None:
    """Ok-Topk exchanges what it sends of each region, and gathers the sums of regions: two halves of an all-reduce."""
    case, layers = Case(make_cluster(), 4, "ok-topk", 0.01), drawn_layers(1, 5)
    (work,) = works([case], layers, ()).values()
    assert work.payload.tolist() == [one / 2 for one in payload_of("ok-topk", 0.01, layers.shapes)["bytes"]]


# --- compression ---


def test_a_curve_goes_through_its_points_and_on() -> None:
    curve = Curve.through([100, 200, 1000], [2.0, 3.0, 5.0])
    assert curve(np.array([[100.0, 150, 200, 600, 1000, 1400, 50, 0]])).tolist() == [[2, 2.5, 3, 4, 5, 6, 1.5, 0]]
    flat = Curve.through([100, 200], [2.0, 1.0])
    assert flat(np.array([[50.0, 100, 300, 1000]])).tolist() == [[2, 2, 0, 0]], "never below 0, nor above the first"
    both = Curve.together([curve, Curve.line(1.0, 0.5)])
    assert both(np.array([150.0, 4.0])).tolist() == [2.5, 3.0]


def test_what_was_measured_counts_and_else_the_bytes_that_must_be_moved(tmp_path: Path) -> None:
    """Between two densities, seconds lie on a line over their logarithm."""
    rows = [
        {"case": "topk, baseline", "elements": size, "density": density, "least_seconds": size * each}
        for size in (100, 1000)
        for density, each in ((0.01, 1.0), (0.1, 3.0))
    ]
    (tmp_path / "micro.json").write_text(json.dumps({"rows": rows}))
    layers = make_layers([(100, 200), (10, 30)])
    for density, each in ((0.001, 1.0), (0.01, 1.0), (10**-1.5, 2.0), (0.1, 3.0), (0.5, 3.0)):
        cases = [Case(make_cluster(), 4, "topk", density)]
        (work,) = works(cases, layers, read_micro(tmp_path / "micro.json")).values()
        assert work.basis == MEASURED and work.curve(np.array([500.0]))[0] == pytest.approx(500 * each)
    layers = replace(layers, kinds=("grouped", "other"))
    (work,) = works([Case(make_cluster(), 4, "qsgd", scheme="w")], layers, rows).values()
    assert work.basis == BY_BYTES
    assert work.curve(np.array([1e6]))[0] == pytest.approx(5e-6 + 12e6 / 1e12), "a launch, and three passes"
    assert work.more == pytest.approx([4 * 20_000 / 1e12, 0])


def test_every_compressor_is_simulated_or_has_no_plan() -> None:
    layers = layers_of("resnet-digits")
    cases = list(grid([make_cluster()], None, list(COMPRESSORS), [0.01], ["none"]))
    found = simulate(cases, Settings(layers))
    assert {one.case.compressor for one in found} == COMPRESSORS.keys()
    assert all(0 < one.step_seconds < 10 for one in found)


def test_of_unequal_sizes_a_message_more_tells_and_of_what_is_summed_a_rank_decompresses_one_sum() -> None:
    layers, others = drawn_layers(1, 5), (("topk", 4), ("gaussian", 4), ("fp16", 2), ("fp16", 4))
    cases = [Case(make_cluster(), ranks, name, 0.01) for name, ranks in others]
    rows = rows_of(cases, Settings(layers, compute_seconds=1.0), works(cases, layers, ()))
    assert rows.latency[1] == pytest.approx(2 * rows.latency[0])
    assert rows.payload.tolist() == [payload_of(case.compressor, 0.01, layers.shapes)["bytes"] for case in cases]
    assert rows.unpack[2].tolist() == rows.unpack[3].tolist() and rows.unpack[2].min() > 0


def test_a_rank_decompresses_its_slice_alone() -> None:
    """Two ranks of a node share what four nodes send, and each starts as many operations as there are nodes."""
    layers = drawn_layers(1, 5)
    flat, node = (Case(make_cluster(ranks_per_node=count), 4 * count, "topk", 0.01) for count in (1, 2))
    cases = [flat, replace(node, hierarchy="node")]
    alone, shared = rows_of(cases, Settings(layers, compute_seconds=1.0), works(cases, layers, ())).unpack
    launches = 4 * FAST.launch_seconds
    assert shared - launches == pytest.approx((alone - launches) / 2)


# --- models ---


def test_a_trace_counts_what_a_real_step_computes_and_in_which_order_gradients_come() -> None:
    found = trace("resnet-digits", batch=4)
    torch.manual_seed(0)
    model = load(MODELS["resnet-digits"])()
    flops: list[int] = []

    def count(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        flops.append(2 * output.numel() // output.shape[1] * module.weight.numel())  # type: ignore[operator, union-attr]

    arrived: list[str] = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    nn.functional.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.zeros(4, dtype=torch.int64)).backward()
    assert found["names"] == arrived
    assert found["shapes"] == [list(model.get_parameter(name).shape) for name in arrived]
    assert sum(flops) == sum(one for one, _ in found["forward"])
    backward = sum(one for part in found["backward"] for one, _ in part)
    first = 2 * 4 * 8 * 8 * model.get_parameter("conv1.weight").numel()
    assert backward == 2 * sum(flops) - first, "gradients of inputs and weights, but of the first layer's input"


def test_a_model_of_text_can_be_traced() -> None:
    found = trace("bert-questions")
    assert len(found["names"]) == len(set(found["names"])) == len(found["backward"]) and found["activations_bytes"] > 0
    assert {"grouped", "specific", "dense"} <= set(found["kinds"])


def test_passes_take_as_long_as_they_were_measured() -> None:
    """Without a recipe, a third of it is the forward pass, and the rest is shared by elements."""
    layers = layers_of("resnet-digits")
    forward, backward = layers.seconds(FAST, 0.5)
    assert forward + backward.sum() == pytest.approx(0.5)
    alone = layers.seconds(FAST)
    assert forward / backward.sum() == pytest.approx(alone[0] / alone[1].sum())
    forward, backward = make_layers([(10, 30), (10, 10)]).seconds(FAST, 3.0)
    assert forward == 1.0 and backward == pytest.approx([1.5, 0.5])


def test_what_is_needed_is_the_plan_and_what_the_forward_pass_saves() -> None:
    layers = layers_of("resnet-digits")
    result = simulate([Case(make_cluster(), 4, "topk", 0.01, "w+2d")], Settings(layers))[0]
    planned = plan(load(MODELS["resnet-digits"]), scheme="w+2d", density=0.01, world_size=4, gradients="kept")
    assert needed_bytes(layers, "kept")(result) == planned["peak_states"] + layers.activations_bytes
    many = [replace(result, case=replace(result.case, ranks=ranks)) for ranks in (64, 100)]
    exact, at_most = map(needed_bytes(layers, "kept"), many)
    assert at_most - exact == 36 * max(payload_of("topk", 0.01, layers.shapes)["bytes"])


def test_presets_say_where_their_figures_are_from() -> None:
    for name, cluster in presets().items():
        parts = (cluster, cluster.device, cluster.in_node, cluster.between_nodes)
        assert all(part.source for part in parts if part is not None), name
    local, cloud = presets()["paper-local"], presets()["paper-cloud"]
    assert (local.ranks, cloud.ranks) == (8, 64), "4 nodes of 2, and 16 of 4: paper, section 5.2"
    assert [8 * one.between_nodes.bandwidth_bytes_per_second for one in (local, cloud) if one.between_nodes] == [
        25e9,
        2e11,
    ]
