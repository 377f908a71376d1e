"""Bytes that this process has sent over TCP, as Linux counts them, connection by connection."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

BYTES_SENT_AT = 200
"""Offset of `tcpi_bytes_sent` in the kernel's `struct tcp_info`; it is there since Linux 4.19."""


def sent_bytes() -> int:
    """Return the payload sent through the connections that are open now, without headers."""
    return sum(_sent(connection) for connection in _connections())


def _connections() -> Iterator[socket.socket]:
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            copy = os.dup(int(entry))
        except OSError:  # closed meanwhile
            continue
        with closing(socket.socket(fileno=copy)) as found:
            if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
                yield found


def _sent(connection: socket.socket) -> int:
    known = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int(struct.unpack_from("=Q", known, BYTES_SENT_AT)[0]) if len(known) >= BYTES_SENT_AT + 8 else 0
