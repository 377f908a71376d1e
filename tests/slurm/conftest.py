"""Clusters for tests: one for all that need no accounting, others as they are asked for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.slurm.cluster import Cluster

Clusters = Callable[..., Cluster]


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """What starts one more cluster: `clusters(accounting="on")`; they are down at the end, their logs are kept."""
    with ExitStack() as stack:

        def start(accounting: str = "off") -> Cluster:
            cluster = Cluster(tmp_path_factory.mktemp("cluster"), accounting)
            try:
                return stack.enter_context(cluster)
            except RuntimeError as error:
                said = str(error)
            pytest.fail(said, pytrace=False)

        yield start


@pytest.fixture(scope="session")
def shared_cluster(clusters: Clusters) -> Cluster:
    """The cluster without accounting, as the test before left it."""
    return clusters()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """Return the cluster without accounting: nothing runs on it, all nodes are up and no link is slow."""
    shared_cluster.reset()
    return shared_cluster
