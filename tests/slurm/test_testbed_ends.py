"""A cluster on one machine leaves nothing behind, however it ends, and says in one line what it lacks."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slurm.cluster import SCRIPT, Cluster, wait_until

NEEDED = ("bash", "cat", "dirname", "env", "id", "mount", "nsenter", "realpath", "rmdir", "setsid", "true", "unshare")


def _machine() -> tuple[str, list[str], bool]:
    """What a cluster must not change."""
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    return mounts, sorted(os.listdir("/sys/class/net")), Path("/etc/slurm").exists()


def _holder(folder: Path) -> Path:
    return Path("/proc") / (folder / "run/holder.pid").read_text(encoding="ascii").strip()


def _networks() -> set[str]:
    """The network namespaces of all processes."""
    found = set()
    for process in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(os.readlink(process))
        except OSError:
            continue  # ended meanwhile
    return found


def _up(folder: Path, prefix: tuple[str, ...] = (), **settings: str) -> str:
    """Return what it says when it cannot be started."""
    done = subprocess.run(
        [*prefix, SCRIPT, "up"],
        env=os.environ | {"TESTBED": str(folder)} | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout
    assert not folder.exists() or {file.name for file in folder.iterdir()} <= {"log", "testbed"}
    return done.stderr


@pytest.mark.parametrize("killed", [None, "slurmctld", "holder"])
def test_down_leaves_nothing(tmp_path, killed):
    before, folder = _machine(), tmp_path / "cluster"
    cluster = Cluster(folder)
    cluster.up()
    network = os.readlink(_holder(folder) / "ns/net")
    job = cluster.output(["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 300"])
    assert job in {one.id for one in cluster.jobs()}
    program = cluster.popen(["bash", "-c", "echo up; sleep 300; exit"], on="node1", stdout=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.readline() == "up\n"
    if killed == "holder":
        os.kill(int(_holder(folder).name), signal.SIGKILL)
    elif killed is not None:
        cluster.output(["bash", "-c", f"kill -9 $(cat {folder}/run/{killed}.pid)"])
    cluster.down()
    assert program.wait(10) == -signal.SIGKILL
    wait_until(lambda: network not in _networks(), 10)
    assert not folder.exists()
    assert _machine() == before
    cluster.down()  # nothing to do


def test_it_ends_with_the_process_that_started_it(tmp_path):
    code = "import sys, time; from pathlib import Path; from tests.slurm.cluster import Cluster; "
    # Kept by a name: with the object goes the pipe that ties the cluster to its process.
    code += "cluster = Cluster(Path(sys.argv[1])); cluster.up(); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "it"], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        holder = _holder(tmp_path / "it")
        assert holder.exists()
        owner.kill()
    wait_until(lambda: not holder.exists(), 10)


def test_a_start_that_fails_leaves_its_logs_alone(tmp_path):
    broken = tmp_path / "bin/slurmctld"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho no such option >&2; exit 1\n", encoding="ascii")
    broken.chmod(0o755)
    before, folder = _machine(), tmp_path / "cluster"
    said = _up(folder, PATH=f"{broken.parent}:{os.environ['PATH']}")
    assert said.splitlines()[-1].startswith("error: testbed: ")
    assert str(folder / "log") in said
    assert "no such option" in (folder / "log/init.log").read_text(encoding="utf-8")
    assert _machine() == before
    Cluster(folder).down()
    assert not folder.exists()


def _path_of(folder: Path, programs: tuple[str, ...]) -> str:
    folder.mkdir()
    for name in programs:
        (folder / name).symlink_to(shutil.which(name) or "")
    return str(folder)


def test_what_is_missing_is_said_in_one_line(tmp_path):
    folder = tmp_path / "cluster"
    assert _up(folder, ("unshare", "--user")) == (
        "error: testbed: user: needs root for namespaces and mounts; call it with sudo\n"
    )
    some = tuple(name for name in NEEDED if name != "unshare")
    assert _up(folder, PATH=_path_of(tmp_path / "some", some)).startswith(
        "error: testbed: unshare: not on PATH; install"
    )
    said = _up(folder, PATH=_path_of(tmp_path / "all", NEEDED), XDG_CACHE_HOME=str(tmp_path))
    assert "there is no apt-get" in said.splitlines()[-1]
    assert "slurmctld" in said.splitlines()[-1]
    assert _up(folder, ACCOUNTING="maybe") == "error: testbed: ACCOUNTING: 'maybe' is not allowed; on or off\n"


def test_a_folder_in_use_is_refused(shared_cluster, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    done = subprocess.run(
        [SCRIPT, "up"], env=os.environ | {"TESTBED": str(other)}, capture_output=True, text=True, check=False
    )
    assert "is not empty" in done.stderr
    done = subprocess.run(
        [SCRIPT, "down"], env=os.environ | {"TESTBED": str(other)}, capture_output=True, text=True, check=False
    )
    assert "is not a testbed's folder" in done.stderr
    assert (other / "thesis.tex").exists()
    with pytest.raises(RuntimeError, match="already up"):
        Cluster(shared_cluster.folder).up()
    assert set(shared_cluster.nodes())


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["crash", "node5"], "node: 'node5' is none of"),
        (["slow", "fast"], "rate: 'fast' is not allowed; give 1mbit to 10gbit"),
        (["slow", "10.5gbit"], "rate: '10.5gbit' is not allowed; give 1mbit to 10gbit"),
        (["slow", "100mbit", "node5"], "node: 'node5' is none of"),
        (["ctld", "begin"], "ctld: 'begin' is none of stop, kill, start"),
        (["exec", "true"], "no cluster runs in"),
    ],
)
def test_a_mistaken_command_is_said_in_one_line(tmp_path, command, said):
    done = subprocess.run(
        [SCRIPT, *command], env=os.environ | {"TESTBED": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: testbed: ")
    assert said in line
