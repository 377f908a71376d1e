"""Network devices of this machine, and by which of them others are reached. Linux; standard library only."""

import fcntl
import socket
import struct

from resireduce.errors import ConfigError

GET_ADDRESS = 0x8915
"""SIOCGIFADDR of linux/sockios.h."""
ANY_PORT = 9


def interface_to(host: str) -> str:
    """Return the device of the route to a host, to which nothing is sent. Raises ConfigError if there is none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            handle.connect((host, ANY_PORT))  # of a datagram socket: only the route is looked up
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


def _address(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            return socket.inet_ntoa(fcntl.ioctl(handle, GET_ADDRESS, request)[20:24])
    except OSError:
        return None
