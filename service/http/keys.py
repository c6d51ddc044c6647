"""API keys: who may call, checked before a route or a body is looked at."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from service.context import RECORD_KEY
from service.errors import Unauthorized
from service.http.problems import problem_response
from service.pipeline.admission import Caller
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from starlette.types import ASGIApp, Receive, Scope, Send

    from service.context import RequestRecord
    from service.metrics import Metrics

HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
"""Open to everybody: load balancers and container platforms ask these, and send no keys."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{16,256}")
_LIMIT = re.compile(r"(fields|bytes)=([1-9][0-9]{0,17})")
_FORM = "NAME KEY [fields=N] [bytes=N]"


class Keys:
    """The keys of a file, kept as digests."""

    def __init__(self, callers: dict[bytes, Caller]) -> None:
        self._callers = callers

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read a file of lines NAME KEY [fields=N] [bytes=N]; `#` starts a comment line.

        The limits are the most fields, and body and unsent answer bytes, that requests with this key may have in
        work at once.

        Raises:
            ValueError: a line that is not of this form, a name or key that is given twice, no key at all. Names the
                line, never the key.
            OSError: the file cannot be read.
        """
        callers: dict[bytes, Caller] = {}
        names: set[str] = set()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                digest, caller = _parse(line)
                if caller.name in names or digest in callers:
                    raise ValueError("the name or the key was given before")
            except ValueError as error:
                raise ValueError(
                    f"{env_name('api_keys_file')}={path}, line {number}: {error}"
                ) from None
            names.add(caller.name)
            callers[digest] = caller
        if not callers:
            raise ValueError(
                f"{env_name('api_keys_file')}={path} holds no key; expected lines {_FORM}"
            )
        return cls(callers)

    def caller_of(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller | None:
        """Who sent these headers; None without exactly one known key."""
        given = [value for name, value in headers if name == b"authorization"]
        return self.caller(given[0]) if len(given) == 1 else None

    def caller(self, authorization: bytes) -> Caller | None:
        """Whose key the header `Authorization: Bearer KEY` carries; as slow for a key that is nearly right."""
        scheme, _, key = authorization.partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(digest, given):
                found = caller
        return found if scheme.lower() == b"bearer" else None


class KeyMiddleware:
    """Answers 401 without a known key, and notes in the request's record whose it is."""

    def __init__(
        self, app: ASGIApp, *, keys: Keys, metrics: Metrics, open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._open = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open:
            await self._app(scope, receive, send)
            return
        caller = self._keys.caller_of(scope["headers"])
        if caller is None:
            given = any(name == b"authorization" for name, _ in scope["headers"])
            self._metrics.reject("unauthorized")
            problem = ', error="invalid_token"' if given else ""
            refusal = problem_response(
                scope["path"],
                Unauthorized(
                    f"{'this API key is not known' if given else 'an API key is needed'}: send one that is in the "
                    "server's key file as the header 'Authorization: Bearer KEY'"
                ),
                headers={"WWW-Authenticate": f'Bearer realm="turbofno"{problem}'},
            )
            await refusal(scope, receive, send)
            return
        record: RequestRecord = scope[RECORD_KEY]
        record.caller = caller
        await self._app(scope, receive, send)


def _parse(line: str) -> tuple[bytes, Caller]:
    words = line.split()
    if len(words) < 2:
        raise ValueError(f"expected {_FORM}")
    name, key, *rest = words
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the name must be 1 to 64 letters, digits, '.', '_' or '-'; expected {_FORM}"
        )
    if not _KEY.fullmatch(key):
        raise ValueError(f"the key must be 16 to 256 printable ASCII characters; expected {_FORM}")
    limits = [_LIMIT.fullmatch(word) for word in rest]
    if None in limits:
        raise ValueError(
            f"after the key only fields=N and bytes=N may follow, N above 0; expected {_FORM}"
        )
    most = {match[1]: int(match[2]) for match in limits if match is not None}
    caller = Caller(name, max_fields=most.get("fields", 0), max_bytes=most.get("bytes", 0))
    return hashlib.sha256(key.encode()).digest(), caller
