"""The first process in a container: `python -m benchmarks.launching.supervise [--last] COMMAND`. Standard library only.

Its standard input comes from the launcher: each byte is the number of a signal for the command, and its end means that
the launcher has died, so that the command must end too. A killed client of an engine leaves its container running, and
signals sent to it before the container runs are lost; bytes in a pipe are not.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

LAST = "--last"
"""Option of the first rank: if the launcher dies, it ends last, as podman cannot remove a container while joined."""
LAST_SECONDS = 3.0


def supervise(command: list[str], last: bool) -> int:
    """Run the command, reap orphaned processes, and return its exit status; 128 + signal if it was killed."""
    woken = _waking()  # before the command is there: a signal that comes early waits in the pipe
    child, alone = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True), threading.Event()

    def pass_on(number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def listen() -> None:
        while numbers := os.read(0, 64):
            for number in numbers:
                pass_on(number)
        alone.set()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    threading.Thread(target=listen, daemon=True).start()
    statuses: dict[int, int] = {}
    while child.pid not in statuses:
        for number in os.read(woken, 64):
            if number == signal.SIGCHLD:
                statuses |= _reap()
            else:
                pass_on(number)
    child.returncode = os.waitstatus_to_exitcode(statuses[child.pid])
    if last and alone.is_set():
        time.sleep(LAST_SECONDS)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _waking() -> int:
    """Return the end of a pipe from which each signal can be read as a byte, also one that comes just before.

    A handler alone would not do: in a process that is about to wait it runs only once the wait has ended.
    """
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return woken


def _reap() -> dict[int, int]:
    """Return the wait statuses of all children that have ended, by process id: the first process inherits orphans."""
    statuses: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[found[0]] = found[1]
    return statuses


if __name__ == "__main__":
    is_last = sys.argv[1] == LAST
    sys.exit(supervise(sys.argv[2 if is_last else 1 :], is_last))
