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


def supervise(command: list[str], last: bool = False) -> int:
    """Run the command, reap orphaned processes, and return its exit status; 128 + signal if it was killed."""
    child, alone = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True), threading.Event()

    def pass_on(number: int, _: object = None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)

    def listen() -> None:
        while numbers := os.read(0, 64):
            for number in numbers:
                pass_on(number)
        alone.set()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    threading.Thread(target=listen, daemon=True).start()
    pid = status = 0
    while pid != child.pid:  # as the first process it inherits orphans
        pid, status = os.wait()
    child.returncode = os.waitstatus_to_exitcode(status)
    if last and alone.is_set():
        time.sleep(LAST_SECONDS)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    is_last = sys.argv[1] == LAST
    sys.exit(supervise(sys.argv[2 if is_last else 1 :], is_last))
