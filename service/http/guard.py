"""Protection against cross-site requests and DNS rebinding, by the headers Host, Origin, Sec-Fetch-Site and Content-Type.

A browser inside a network can reach servers that trust the network. Requests that no browser sends pass.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from functools import lru_cache

from turbofno.service.errors import (
    BadRequest,
    Forbidden,
    Misdirected,
    ServiceError,
    UnsupportedMediaType,
)
from turbofno.service.http.call import Call, Reply, encoded
from turbofno.service.settings import Settings, env_name, is_loopback

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SAME_SITE = frozenset({b"same-origin", b"none"})
"""Sec-Fetch-Site of requests from the server's own page and of typed addresses."""
_FORM_TYPES = frozenset(
    {b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data"}
)
"""Content types that a page may send to any origin without a preflight (Fetch standard: "CORS-safelisted")."""
_HOST = re.compile(r"(\[[0-9a-f:.]+(?:%[^\]]*)?\]|[^:\[\]]*)(?::[0-9]*)?")
_PRIVATE_SUFFIXES = (".svc", ".svc.cluster.local", ".internal", ".local")
"""Suffixes that cannot be registered, so no attacker's page can have such a name."""
_DEFAULT_PORTS = {"http": "80", "https": "443"}
REASONS: dict[type[ServiceError], str] = {
    BadRequest: "host",
    Misdirected: "host",
    Forbidden: "origin",
    UnsupportedMediaType: "form_type",
}
"""The metric's label of each refusal."""
_CACHED_HOSTS = 256
"""Number of Host headers whose result is cached."""
_LONGEST_HOST = 512
"""Bytes of a Host header: a name has at most 253 (RFC 1035). The time to check one grows with the square of its length."""


class Guard:
    """The checks of one application, on the headers alone."""

    def __init__(self, settings: Settings) -> None:
        self._names = frozenset({"localhost", "", settings.host.lower(), *settings.allowed_hosts})
        if not is_loopback(settings.host):
            self._names |= {socket.gethostname().lower()}
        self._loopback = is_loopback(settings.host)
        self._origins = frozenset(origin.encode() for origin in settings.cors_origins)
        self._serves = lru_cache(_CACHED_HOSTS)(self._is_served)

    def check(self, call: Call) -> None:
        """Check a request.

        Raises:
            BadRequest: there is no Host.
            Misdirected: Host is none of the server's names (DNS rebinding).
            Forbidden: a web page of another origin sent it, and it is no read or is a preflight.
            UnsupportedMediaType: an Open Inference Protocol body with a content type that forms can send.
        """
        try:
            if b"host" not in call.headers:
                raise BadRequest(
                    "the request has no Host header, which HTTP/1.1 requires: send the host and port that are called, "
                    "such as 'Host: localhost:8080'"
                )
            self.check_host(call.headers[b"host"])
            if call.method not in _SAFE_METHODS or is_preflight(call):
                self._check_page(call)
        except ServiceError as error:
            call.context.metrics.reject(REASONS[type(error)])
            raise

    def check_host(self, host: bytes) -> None:
        """Raise Misdirected if the Host header is none of the server's names."""
        if len(host) > _LONGEST_HOST or not self._serves(host):
            raise Misdirected(
                f"this server is not known as {host[:80].decode('latin-1')!r}: call it by IP address, as localhost, or "
                f"by a name in {env_name('allowed_hosts')}; add this one there if a proxy or DNS leads here by it"
            )

    def _check_page(self, call: Call) -> None:
        given = call.headers
        if not self._is_same_origin(given):
            origin = given.get(b"origin")
            whose = "another origin" if origin is None else repr(origin[:80].decode("latin-1"))
            raise Forbidden(
                f"a web page of {whose} sent this request, and pages of other origins may not: list the origin in "
                f"{env_name('cors_origins')} to allow it, and have a proxy pass Host on unchanged"
            )
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
        # A comma means two Host headers: a proxy may have used the other one.
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

    def _is_same_origin(self, given: Mapping[bytes, bytes]) -> bool:
        """True if from no browser, from the server's own page, or from an origin in the settings."""
        origin = given.get(b"origin")
        if origin is not None and origin.lower() in self._origins:
            return True
        site = given.get(b"sec-fetch-site")
        if site is not None:
            return site in _SAME_SITE
        return origin is None or _same_host(origin, given[b"host"])


def is_preflight(call: Call) -> bool:
    """True if a browser asks whether a page may send a request (CORS)."""
    return call.method == "OPTIONS" and b"access-control-request-method" in call.headers


def preflight() -> Reply:
    """The reply to a preflight: allowed methods and headers. `AccessLog.headers` adds the origin."""
    headers = {
        "Access-Control-Allow-Methods": "GET, POST",
        # "*" does not cover Authorization (Fetch standard).
        "Access-Control-Allow-Headers": "*, Authorization",
        "Access-Control-Max-Age": "600",
    }
    return Reply(204, encoded(headers))


def _is_address(name: str) -> bool:
    """True if an IP address: DNS rebinding needs a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_host(origin: bytes, host: bytes) -> bool:
    """True if `origin` and `host` are the same host and port. The scheme is ignored: a proxy may change it."""
    scheme, _, address = origin.decode("latin-1").lower().partition("://")
    default = ":" + _DEFAULT_PORTS.get(scheme, "")
    called = host.decode("latin-1").strip().lower()
    return bool(address) and address.removesuffix(default) == called.removesuffix(default)
