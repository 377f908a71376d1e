"""The generated run of a whole config: what other tests build upon."""

from pathlib import Path

from benchmarks.analysis.load_run import load_run, thin
from tests.full_set import HOLES, make_full_set


def test_the_papers_matrix_has_holes_of_every_kind(tmp_path: Path) -> None:
    make_full_set(tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert len(run.cells) == 1245 == len(run.results) + len(run.holes)
    expected = {"not run" if kind == "absent" else kind for kind in HOLES}
    assert {hole.status for hole in run.holes.values()} == expected


def test_of_many_steps_a_report_keeps_the_means_of_stretches():
    assert thin([1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    many = [float(i) for i in range(1203)]
    assert thin(many)[:2] == [1.0, 4.0] and len(thin(many)) == 400
