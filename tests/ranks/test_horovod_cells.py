"""Cells whose ranks reach each other over Horovod: as over torch.distributed, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.core.cell import Cell
from benchmarks.core.files import save_json
from benchmarks.core.stop_policy import Limits
from tests.ranks.test_horovod import NEEDED, ROOT, on_horovod


@NEEDED
def test_a_cell_is_the_same_over_either_backend_also_when_stopped(tmp_path: Path) -> None:
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    # Of another launcher around the suite's, which counts for nothing.
    common |= {"HOROVOD_RANK": "0", "HOROVOD_FUSION_THRESHOLD": str(2**20), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.ranks.horovod_cell", str(tmp_path)]
    ranks = [
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **common, **place}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for place in places
    ]
    try:
        said = [rank.communicate(timeout=300)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][-3000:] + said[1][-3000:]
    assert all(text.endswith("passed\n") for text in said)


@NEEDED
def test_ranks_that_horovodrun_has_started_need_no_meeting(tmp_path: Path) -> None:
    cell, limits = tmp_path / "cell.json", tmp_path / "limits.json"
    save_json(Cell(model="vgg-digits", scheme="w", backend="horovod", world_size=3).to_dict(), cell)
    save_json(Limits().to_dict(), limits)
    options = ["--cell", cell, "--limits", limits, "--rendezvous", tmp_path, "--data", "data"]
    on_horovod("benchmarks.training.rank", tmp_path, *options, "--output", tmp_path / "rank{rank}.json")
    for rank in range(2):
        outcome = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert outcome["reason"] == "world_size: 3 is not the 2 ranks that Horovod has found; start as many"
    assert not list(tmp_path.glob("horovod*.json"))
