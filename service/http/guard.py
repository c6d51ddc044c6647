"""Requests that a web page sends behind its reader's back: refused by Host, by origin and by Content-Type.

A browser sends them from inside a network, where the server trusts whoever reaches it. What no browser sends is let
through.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache
from typing import TYPE_CHECKING

from turbofno.service.errors import Forbidden, Misdirected, ServiceError, UnsupportedMediaType
from turbofno.service.http.call import Reply, encoded
from turbofno.service.settings import env_name, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turbofno.service.http.call import Call
    from turbofno.service.settings import Settings

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""Sec-Fetch-Site of the server's own page, and of what a user typed."""
_FORM_TYPES = frozenset(
    {b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"}
)
"""Content types that a page may send to any origin without asking it (Fetch standard: "CORS-safelisted")."""
_HOST = re.compile(r"(\[[0-9a-f:.]+(?:%[^\]]*)?\]|[^:\[\]]*)(?::[0-9]*)?")
_PRIVATE_SUFFIXES = (".svc", ".svc.cluster.local", ".internal", ".local")
"""Of names that nobody can register, so that no page of an attacker can have them."""
_DEFAULT_PORTS = {"http": "80", "https": "443"}
REASONS: dict[type[ServiceError], str] = {
    Misdirected: "host",
    Forbidden: "origin",
    UnsupportedMediaType: "form_type",
}
"""Of refusals, as the metric counts them."""
_KNOWN_HOSTS = 256
"""Host headers whose verdict is remembered."""


class Guard:
    """The checks, on the headers alone."""

    def __init__(self, settings: Settings) -> None:
        self._names = frozenset({"localhost", "", settings.host.lower(), *settings.allowed_hosts})
        if not is_loopback(settings.host):
            self._names |= {socket.gethostname().lower()}
        self._loopback = is_loopback(settings.host)
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
        self._serves = lru_cache(_KNOWN_HOSTS)(self._is_served)

    def check(self, call: Call) -> None:
        """Let a request through.

        Raises:
            Misdirected: it names a host that this server is not known as (DNS rebinding).
            Forbidden: a page of another origin would change something, or asks whether it may.
            UnsupportedMediaType: a body of the Open Inference Protocol as a form would send it.
        """
        try:
            self.check_host(call.headers.get(b"host", b""))
            if call.method not in _READING or is_preflight(call):
                self._check_page(call)
        except ServiceError as error:
            call.context.metrics.reject(REASONS[type(error)])
            raise

    def check_host(self, host: bytes) -> None:
        """Raises Misdirected for the header Host of a name that is not the server's."""
        if not self._serves(host):
            raise _foreign_host(host)

    def _check_page(self, call: Call) -> None:
        given = call.headers
        if not self._is_own(given):
            raise _foreign_page(given)
        if not call.path.startswith("/v2"):
            return
        kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind in _FORM_TYPES:
            raise UnsupportedMediaType(
                f"Content-Type {kind.decode()!r} is refused, as any web page can send it: expected application/json, "
                "application/octet-stream or none (with curl: -H 'Content-Type: application/json')"
            )

    def _is_served(self, header: bytes) -> bool:
        match = _HOST.fullmatch(header.decode("latin-1").strip().lower())
        # A comma: two of them, of which a proxy may have believed the other.
        if match is None or b"," in header:
            return False
        name = match[1].rstrip(".")
        if name in self._names or "*" in self._names or _is_address(name.strip("[]")):
            return True
        _, _, parent = name.partition(".")
        while parent:
            if f"*.{parent}" in self._names:
                return True
            _, _, parent = parent.partition(".")
        return not self._loopback and ("." not in name or name.endswith(_PRIVATE_SUFFIXES))

    def _is_own(self, given: Mapping[bytes, bytes]) -> bool:
        """True of what no browser sent, the server's own page, and pages of the origins that the settings name."""
        origin = given.get(b"origin")
        if origin is not None and origin.lower() in self._origins:
            return True
        site = given.get(b"sec-fetch-site")
        if site is not None:
            return site in _OWN_SITES
        return origin is None or _same_host(origin, given.get(b"host", b""))


def _foreign_host(value: bytes) -> Misdirected:
    return Misdirected(
        f"this server is not known as {value[:80].decode('latin-1')!r}: call it by IP address, as localhost, or by "
        f"a name in {env_name('allowed_hosts')}; add this one there if a proxy or DNS leads here by it"
    )


def _foreign_page(given: Mapping[bytes, bytes]) -> Forbidden:
    origin = given.get(b"origin")
    whose = "another origin" if origin is None else repr(origin[:80].decode("latin-1"))
    return Forbidden(
        f"a web page of {whose} sent this request, and pages of other origins may not: list the origin in "
        f"{env_name('cors_origins')} to allow it, and have a proxy pass Host on unchanged"
    )


def is_preflight(call: Call) -> bool:
    """True of a browser's question whether a page may send what it is about to send."""
    return call.method == "OPTIONS" and b"access-control-request-method" in call.headers


def preflight() -> Reply:
    """The methods and headers that a page of an allowed origin may send; the access log adds the origin."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST",
        # The star does not stand for Authorization (Fetch standard).
        "Access-Control-Allow-Headers": "*, Authorization",
        "Access-Control-Max-Age": "600",
    }
    return Reply(204, encoded(headers))


def _is_address(name: str) -> bool:
    """True of IP addresses: rebinding needs a name, whose address can be changed."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_host(origin: bytes, host: bytes) -> bool:
    """True if a page of `origin` calls where it came from; the scheme is a proxy's business."""
    scheme, _, place = origin.decode("latin-1").lower().partition("://")
    default = ":" + _DEFAULT_PORTS.get(scheme, "")
    called = host.decode("latin-1").strip().lower()
    return bool(place) and place.removesuffix(default) == called.removesuffix(default)
