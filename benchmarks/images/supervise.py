"""The first process in a container: `python -m benchmarks.images.supervise COMMAND ...`. Standard library only.

Its standard input comes from the launcher: a byte is the number of a signal for the command, and the end of it says
that the launcher has died, so that the command must end too. An engine's client that is killed leaves its container
running, and signals sent to it before the container runs are lost; what is in a pipe is not.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress


def supervise(command: list[str]) -> int:
    """Run the command to its end, and collect what it leaves behind. Its exit status; 128 + signal if it was killed."""
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
    threading.Thread(target=listen, daemon=True).start()
    pid = status = 0
    while pid != child.pid:  # as the first process it inherits those whose parents have ended
        pid, status = os.wait()
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
