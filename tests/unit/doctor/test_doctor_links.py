"""`doctor --links FILE`: alpha and beta of links, as a cluster that the simulator reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.__main__ import main
from benchmarks.analysis.statistics import median_interval
from benchmarks.doctor.links import Place, cluster_of, link_of, place_of
from benchmarks.simulation.cluster import all_gather, find_cluster
from resireduce.errors import ConfigError

SIZES = (1000, 100_000, 10_000_000)


def ranks_of(nodes: int, ranks_per_node: int) -> list[dict[str, Any]]:
    """Ranks of a ring: alpha of 1, 2, ... ms in a node and ten times that between nodes, 1 GB/s, 100 MB/s a node."""
    found: list[dict[str, Any]] = []
    for rank in range(nodes * ranks_per_node):
        late = 1.0 if rank == 1 else 0.5  # the others are done sooner, and wait
        each = []
        for number in range(1, 10):
            sent = np.array(SIZES)
            within = (ranks_per_node - 1) * (number * 1e-3 + sent / 1e9) * late
            between = (nodes - 1) * (number * 1e-2 + ranks_per_node * sent / 1e8) * late
            each.append({"in_node": [*within], "between_nodes": [*between]})
        own = {"rank": rank, "size": nodes * ranks_per_node, "backend": "gloo", "sizes": SIZES, "rounds": each}
        device = {"flops_per_second": 1e9 * (rank + 1), "memory_bytes_per_second": 1e10, "memory_bytes": 1 << 34}
        found.append(own | device | {"launch_seconds": 1e-6 * (rank + 1)})
    return found


def test_alpha_and_beta_are_those_of_the_ring_that_was_timed_also_in_the_file(tmp_path: Path) -> None:
    for nodes, ranks_per_node in ((3, 2), (2, 4)):
        ranks = ranks_of(nodes, ranks_per_node)
        found = link_of("in_node", ranks, ranks_per_node)
        middle, low, high = median_interval([number * 1e-3 for number in range(1, 10)])
        assert found["latency_seconds"] == pytest.approx(middle)
        assert found["bandwidth_bytes_per_second"] == pytest.approx(1e9)
        assert f"latency {low:.3g} to {high:.3g} s" in found["source"]
        between = link_of("between_nodes", ranks, ranks_per_node)
        assert between["latency_seconds"] == pytest.approx(10 * middle)
        assert between["bandwidth_bytes_per_second"] == pytest.approx(1e8), "of a whole node"
    alone = [{**rank, "rounds": [{"in_node": one["in_node"]} for one in rank["rounds"]]} for rank in ranks_of(1, 2)]
    for ranks in (ranks_of(3, 2), alone):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(cluster_of(ranks, 2)))
        cluster = find_cluster(str(tmp_path / "mine.yaml"))
        assert (cluster.ranks_per_node, cluster.device.flops) == (2, 1e9), "as the slowest reaches it"
        assert (cluster.nodes, cluster.between_nodes is None) == ((1, True) if ranks is alone else (3, False))
        if cluster.between_nodes:
            cost = all_gather(3, cluster.between_nodes)
            assert cost.latency == pytest.approx(2 * 5e-2) and cost.per_byte == pytest.approx(2 / 1e8)


SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"}
SLURM |= {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


def test_the_place_is_that_of_srun(tmp_path: Path) -> None:
    assert place_of(SLURM, tmp_path) == Place(3, 4, 2, f"file://{tmp_path}/.doctor-links-7.0")
    assert place_of({"SLURM_JOB_ID": "7"}, tmp_path) is None
    for wrong in (SLURM | {"SLURM_STEP_NUM_TASKS": "5"}, SLURM | {"SLURM_NODEID": "0"}):
        with pytest.raises(ConfigError, match="not spread over nodes evenly, one node after the other; give each node"):
            place_of(wrong, tmp_path)


def test_two_ranks_of_this_machine_time_their_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--links", str(tmp_path / "mine.yaml")]) == 0, capsys.readouterr().out
    cluster = find_cluster(str(tmp_path / "mine.yaml"))
    assert (cluster.nodes, cluster.ranks_per_node) == (1, 2) and cluster.in_node is not None
    assert "95 % intervals: latency" in cluster.in_node.source
