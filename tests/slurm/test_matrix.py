"""A matrix on the cluster: ranks on one and two nodes, over torch and Horovod, to tables."""

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.project import Project

FEW = {"model": "vgg-digits", "steps": 5}
MATRIX = [
    {**FEW, "world_size": [1, 2, 4], "backend": ["torch", "horovod"]},
    {**FEW, "nodes": 2},
    {**FEW, "world_size": 4, "hierarchy": "node"},
]
PLACES = {
    (1, None): ("A", 1),
    (2, None): ("AA", 2),
    (2, 2): ("AB", 1),
    (4, None): ("AABB", 2),
}
"""By ranks and nodes asked for: which ranks share a node, and how many GPUs each sees."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, shared_cluster: Cluster) -> Project:
    """Return the project after the matrix has run."""
    shared_cluster.reset()
    project = Project.make(tmp_path_factory.mktemp("matrix") / "project", shared_cluster, MATRIX)
    assert project.start().wait(240) == 0, project.screen
    return project


def test_ranks_nodes_and_gpus_are_as_asked_for(project: Project) -> None:
    records = project.records()
    assert len(records) == 8
    for record in records.values():
        names: dict[str, str] = {}
        source = record.provenance
        letters = [names.setdefault(host, "ABC"[len(names)]) for host in source["host_of_rank"]]
        hosts, gpus = PLACES[record.cell.world_size, record.cell.nodes]
        assert "".join(letters) == hosts, record.cell.name
        assert all(seen in {1: ("0", "1"), 2: ("0,1",)}[gpus] for seen in source["visible_gpus"]), record.cell.name
        assert source["backend"] == record.cell.backend
        assert source["slurm"]["nodes"] == len(set(hosts))


def test_it_does_not_matter_for_the_result_who_starts_the_ranks_and_where(project: Project) -> None:
    metrics: dict[int, set[float | None]] = {}
    held: dict[str, int] = {}
    for record in project.records().values():
        if record.cell.hierarchy == "flat":
            metrics.setdefault(record.cell.world_size, set()).add(record.metric)
        if record.cell.world_size == 4 and record.cell.backend == "torch":
            held[record.cell.hierarchy] = record.residuals_bytes
    assert {ranks: len(found) for ranks, found in metrics.items()} == {1: 1, 2: 1, 4: 1}
    assert held["node"] * 2 == held["flat"], "ranks that Slurm has put on one node share a residual, untold which"


def test_tables_have_all_cells_and_nothing_is_left_that_was_needed_only_while_it_ran(project: Project) -> None:
    run: Path = project.folder / "results/runs/mine"
    assert (run / "report.html").exists()
    assert project.table("memory").count("vgg-digits") >= 1
    assert "not run" not in project.table("accuracy")
    assert not [path for path in (run / "working").iterdir() if path.is_dir()]
    assert set(project.records()) == {path.stem for path in (run / "specs").glob("*.json")}
