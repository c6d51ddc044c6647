"""API keys, checked before the route and the body."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from turbofno.service.errors import Unauthorized
from turbofno.service.http.access_log import HEALTH
from turbofno.service.http.call import Call
from turbofno.service.model_limits import limits_of
from turbofno.service.pipeline.admission import Caller
from turbofno.service.settings import env_name

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{16,256}")
_FORM = "NAME KEY [fields=N] [bytes=N]"


class Keys:
    """The keys of a file, stored as digests."""

    def __init__(self, path: Path, *, public: frozenset[str] = frozenset()) -> None:
        """Read a file of lines NAME KEY [fields=N] [bytes=N]; `#` starts a comment line. `public` paths need no key.

        The limits bound the fields, and the body and unsent answer bytes, of a key's concurrent requests.

        Raises:
            ValueError: the file cannot be read, or a malformed line, a repeated name or key, or no key at all. Names the line, never the key.
        """
        self._path = path
        self._public = HEALTH | public
        self.reload()

    def reload(self) -> None:
        """Read the file again; on an error, raise ValueError and keep the present keys."""
        self._callers = _read(self._path)

    def check(self, call: Call) -> None:
        """Set `call.caller`, unless the path is open. Raises Unauthorized."""
        if call.path in self._public:
            return
        given = call.headers.get(b"authorization")
        caller = None if given is None else self.caller(given)
        if caller is None:
            call.context.metrics.reject("unauthorized")
            raise Unauthorized(
                f"{'an API key is needed' if given is None else 'this API key is not known'}: send one that is in the "
                "server's key file as the header 'Authorization: Bearer KEY'",
                sent=given is not None,
            )
        call.caller = caller

    def caller(self, authorization: bytes) -> Caller | None:
        """The caller of the header `Authorization: Bearer KEY`, if known; compared in constant time."""
        scheme, _, key = authorization.partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found = None
        for digest, caller in self._callers.items():
            if hmac.compare_digest(digest, given):
                found = caller
        return found if scheme.lower() == b"bearer" else None


def _read(path: Path) -> dict[bytes, Caller]:
    callers: dict[bytes, Caller] = {}
    names: set[str] = set()
    try:
        # with the byte order mark that Windows' editors write; another encoding is an error of a line below
        text = path.read_text("utf-8-sig", "replace")
    except OSError as error:
        raise ValueError(
            f"{env_name('api_keys_file')}={path} cannot be read: {error.strerror}"
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            digest, caller = _parse(line)
            if caller.name in names or digest in callers:
                raise ValueError("the name or the key is repeated")
        except ValueError as error:
            raise ValueError(
                f"{env_name('api_keys_file')}={path}, line {number}: {error}"
            ) from None
        names.add(caller.name)
        callers[digest] = caller
    if not callers:
        raise ValueError(f"{env_name('api_keys_file')}={path} holds no key; expected lines {_FORM}")
    return callers


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
    limits = limits_of(rest, ("fields", "bytes"))
    if limits is None:
        raise ValueError(
            f"after the key only fields=N and bytes=N may follow, each once, N above 0; expected {_FORM}"
        )
    caller = Caller(name, limits.get("fields", 0), limits.get("bytes", 0))
    return hashlib.sha256(key.encode()).digest(), caller
