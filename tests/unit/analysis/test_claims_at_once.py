"""Trainings that took place at once say nothing of time, where their cores or their GPU are fewer than they need."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from benchmarks.analysis.claims.at_once import SLACK_SECONDS, at_once
from benchmarks.analysis.claims.evidence import gather
from benchmarks.analysis.claims.ledger import ledger
from benchmarks.core.cell import Cell
from benchmarks.core.record import CellResult
from tests.claim_records import make, run_of

START = datetime(2026, 1, 2, tzinfo=UTC)
TWO_CORES = {"cores": 2, "ranks_per_host": {"node0": 2}}


def ended(record: CellResult, at: float, **source: Any) -> CellResult:
    """A record that ended so many seconds after START."""
    date = (START + timedelta(seconds=at)).isoformat(timespec="seconds")
    return replace(record, provenance={**record.provenance, "date": date, **source})


def pair(*, apart: float, **source: Any) -> list[CellResult]:
    """Two trainings of 20 s, of which the second ended so many seconds after the first."""
    cells = [Cell(model="vgg-digits", scheme=scheme) for scheme in ("baseline", "w+2d")]
    return [replace(ended(make(cell), apart * i, **source), wall_seconds=20.0) for i, cell in enumerate(cells)]


@pytest.mark.parametrize(
    ("source", "where"),
    [
        (TWO_CORES, "on node0, 4 threads or GPUs in use where there are 2"),
        ({"device": "Example GPU", "gpu_uuids": ["GPU-0", "GPU-1"]}, "on GPU-0, 2 threads or GPUs in use where there"),
    ],
    ids=["cores", "GPUs"],
)
def test_trainings_that_overlap_where_one_has_all_are_named(source: dict[str, Any], where: str) -> None:
    together = pair(apart=17, **source)
    found = at_once(together)
    assert found.keys() == {one.cell for one in together}
    names = "vgg-digits.topk.baseline.kept.d0.01.s0 and vgg-digits.topk.w+2d.kept.d0.01.s0 ran at once "
    assert all(names + where in text for text in found.values())
    assert at_once(pair(apart=20 - SLACK_SECONDS, **source)) == {}, "dates are whole seconds"


@pytest.mark.parametrize(
    "source",
    [
        TWO_CORES | {"cores": 4},
        TWO_CORES | {"cores": None},
        TWO_CORES | {"resumed_at_steps": [7]},
        {"device": "Example GPU", "gpu_uuids": [None, None]},
        {"date": "yesterday"},
    ],
    ids=str,
)
def test_where_there_is_room_or_nothing_is_known_trainings_may_overlap(source: dict[str, Any]) -> None:
    assert at_once([replace(one, provenance=one.provenance | source) for one in pair(apart=5, **TWO_CORES)]) == {}


def test_other_hosts_jobs_and_gpus_are_other_places() -> None:
    for places in (
        [{"cores": 2, "ranks_per_host": {name: 2}} for name in "ab"],
        [TWO_CORES | {"slurm": {"job_id": job}} for job in ("7", "8")],
        [{"device": "Example GPU", "gpu_uuids": [f"GPU-{i}", f"GPU-{i + 1}"]} for i in (0, 2)],
    ):
        both = pair(apart=0)
        assert at_once([replace(o, provenance=o.provenance | p) for o, p in zip(both, places, strict=True)]) == {}


def test_trainings_of_two_runs_are_told_from_each_other_by_their_gpu_alone() -> None:
    """Two machines may have one name; and a record that both runs have is of one training."""
    one_gpu = {"device": "Example GPU", "gpu_uuids": ["GPU-0", "GPU-1"], "process_group": "nccl", "cuda": "12.6"}
    one_gpu |= {"device_memory_bytes": 2**36}
    for source, count in ((one_gpu, 2), (TWO_CORES, 0)):
        first, second = pair(apart=5, **source)
        assert len(gather([run_of([first]), run_of([second])]).shared) == count
        assert gather([run_of([first]), run_of([first])]).shared == {}
    assert len(gather([run_of(pair(apart=5, **TWO_CORES))]).shared) == 2


@pytest.mark.parametrize(("longer", "status"), [(1.0, "reproduced"), (1.3, "inconclusive")])
def test_a_total_that_reaches_into_the_training_before_leaves_claims_of_time_open(longer: float, status: str) -> None:
    """A baseline that says it took longer makes the other side look faster."""
    schemes = ("w+2d", "baseline", "none")
    cells = [Cell(model="vgg-digits", scheme=one, seed=seed) for seed in range(3) for one in schemes]
    records, at = [], 0.0
    for cell in cells:
        made = make(cell)
        at += float(made.wall_seconds or 0) + 1
        slow = replace(made, wall_seconds=float(made.wall_seconds or 0) * (longer if cell.scheme == "baseline" else 1))
        records.append(ended(slow, at, **TWO_CORES))
    found = {one.id: one for one in ledger(run_of(records))}
    assert found["exp2-time-vgg19"].status == status
    assert found["exp2-accuracy-vgg19"].status == "reproduced", "metrics do not depend on it"
    assert ("by their date and wall_seconds" in found["exp3-throughput-64-vgg19"].reason) == (longer > 1)
