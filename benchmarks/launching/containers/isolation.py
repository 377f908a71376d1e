"""A network with nothing but a loopback device, for the ranks of one launch under apptainer.

Apptainer's own `--net --network none` makes a network for each rank, and ranks could not reach each other. Here one of
our processes holds one, and each rank's apptainer enters it. Linux only; needs no rights where user namespaces work.
"""

import fcntl
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.launching.containers.programs import command
from benchmarks.launching.processes import die_with_parent
from resireduce.errors import ConfigError

# linux/sockios.h and linux/if.h
GET_FLAGS, SET_FLAGS, IS_UP = 0x8913, 0x8914, 0x1
UP = b"up\n"


@contextmanager
def isolated() -> Iterator[list[str]]:
    """Hold such a network; yield the beginning of a command line that runs in it. Raises ConfigError."""
    holder = subprocess.Popen(
        [*command("unshare"), "--user", "--map-root-user", "--net", sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  (this process has no threads)
    )
    with holder:  # closes its standard input, which ends it
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != UP:
            said = holder.stderr.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ConfigError(f"network: 'none' is not to be had under apptainer here ({said[-1]}); set --network host")
        # The caller keeps its ID, which is mapped to root in there; no other ID is mapped.
        yield [*command("nsenter"), f"--target={holder.pid}", "--user", "--net", "--preserve-credentials"]


def bring_up() -> None:
    """Switch the loopback of this process's namespace on, as `ip link set lo up` does. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        found = fcntl.ioctl(handle, GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        fcntl.ioctl(handle, SET_FLAGS, struct.pack("16sh14x", b"lo", struct.unpack("16sh14x", found)[1] | IS_UP))


if __name__ == "__main__":
    bring_up()
    sys.stdout.buffer.write(UP)
    sys.stdout.buffer.flush()
    sys.stdin.buffer.read()
