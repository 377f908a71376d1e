"""Two nodes on one machine, joined by one slow link: a namespace with a network of its own each. Linux, root."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.launching.processes import die_with_parent
from resireduce.errors import ConfigError

INTERFACE = "eth0"
"""What the link is called on both nodes."""
RATE = re.compile(r"[1-9][0-9]*(k|m|g)bit")
PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
"""What is called, and the packages of Debian that have it."""
START_SECONDS = 5.0


@contextmanager
def two_nodes(rate: str) -> Iterator[list[list[str]]]:
    """Make two nodes, joined by a link of `rate` in each direction, such as 100mbit, until the end of the block.

    Yields for each node the words before a command that runs it there. Ranks of one node reach each other as fast as
    the machine lets them. Nothing of the machine's own network is touched. Raises ConfigError, with the cure, for a
    rate that is none, and where no such nodes can be made.
    """
    _check(rate)
    with ExitStack() as stack:
        holders = [stack.enter_context(_holder()) for _ in range(2)]
        nodes = [["nsenter", f"--net=/proc/{holder}/ns/net"] for holder in holders]
        ends = [["name", INTERFACE, "netns", str(holder)] for holder in holders]
        _do(["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]], "modprobe veth")
        for number, node in enumerate(nodes, start=1):
            _do([*node, "ip", "address", "add", f"10.88.0.{number}/24", "dev", INTERFACE])
            for interface in ("lo", INTERFACE):
                _do([*node, "ip", "link", "set", interface, "up"])
            limit = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "50ms"]
            _do([*node, "tc", "qdisc", "add", "dev", INTERFACE, *limit], "modprobe sch_tbf")
        yield nodes


def _check(rate: str) -> None:
    if not RATE.fullmatch(rate):
        raise ConfigError(f"rate: {rate!r} is not allowed; give a whole number with kbit, mbit or gbit, as in 100mbit")
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise ConfigError("user: two nodes on one machine need Linux, and root for their namespaces; call it with sudo")
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = next((name for name in PROGRAMS if shutil.which(name, path=path) is None), None)
    if missing is not None:
        raise ConfigError(f"{missing}: not on PATH; install the package {PROGRAMS[missing]}")


@contextmanager
def _holder() -> Iterator[int]:
    """Yield the id of a process in a network of its own, which lives as long as the block."""
    process = subprocess.Popen(
        ["unshare", "--net", "sleep", "infinity"],
        preexec_fn=die_with_parent,  # noqa: PLW1509  (this process has no threads)
    )
    try:
        deadline, own = time.monotonic() + START_SECONDS, os.readlink("/proc/self/ns/net")
        while process.poll() is None and os.readlink(f"/proc/{process.pid}/ns/net") == own:
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        if process.poll() is not None or os.readlink(f"/proc/{process.pid}/ns/net") == own:
            raise ConfigError(
                "unshare: this root may not make namespaces; in a container, start that with --privileged"
            )
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _do(command: Sequence[str], cure: str = "run it on another machine") -> None:
    environment = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(command)}: {done.stderr.strip()}; {cure}")
