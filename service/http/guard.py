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

from starlette.responses import Response

from service.errors import Forbidden, Misdirected, ServiceError, UnsupportedMediaType
from service.http.problems import problem_response
from service.settings import env_name, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.http.journal import Headers
    from service.metrics import Metrics
    from service.settings import Settings

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
    """The checks, on the headers alone; the same for every way on which a request is answered."""

    def __init__(self, settings: Settings) -> None:
        self._names = frozenset({"localhost", "", settings.host.lower(), *settings.allowed_hosts})
        if not is_loopback(settings.host):
            self._names |= {socket.gethostname().lower()}
        self._loopback = is_loopback(settings.host)
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
        self._serves = lru_cache(_KNOWN_HOSTS)(self._is_served)

    def check(self, method: str, path: str, headers: Headers) -> None:
        """Let a request through.

        Raises:
            Misdirected: it names a host that this server is not known as (DNS rebinding).
            Forbidden: a page of another origin would change something, or asks whether it may.
            UnsupportedMediaType: a body of the Open Inference Protocol as a form would send it.
        """
        for name, value in headers:
            if name == b"host" and not self._serves(value):
                raise _foreign_host(value)
        if method in _READING and not _is_preflight(method, headers):
            return
        given = dict(headers)
        if not self._is_own(given):
            raise _foreign_page(given)
        kind = given.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind in _FORM_TYPES and path.startswith("/v2"):
            raise UnsupportedMediaType(
                f"Content-Type {kind.decode()!r} is refused, as any web page can send it: expected application/json, "
                "application/octet-stream or none (with curl: -H 'Content-Type: application/json')"
            )

    def _is_served(self, header: bytes) -> bool:
        match = _HOST.fullmatch(header.decode("latin-1").strip().lower())
        if match is None:
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

    def _is_own(self, given: dict[bytes, bytes]) -> bool:
        """True of what no browser sent, the server's own page, and pages of the origins that the settings name."""
        origin = given.get(b"origin")
        if origin is not None and origin.lower() in self._origins:
            return True
        site = given.get(b"sec-fetch-site")
        if site is not None:
            return site in _OWN_SITES
        return origin is None or _same_host(origin, given.get(b"host", b""))


class GuardMiddleware:
    """Answers what the guard refuses, and the preflights of pages that may call."""

    def __init__(self, app: ASGIApp, *, guard: Guard, metrics: Metrics) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        try:
            self._guard.check(method, path, headers)
        except ServiceError as error:
            self._metrics.reject(REASONS[type(error)])
            await problem_response(path, error)(scope, receive, send)
            return
        if _is_preflight(method, headers):
            await _preflight()(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _foreign_host(value: bytes) -> Misdirected:
    return Misdirected(
        f"this server is not known as {value[:80].decode('latin-1')!r}: call it by IP address, as localhost, or by "
        f"a name in {env_name('allowed_hosts')}; add this one there if a proxy or DNS leads here by it"
    )


def _foreign_page(given: dict[bytes, bytes]) -> Forbidden:
    origin = given.get(b"origin")
    whose = "another origin" if origin is None else repr(origin[:80].decode("latin-1"))
    return Forbidden(
        f"a web page of {whose} sent this request, and pages of other origins may not: list the origin in "
        f"{env_name('cors_origins')} to allow it, and have a proxy pass Host on unchanged"
    )


def _is_preflight(method: str, headers: Headers) -> bool:
    """True of a browser's question whether a page may send what it is about to send."""
    return method == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in headers
    )


def _preflight() -> Response:
    """The methods and headers that a page of an allowed origin may send; the journal adds the origin."""
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST",
            # The star does not stand for Authorization (Fetch standard).
            "Access-Control-Allow-Headers": "*, Authorization",
            "Access-Control-Max-Age": "600",
        },
    )


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
