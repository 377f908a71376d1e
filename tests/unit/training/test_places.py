"""Where ranks train and meet, what they know of it, and a known allocation."""

import json
import os
import re
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.core import devices
from benchmarks.core.cell import Cell
from benchmarks.core.rank_memory import METHODS
from benchmarks.training.measure.calibration import measure_known
from benchmarks.training.place import STORE, choose_place, make_slots, meet, settle_arithmetic
from resireduce.errors import ConfigError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESIREDUCE_DEVICE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RESIREDUCE_IMAGE_DIGEST"):
        monkeypatch.delenv(name, raising=False)


def gpus(count: int) -> Any:
    return SimpleNamespace(device_count=lambda: count)


@pytest.mark.parametrize(
    ("count", "rank", "ranks", "place"),
    [
        (0, 1, 2, ("cpu", "gloo", 1)),
        (1, 0, 1, ("cuda:0", "nccl", 1)),
        (2, 1, 2, ("cuda:1", "nccl", 1)),
        (1, 1, 2, ("cuda:0", "gloo", 2)),
        (3, 3, 4, ("cuda:0", "gloo", 4)),
    ],
)
def test_each_rank_has_its_gpu_or_all_share_one(
    monkeypatch: pytest.MonkeyPatch, count: int, rank: int, ranks: int, place: tuple[str, str, int]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    chosen = choose_place(gpus(count))
    assert (str(chosen.device), chosen.process_group, chosen.ranks_on_device) == place
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cpu")
    assert str(choose_place(gpus(count)).device) == "cpu"


def test_a_device_that_is_not_there_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RESIREDUCE_DEVICE", "cuda")
    with pytest.raises(ConfigError, match="RESIREDUCE_DEVICE: 'cuda' is not allowed without a CUDA device; set cpu"):
        choose_place(gpus(0))
    monkeypatch.setenv("RESIREDUCE_DEVICE", "gpu")
    cell = tmp_path / "cell.json"
    cell.write_text(json.dumps({"model": "vgg-digits"}))
    assert main(["run", "--cell", str(cell), "--output", str(tmp_path / "out.json")]) == 2
    assert not (tmp_path / "out.json").exists()


def test_a_known_allocation_is_measured_to_within_one_per_cent() -> None:
    readings = {row["rung"]: row for row in measure_known(256 << 20)}
    assert list(readings) == list(METHODS)
    if not torch.cuda.is_available():
        found = [name for name, row in readings.items() if row["measured_bytes"] is not None]
        assert found == ["model_state_itemised", "resident", "peak_resident"]
    for row in readings.values():
        assert (row["error"] is None) == bool(row["reason"])
        assert row["error"] is None or abs(row["error"]) < 0.01, row


def test_a_size_that_allocators_would_round_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "allocation", "--mebibytes", "65"]) == 2
    assert capsys.readouterr().err.startswith("error: mebibytes: 65 is not allowed; give ")


def test_arithmetic_on_a_gpu_is_float32_and_warns_where_it_cannot_be_repeated(
    monkeypatch: pytest.MonkeyPatch, own_settings: None
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    settle_arithmetic(torch.device("cpu"))
    assert torch.backends.cudnn.allow_tf32 and not torch.is_deterministic_algorithms_warn_only_enabled()
    settle_arithmetic(torch.device("cuda", 0))
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


CELL = Cell(model="vgg-digits", backend="horovod")


def test_without_horovod_it_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, output = tmp_path / "cell.json", tmp_path / "out/cell.json"
    spec.write_text(json.dumps(CELL.to_dict()))
    monkeypatch.setattr(devices, "find_spec", lambda name: None if name == "horovod" else find_spec(name))
    assert main(["run", "--cell", str(spec), "--output", str(output)]) == 2
    said = capsys.readouterr().err
    assert said == ("error: backend: 'horovod' cannot be used: Horovod is not installed; install it: make horovod\n")
    assert not output.parent.exists()


def test_each_rank_has_its_place_as_horovod_counts() -> None:
    there = [("a", 0, 2), ("b", 0, 1), ("a", 1, 2)]
    slots = make_slots([dict(zip(("hostname", "local_rank", "local_size"), it, strict=True)) for it in there])
    assert [slot["rank"] for slot in slots] == [0, 1, 2] and {slot["size"] for slot in slots} == {3}
    assert [(slot["cross_rank"], slot["cross_size"]) for slot in slots] == [(0, 2), (1, 2), (0, 1)]
    # Machines are told apart where each rank has a name of its own, too.
    places = [{"hostname": f"container{rank}", "local_rank": rank % 2, "local_size": 2} for rank in range(4)]
    assert [slot["hostname"] for slot in make_slots(places)] == ["machine0", "machine0", "machine1", "machine1"]


def test_ranks_meet_in_a_store_whose_address_is_in_a_file_and_waiting_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=re.escape(f"rank 1 waited 0.05 s for {tmp_path / STORE}: a rank did")):
        meet(tmp_path, 1, 2, 0.05)
    stores: list[Any] = []
    other = threading.Thread(target=lambda: stores.append(meet(tmp_path, 1, 2, 20)))
    other.start()
    first = meet(tmp_path, 0, 2, 20)
    other.join()
    first.set("word", "said")
    assert stores[0].get("word") == b"said"
