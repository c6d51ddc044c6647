"""The one port that all front ends listen on."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofno.service.settings import Settings


def bind(settings: Settings, *, shared: bool) -> socket.socket:
    """A socket bound to the settings' address, not listening yet. Those that are `shared` may have the same.

    The kernel deals new connections out among those that listen: no front end can take them all, and one that
    is gone gets none.

    Raises:
        OSError: something else has the address.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((settings.host, settings.port))
    except BaseException:
        bound.close()
        raise
    return bound


def reserve(settings: Settings) -> socket.socket:
    """Hold the address for the front ends to share, whichever of them live.

    Raises:
        OSError: something else has it. Another server like this one would otherwise share it unnoticed.
    """
    bind(settings, shared=False).close()
    return bind(settings, shared=True)
