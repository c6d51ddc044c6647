"""Sockets bound to the service's address, such as those that all front ends share."""

from __future__ import annotations

import socket

from turbofno.service.settings import Settings


def bind(settings: Settings, *, shared: bool) -> socket.socket:
    """A socket bound to the settings' address, `::` for IPv4 too, not listening yet; `shared` ones may have the same address.

    The kernel distributes new connections among the listening sockets.

    Raises:
        OSError: the address is in use.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((settings.host, settings.port))
    except BaseException:
        bound.close()
        raise
    return bound


def reserve(settings: Settings) -> socket.socket:
    """A shared socket that keeps the address while front ends restart.

    Raises:
        OSError: the address is in use, also by another instance of this service, which would allow sharing.
    """
    bind(settings, shared=False).close()
    return bind(settings, shared=True)
