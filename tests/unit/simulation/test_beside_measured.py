"""Steps of a testbed beside their simulation: the record, the composition, and the page."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core.paths import ROOT
from benchmarks.simulation.beside import beside, sentence, shares
from benchmarks.simulation.wire import Layers
from resireduce.errors import ConfigError
from tests.simulated import make_layers

LAYERS = make_layers([(100, 100), (300, 100)])
SIZES = (10, 1000, 200_000)
STEPS = 30
MEETING = 0.3 / STEPS
"""A round ends when all ranks have met, once in so many steps."""


def line(in_turn: float, at_once: float, per_byte: float, processor: float = 0.0) -> list[dict[str, float]]:
    """A collective whose seconds are lines: what was measured of them at some sizes."""
    return [
        {
            "bytes": size,
            "in_turn": in_turn + per_byte * size,
            "at_once": at_once + per_byte * size,
            "processor": processor,
        }
        for size in SIZES
    ]


def setting_of(merge: Any = "none", compressor: str = "none", hierarchy: str = "flat", **inputs: Any) -> dict[str, Any]:
    """One step of 2 x 2 ranks: forward pass 1 s, gradients after 1.5 and 2 s, all over after 2.25 s.

    By node these are 1.6, 2.2 and 2.75.
    """
    compression = [
        {"compressor": "topk", "density": 0.01, "elements": size, "compress_seconds": 1e-5 * size}
        | {"average_seconds": {"2": 1e-6 * size, "4": 2e-6 * size}}
        for size in (5000, 10_000, 30_000)
    ]
    messages = {
        f"{level} {kind}": line(0.3, 0.1, 1e-6, 0.01)
        for level in ("flat", "between")
        for kind in ("all_reduce", "all_reduce_half", "all_gather")
    }
    messages |= {"in_node all_reduce": line(0.02, 0.01, 1e-7), "in_node all_gather": line(0.03, 0.01, 0.0)}
    own = {
        "cores": 100,
        "passes": {
            "flat": {"forward_seconds": 1.0, "step_seconds": 2.25, "arrived_seconds": {"layer0": 1.5, "layer1": 2.0}},
            "node": {"forward_seconds": 1.0, "step_seconds": 2.75, "arrived_seconds": {"layer0": 1.6, "layer1": 2.2}},
        },
        "copied_bytes_per_second": 1e30,
        "compression": compression,
        "messages": messages,
    }
    row = {"compressor": compressor, "density": 0.01, "hierarchy": hierarchy, "merge": merge, "median": 1.0}
    place = {"nodes": 2, "ranks_per_node": 2, "rate": "1gbit"}
    return {**place, "inputs": own | inputs, "rows": [row | {"low": 0.9, "high": 1.1}]}


def step_of(setting: dict[str, Any]) -> float:
    (record,) = beside({"steps": STEPS, "settings": [setting]}, LAYERS)
    assert record["difference"] == pytest.approx(record["simulated"] - 1.0)
    return float(record["simulated"])


def test_dense_messages_follow_each_other_and_the_last_trails() -> None:
    first = 1.5 + 0.1 + 4e-2
    second = max(first, 2.0) + 0.1 + 12e-2
    assert step_of(setting_of()) == pytest.approx(second + (0.3 - 0.1) + 0.3 + 0.25 + MEETING), (
        "and then all agree, and update"
    )


def test_ranks_that_share_processors_are_delayed_by_what_a_message_takes_of_them() -> None:
    alone, shared = step_of(setting_of(cores=4)), step_of(setting_of(cores=1))
    assert step_of(setting_of(cores=5)) + 0.01 == pytest.approx(alone), "each has a processor, and none is left"
    assert shared - alone == pytest.approx(3 * 0.01), "that of the first message: the last one is waited for anyway"


def test_one_message_is_compressed_tensor_by_tensor_and_averaged_after_it() -> None:
    compress, average = 1e-5 * 40_000, 2e-6 * 40_000
    nbytes = sum(10 * -(-elements * 8 // 1000) for elements in (10_000, 30_000))
    sent = 2.0 + compress + 0.1 + 1e-6 * nbytes
    assert step_of(setting_of("one", "topk")) == pytest.approx(sent + 0.2 + average + 0.3 + 0.25 + MEETING, abs=2e-4)
    assert step_of(setting_of("hybrid", "topk")) == step_of(setting_of("one", "topk"))


def test_by_nodes_each_rank_sends_a_slice_and_each_tensor_is_gathered_in_turn() -> None:
    compress, average = 1e-5 * 20_000, 1e-6 * 20_000
    summed = 2.2 + compress + 0.02 + 1e-7 * 120_000
    sent = summed + 0.1 + 1e-6 * 200
    expected = sent + 0.2 + average + 2 * 0.03 + (0.3 + 0.02) + 0.55 + MEETING
    assert step_of(setting_of("one", "topk", "node")) == pytest.approx(expected, abs=2e-3)


def test_shares_count_steps_that_are_near_and_pairs_of_one_setting_in_the_right_order() -> None:
    place = {"nodes": 2, "ranks_per_node": 2, "rate": "1gbit"}
    found = [
        place | {"median": median, "simulated": simulated, "difference": simulated / median - 1}
        for median, simulated in ((1.0, 1.1), (1.1, 1.0), (1.5, 1.4), (2.0, 1.3))
    ]
    counted = shares([*found, found[0] | {"rate": "unslowed", "median": 9.0}])
    assert counted == {"combinations": 5, "near": 4, "pairs": 5, "right": 4}
    assert "4 of 5 steps" in sentence(counted) and "of 5 pairs" in sentence(counted)


@pytest.mark.parametrize(
    ("compressor", "layers", "said"),
    [
        ("none", make_layers([(100, 100)]), "'layer1' is not in both the record and made; make it with"),
        ("fp16", LAYERS, "compressor 'fp16' at 0.01 is not in the record"),
        ("gaussian", LAYERS, "'gaussian' sends payloads of unequal sizes, which are not"),
    ],
)
def test_what_cannot_be_compared_is_said(compressor: str, layers: Layers, said: str) -> None:
    with pytest.raises(ConfigError, match=f"measured: {said}"):
        beside({"steps": STEPS, "settings": [setting_of(compressor=compressor)]}, layers)


@pytest.mark.parametrize("text", ["{", "[]", '{"model": "gpt2-bytes", "settings": [{}], "steps": 2}'])
def test_what_is_no_record_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert main(["simulate", "--measured", str(tmp_path / "bad.json")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: measured: ") and "make it with: python -m benchmarks measure testbed" in said


def test_the_page_has_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of two merging rules, and how many of all steps are near."""
    assert main(["simulate", "--measured", str(ROOT / "results/reference/beside-measured.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs/simulate.md").read_text(encoding="utf-8").partition("<!-- simulated: measured -->\n")[2]
    *table, _, said = page.partition("<!-- simulated: end -->")[0].splitlines()
    assert said.startswith(lines[-1])
    other = ("mg-wfbp", "omgs", "rgmerge-style", "optimal", "hybrid", "bytes")
    assert table == [line for line in lines if line.startswith("|") and not any(name in line for name in other)]
