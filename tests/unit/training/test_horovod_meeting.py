"""What of a Horovod cell needs no Horovod: when it is refused, and how its ranks find each other."""

import json
import re
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.core import devices
from benchmarks.core.cell import Cell
from benchmarks.training.horovod import make_slots
from benchmarks.training.place import STORE, meet

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
