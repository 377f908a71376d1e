"""The cluster on one machine (slurm/testbed), as tests use it."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from benchmarks.core.paths import ROOT

SCRIPT = ROOT / "slurm/testbed/cluster.sh"
NODES = ("node1", "node2", "node3", "node4")


@dataclass(frozen=True)
class Job:
    """A job as squeue lists it, up to five minutes after its end."""

    id: str
    name: str
    state: str
    """PENDING, RUNNING, COMPLETED, NODE_FAIL ..."""
    nodes: str
    """As Slurm writes them: node[1-2]."""


class Program(subprocess.Popen[str]):
    """A program in the cluster. Signals go to the program itself, not to nsenter, which waits for it."""

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program, if it runs."""
        if self.poll() is None:
            with suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
                os.kill(_program(self.pid), sig)


def _program(pid: int) -> int:
    """The process that nsenter, or one nsenter inside another, started; waits until there is one."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        if words[0] == "nsenter":
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
            pid = int(children[0]) if children else pid
            time.sleep(0 if children else 0.01)
        elif words[0] == "bash" and words[1].endswith((SCRIPT.name, "inside.sh")):
            time.sleep(0.01)  # becomes nsenter
        else:
            return pid
    raise TimeoutError(f"process {pid}: started no program in the cluster within 10 s")


class Cluster:
    """A cluster of four nodes with two fake GPUs each. `up` first; it ends with this process at the latest.

    `folder` must not exist, or be empty; `accounting` is "off", "on", or "broken": the daemon is dead from the start.
    """

    def __init__(self, folder: Path, accounting: str = "off"):
        self.folder, self.accounting = folder, accounting
        self._environment = {"TESTBED": str(folder), "ACCOUNTING": "off" if accounting == "off" else "on"}
        self._tie: IO[str] | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down(keep_logs=True)

    def up(self) -> None:
        """Start it. Raises RuntimeError with the line that says what is missing."""
        with subprocess.Popen(
            [SCRIPT, "up", "--attached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self._environment,
        ) as starting:
            assert starting.stderr is not None
            # Left open: the cluster ends when this process, and with it the pipe, does.
            self._tie, starting.stdin = starting.stdin, None
            said = starting.stderr.read()
        if starting.returncode:
            raise RuntimeError(said.strip().splitlines()[-1])
        if self.accounting == "broken":
            self.dbd("kill")

    def down(self, keep_logs: bool = False) -> None:
        """Stop it and remove its folder, or all but the logs in it. Nothing if it is down."""
        self._call("down", *(["--keep-logs"] if keep_logs else []))
        if self._tie is not None:
            self._tie.close()

    def run(
        self, command: Sequence[object], on: str | None = None, timeout_seconds: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the login node, or on a node, to its end; its output is captured.

        Options are those of Popen. Raises TimeoutExpired, and has killed the command then.
        """
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        with self.popen(command, on, **options) as program:
            try:
                output, errors = program.communicate(timeout=timeout_seconds)
            except BaseException:
                program.kill()
                raise
        return subprocess.CompletedProcess(program.args, program.returncode, output, errors)

    def output(self, command: Sequence[object], on: str | None = None, **options: Any) -> str:
        """Return what a command prints, without white space around. Raises RuntimeError with its errors if it fails."""
        done = self.run(command, on, **options)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: status {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def popen(self, command: Sequence[object], on: str | None = None, **options: Any) -> Program:
        """Start a command on the login node, or on a node; options are those of Popen. SIGINT interrupts it."""
        where = ["exec"] if on is None else ["on", on]
        options["env"] = (options.get("env") or os.environ) | self._environment
        return Program([str(SCRIPT), *where, *map(str, command)], text=True, **options)

    def crash(self, node: str) -> None:
        """Cut a node's power."""
        self._call("crash", node)

    def start(self, node: str) -> None:
        """Start a node that crashed, and wait until Slurm uses it again."""
        self._call("start", node)
        wait_until(lambda: self.nodes()[node] == "idle", 60)

    def slow(self, rate: str, *nodes: str) -> None:
        """Slow the links of nodes, or of all, both ways: to "100mbit", for example."""
        self._call("slow", rate, *nodes)

    def fast(self, *nodes: str) -> None:
        """Undo `slow`."""
        self._call("fast", *nodes)

    def ctld(self, what: str) -> None:
        """Stop, kill or start the controller."""
        self._call("ctld", what)

    def dbd(self, what: str) -> None:
        """Stop, kill or start the accounting daemon."""
        self._call("dbd", what)

    def reset(self) -> None:
        """As it was after `up`: no job runs, all nodes and the controller are up, no link is slow."""
        if self.run(["scontrol", "ping"]).returncode:
            self.ctld("start")
            wait_until(lambda: not self.run(["scontrol", "ping"]).returncode, 30)
        self.fast()
        self.output(["scancel", "--user=root"])
        for node in NODES:
            if not (self.folder / "run" / f"{node}.pid").exists():
                self._call("start", node)
        wait_until(lambda: set(self.nodes().values()) == {"idle"}, 60)

    def nodes(self) -> dict[str, str]:
        """Return the nodes' states, as sinfo names them: idle, mix, alloc, down* (which does not answer)."""
        words = self.output(["sinfo", "-h", "-N", "-o", "%N %t"]).split()
        return dict(zip(words[::2], words[1::2], strict=True))

    def jobs(self) -> list[Job]:
        """Return all jobs that the controller knows, in the order in which they were submitted."""
        lines = self.output(["squeue", "-h", "-a", "-t", "all", "-S", "i", "-o", "%i|%j|%T|%N"]).splitlines()
        return [Job(*line.split("|")) for line in lines]

    def _call(self, *arguments: str) -> None:
        done = subprocess.run(
            [SCRIPT, *arguments],
            env=os.environ | self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())


def wait_until(condition: Callable[[], object], seconds: float, pause_seconds: float = 0.2) -> None:
    """Return as soon as a condition holds. Raises TimeoutError if it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not so within {seconds:g} s")
        time.sleep(pause_seconds)
