"""What would go wrong with all jobs alike is told before the first; sbatch's words are as they were seen."""

import json
from pathlib import Path

import pytest

from benchmarks.launching.slurm.site import Site
from benchmarks.workflow.submission_checks import check_submission, get_site
from resireduce.errors import ConfigError

NO_ACCOUNT = "sbatch --test-only: allocation failure: Invalid account or account/partition combination specified"
DRAINED = "sbatch --test-only --time=1: allocation failure: Required partition not available (inactive or drain)"
NO_PARTITION = "sbatch --test-only --partition=b: allocation failure: Invalid partition name specified"


def check(folder: Path, partitions: dict, refused: dict, account: str | None = "mine") -> list[list[str]]:
    """Check with a sbatch that refuses jobs in these partitions; what it was called with."""
    file, calls = folder / "site.yaml", []
    file.write_text(json.dumps({"partitions": partitions}))

    def ask(command):
        calls.append(list(command))
        partition = next((word.partition("=")[2] for word in command if word.startswith("--partition=")), None)
        if partition in refused:
            raise ConfigError(refused[partition])
        return ""

    check_submission(file, Site(account=account), ask)
    return calls


def test_each_partition_is_asked_without_submitting(tmp_path):
    calls = check(tmp_path, {"a": {}, "b": {}}, {})
    assert [call[:4] for call in calls] == [
        ["sbatch", "--test-only", "--account=mine", f"--partition={name}"] for name in "ab"
    ]
    assert check(tmp_path, {}, {}, account=None) == [["sbatch", "--test-only", "--time=1", "--wrap=true"]]


def test_what_no_job_can_have_is_named_and_what_may_be_otherwise_later_stops_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"partitions: 'b' is not allowed: invalid partition name specified; take it"):
        check(tmp_path, {"a": {}, "b": {}}, {"b": NO_PARTITION})
    with pytest.raises(ConfigError, match=r"account: 'mine' is not allowed: invalid account .*; give another"):
        check(tmp_path, {"a": {}, "b": {}}, {"a": NO_ACCOUNT, "b": NO_ACCOUNT})
    check(tmp_path, {"a": {}, "b": {}}, {"a": NO_ACCOUNT})
    check(tmp_path, {}, {None: DRAINED})
    assert not check(tmp_path, {"a": {"cluster": "other"}}, {"a": NO_PARTITION}), "another cluster's are not asked"


def test_the_site_is_that_of_the_profile_and_asks_for_no_more_than_the_longest(tmp_path):
    srun, file = {"cell": {"launcher": "srun"}}, tmp_path / "site.yaml"
    file.write_text("partitions: {}\nsite: {minutes: 2000}")
    with pytest.raises(ConfigError, match=r"site.yaml: longest_minutes: 1440 is not allowed: .* minutes, 2000; give"):
        get_site({"site": str(file)}, srun)
    file.write_text("partitions: {}\nsite: {minutes: 1440}")
    assert get_site({"site": str(file)}, srun) == Site(minutes=1440)
    with pytest.raises(ConfigError, match=r"site: 'a.yaml' is of no use without the profile"):
        get_site({"site": "a.yaml"}, {})
    assert get_site({}, {}) is None
