"""`python -m benchmarks measure testbed`: steps, and apart from them what they are made of."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.micro import links_command, testbed_command
from benchmarks.micro.testbed_command import typical
from tests.stand_ins import HEAD

SIZES = (100, 100, 700)


def drawn(own: np.random.Generator) -> dict[str, Any]:
    """What one rank might find in one round."""
    tensors = [
        {"elements": size, "compress_seconds": own.random(), "average_seconds": {"4": own.random()}} for size in SIZES
    ]
    message = {"in_turn": own.random(), "at_once": own.random(), "processor": own.random()}
    return {
        "passes": {
            hierarchy: [
                {
                    "forward_seconds": own.random(),
                    "backward_seconds": own.random(),
                    "step_seconds": own.random(),
                    "arrived_seconds": {"late": 1 + own.random(), "early": own.random()},
                }
                for _ in range(2)
            ]
            for hierarchy in ("flat", "node")
        },
        "copied_bytes_per_second": own.random(),
        "compression": [{"compressor": "topk", "density": 0.01, "tensors": tensors}],
        "messages": {"flat all_gather": [{"bytes": 64, **message}]},
    }


def test_what_all_wait_for_is_the_latest_rank_and_compression_is_that_of_the_mean_tensor_of_a_size() -> None:
    own = np.random.default_rng(0)
    samples = [[drawn(own) for _ in range(5)] for _ in range(3)]
    found = typical(samples, 2)

    def table(read: Any) -> np.ndarray:
        return np.array([[read(one) for one in rank] for rank in samples])

    steps = table(lambda one: [step["step_seconds"] for step in one["passes"]["node"]])
    assert found["passes"]["node"]["step_seconds"] == np.median(steps.max(axis=0)), "and the median of rounds"
    early = table(lambda one: [step["arrived_seconds"]["early"] for step in one["passes"]["flat"]])
    assert [*found["passes"]["flat"]["arrived_seconds"]] == ["early", "late"], "in order of arrival"
    assert found["passes"]["flat"]["arrived_seconds"]["early"] == np.median(early.max(axis=0))
    (row,) = found["messages"]["flat all_gather"]
    for key, of_ranks in (("in_turn", np.max), ("processor", np.mean)):
        each = table(lambda one, key=key: one["messages"]["flat all_gather"][0][key])
        assert row[key] == pytest.approx(np.median(of_ranks(each, axis=0)))
    small, large = found["compression"]
    tensors = table(lambda one: [tensor["compress_seconds"] for tensor in one["compression"][0]["tensors"]])
    assert (small["elements"], large["elements"]) == (100, 700)
    assert small["compress_seconds"] == pytest.approx(np.median(tensors[..., :2].mean(axis=(0, 2))))
    averaging = table(lambda one: one["compression"][0]["tensors"][2]["average_seconds"]["4"])
    assert large["average_seconds"]["4"] == pytest.approx(np.median(averaging.mean(axis=0)))


def test_every_setting_has_its_steps_and_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    @contextmanager
    def nodes(rate: str, count: int):  # type: ignore[no-untyped-def]
        asked.append((rate, count))
        yield [["env"]] * count

    forms = len(testbed_command.COMPARED)
    (tmp_path / "made.json").write_text(json.dumps([drawn(np.random.default_rng(0))]))
    rank = tmp_path / "python"
    rank.write_text(
        f"{HEAD}import json, os, pathlib, sys\nfolder = pathlib.Path(sys.argv[4])\n"
        "given = json.load(open(folder / 'settings.json'))\ncells = given.pop('cells')\n"
        "assert given == {'rounds': 3, 'steps': 2, 'inputs': True}\n"
        "found = {'seconds': [[2.0, 4.0, 6.0] for _ in cells]}\n"
        "found['merged'] = [{'messages': 1, 'costs': None} for _ in cells]\n"
        f"found['inputs'] = json.load(open({str(tmp_path / 'made.json')!r}))\n"
        "json.dump(found, open(folder / f'rank{os.environ[\"RANK\"]}.json', 'w'))\n"
    )
    rank.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(rank))
    monkeypatch.setattr(links_command, "slow_nodes", nodes)
    monkeypatch.setattr(testbed_command, "RATES", ("1gbit", "unslowed"))
    output = tmp_path / "testbed.json"
    assert main(["measure", "testbed", "--rounds", "3", "--steps", "2", "--output", str(output)]) == 0
    found = json.loads(output.read_text())["settings"]
    assert asked == [("1gbit", 2), ("unslowed", 2), ("1gbit", 4), ("unslowed", 4)]
    assert [len(one["rows"]) for one in found] == [2 * forms, 2 * forms, forms, forms], "one rank has no levels"
    assert all(row["median"] == 2.0 and "costs" not in row for one in found for row in one["rows"])
    assert found[0]["inputs"]["compression"][0]["compressor"] == "topk"
