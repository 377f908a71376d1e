"""The first process in a container: `python -m benchmarks.launching.supervise COMMAND`. Standard library only.

Its standard input comes from the launcher: each byte is the number of a signal for the command, and its end means that
the launcher has died, so that the command must end too. A killed client of an engine leaves its container running, and
signals sent to it before the container runs are lost; bytes in a pipe are not.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def supervise(command: list[str]) -> int:
    """Run the command, reap orphaned processes, and return its exit status; 128 + signal if it was killed."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: came.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def pass_on(number: int, _: object = None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def listen() -> None:
        while numbers := os.read(0, 64):
            for number in numbers:
                pass_on(number)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    for early in came:  # while it was being started
        pass_on(early)
    threading.Thread(target=listen, daemon=True).start()
    ended = status = 0
    while ended != child.pid:  # the first process inherits orphans
        ended, status = os.wait()
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
