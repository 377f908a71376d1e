"""The workflow ends, whatever Slurm's accounting does: by default the executor plugin would wait for it for ever."""

from pathlib import Path

import pytest

from tests.slurm.conftest import Clusters
from tests.slurm.project import Project

pytestmark = pytest.mark.full
MATRIX = [{"model": "vgg-digits", "steps": 3, "world_size": [1, 2]}]


@pytest.mark.parametrize(
    ("accounting", "account"), [("off", None), ("on", None), ("on", "root"), ("broken", None), ("broken", "root")]
)
def test_the_workflow_ends(tmp_path: Path, clusters: Clusters, accounting: str, account: str | None) -> None:
    """An account is not looked up for each job: of a data base that is down nothing would be heard."""
    project = Project.make(tmp_path / "project", clusters(accounting=accounting), MATRIX, account=account)
    sacct = project.cluster.run(["sacct", "-n"], timeout_seconds=120)
    assert (sacct.returncode == 0) == (accounting == "on"), "the accounting is as the test says"
    assert project.start().wait(240) == 0, project.screen
    assert len(project.records()) == 2
