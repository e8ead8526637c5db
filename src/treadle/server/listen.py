"""The listening socket, taken before anything is loaded, so that a taken port is known at once.

Imports next to nothing: it runs before the engine's process is even started.
"""

from __future__ import annotations

import ipaddress
import os
import socket

from treadle.errors import StartError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in its backlog until somebody accepts them."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise _cannot(host, port, error) from None
    try:
        # A port whose last connections are still closing may be taken again.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot(host, port, error) from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def _cannot(host: str, port: int, error: Exception) -> StartError:
    number = getattr(error, "errno", None)
    is_system = isinstance(error, OSError) and not isinstance(error, socket.gaierror)
    reason = os.strerror(number) if is_system and number else getattr(error, "strerror", error)
    return StartError(f"cannot listen on {host}:{port}: {str(reason).lower()}")
