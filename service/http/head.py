"""A response's status line and headers as they go on the wire, for what is answered below ASGI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from collections.abc import Iterable


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """All bytes before the body. Nothing is checked: no value may hold what a client chose freely."""
    lines = [STATUS_LINE[status]]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
