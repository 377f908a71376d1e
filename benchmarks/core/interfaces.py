"""Network devices of this machine: which one reaches a host, and how fast it is. Linux; standard library only."""

import fcntl
import os
import re
import socket
import struct
from contextlib import suppress

from benchmarks.core.programs import output_of
from resireduce.errors import ConfigError

GET_ADDRESS = 0x8915
"""SIOCGIFADDR of linux/sockios.h."""
ANY_PORT = 9
RATE = re.compile(r"^qdisc tbf .*\broot\b.*\brate (\S+)", re.MULTILINE)
"""Output of `tc qdisc show` for a device whose traffic is slowed by a queue."""
ANSWER_SECONDS = 10


def interface_to(host: str) -> str:
    """Return the device of the route to a host, without sending anything. Raises ConfigError if there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            handle.connect((host, ANY_PORT))  # a datagram socket only looks up the route
            own = handle.getsockname()[0]
    except OSError as error:
        raise ConfigError(f"interface: no route from {socket.gethostname()} to {host}: {error.strerror}") from None
    found = {name: _address(name) for _, name in socket.if_nameindex()}
    if name := next((name for name, address in found.items() if address == own), None):
        return name
    raise ConfigError(f"interface: none of {', '.join(found)} has {own}, the address by which {host} is reached")


def address_of(interface: str) -> str:
    """Return the first IPv4 address of a device of this machine. Raises ConfigError if it has none."""
    if address := _address(interface):
        return address
    names = ", ".join(name for _, name in socket.if_nameindex())
    raise ConfigError(
        f"GLOO_SOCKET_IFNAME: {interface!r} has no IPv4 address on {socket.gethostname()}; give one of: {names}"
    )


def check_name() -> None:
    """Raise ConfigError unless this machine's name has an address of its own: Horovod looks it up, or crashes."""
    name = socket.gethostname()
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as handle:
                handle.bind(address)
                return
    raise ConfigError(
        f"backend: 'horovod' crashes where the machine's name, {name}, has no address of its own; "
        f"docker or podman run --hostname {name} --add-host {name}:127.0.0.1; elsewhere a line in /etc/hosts"
    )


def rate_limit(interface: str | None) -> str | None:
    """Return the rate to which a queue (tbf) limits a device's outgoing traffic, as tc writes it, such as 100Mbit.

    Return None if there is no such queue, if no `interface` is named, and if tc is not installed.
    """
    if not interface:
        return None
    environment = os.environ | {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin", "LC_ALL": "C"}
    try:
        shown = output_of(["tc", "qdisc", "show", "dev", interface], ANSWER_SECONDS, env=environment)
    except (ConfigError, OSError):
        return None
    found = RATE.search(shown)
    return found[1] if found else None


def _address(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            return socket.inet_ntoa(fcntl.ioctl(handle, GET_ADDRESS, request)[20:24])
    except OSError:
        return None
