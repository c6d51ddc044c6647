"""Request bodies: read into one buffer and decompressed, within limits of size and time."""

from __future__ import annotations

import asyncio
import zlib

from turbofno.service.engine.interface import heap_buffer
from turbofno.service.errors import (
    BadRequest,
    PayloadTooLarge,
    RequestTimeout,
    Unsupported,
    UnsupportedMediaType,
)
from turbofno.service.http.call import Call
from turbofno.service.http.offload import BINARY_BYTES, offload
from turbofno.service.settings import env_name

_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15
"""zlib's `wbits` of the three formats."""


def declared_size(call: Call) -> int | None:
    """Size of the decoded body by the headers; None if they do not give it (chunked, compressed).

    Raises:
        BadRequest: Content-Length is not a whole number.
        UnsupportedMediaType: Content-Encoding is none of gzip, deflate, identity.
        Unsupported: Transfer-Encoding is not chunked alone.
    """
    return _content_length(call) if _coding(call) is None else None


async def read_body(call: Call, *, limit: int, setting: str | None) -> memoryview:
    """Read and decompress the whole body; into the engine's memory, with the byte at `call.aligned_at` on a 64-byte boundary,
    if its fields are used without a copy.

    The request holds the bytes as they arrive.

    Args:
        limit: largest size in bytes, on the wire and decompressed.
        setting: name of the setting that `limit` comes from, if any, for the message.

    Returns:
        A view of bytes.

    Raises:
        PayloadTooLarge, QueueFull, RequestTimeout, Unavailable, BadRequest, ClientLeft; and as `declared_size`.
    """
    # With a declared size there is none.
    coding = None if call.declared_bytes is not None else _coding(call)
    admitted = call.admitted
    if not call.complete:
        admitted.leave_slot()
        await _receive(call, coding, limit, setting)
    else:
        if call.received > limit:
            raise _too_large(call, f"the body has {call.received} bytes", limit, setting)
        admitted.hold(call.received)
    size = call.body_bytes = call.received
    buffer, aligned_at = call.place, call.aligned_at
    if buffer is None and aligned_at is not None and coding is None:
        # Allocated after the body has arrived: an announced body that never comes must not occupy the engine's memory.
        buffer = call.context.engine.buffer(size, aligned_at=aligned_at)
    if buffer is None and len(call.pieces) == 1:
        whole = memoryview(call.pieces[0])
    else:
        heavy = call.place is None and size > BINARY_BYTES
        whole = await offload(heavy, _join, call.pieces, buffer)
    call.pieces.clear()
    call.place = None
    if coding is None:
        return whole
    # Always off the event loop: a few kilobytes can inflate to the whole limit.
    decoded = await offload(True, _inflate, whole, coding, limit, aligned_at or 0)
    if decoded is None:
        raise _too_large(call, "the decompressed body is longer", limit, setting)
    admitted.hold(len(decoded))
    return decoded


async def _receive(call: Call, coding: str | None, limit: int, setting: str | None) -> None:
    context, admitted = call.context, call.admitted
    seconds = context.settings.body_timeout_seconds
    try:
        async with asyncio.timeout(seconds) as timeout:
            with context.admission.reading(timeout):
                declared = _content_length(call)
                if declared is not None and declared > limit:
                    raise _too_large(call, f"the body has {declared} bytes", limit, setting)
                expected = declared if coding is None else None
                if call.received:
                    admitted.hold(call.received)
                while not call.complete:
                    await call.more()
                    if expected is not None and call.received > expected:
                        raise BadRequest(f"Content-Length says {expected} bytes, but more arrived")
                    if call.received > limit:
                        raise _too_large(call, "the body is longer than allowed", limit, setting)
                    admitted.hold(call.received)
    except TimeoutError:
        context.admission.refuse_if_ended()
        context.metrics.reject("body_timeout", call.model)
        raise RequestTimeout(
            f"the body did not arrive within {seconds:g} s ({env_name('body_timeout_seconds')})"
        ) from None
    if expected is not None and call.received != expected:
        raise BadRequest(f"Content-Length says {expected} bytes, but {call.received} arrived")


def _coding(call: Call) -> str | None:
    transfer = call.headers.get(b"transfer-encoding")
    if transfer is not None and transfer.strip().lower() != b"chunked":
        # The parser removes the chunks, and would pass the rest on as it is.
        raise Unsupported(
            f"Transfer-Encoding {transfer[:80].decode('latin-1')!r} is not supported, only chunked by itself; name a "
            "compression in Content-Encoding"
        )
    given = call.headers.get(b"content-encoding")
    if given is None:
        return None
    coding = given.decode("latin-1").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip"):
        return "gzip"
    if coding == "deflate":
        return "deflate"
    raise UnsupportedMediaType(
        f"Content-Encoding {coding!r} cannot be read; send gzip, deflate or no Content-Encoding"
    )


def _content_length(call: Call) -> int | None:
    text = call.headers.get(b"content-length")
    if text is None:
        return None
    if not text.isdigit():
        raise BadRequest(
            f"Content-Length must be a whole number of bytes, got {text.decode('latin-1')!r}"
        )
    return int(text)


def _too_large(call: Call, what: str, limit: int, setting: str | None) -> PayloadTooLarge:
    call.context.metrics.reject("body_too_large", call.model)
    remedy = (
        "send the fields as binary (Open Inference Protocol binary tensors, .npy or safetensors), "
        "which is also many times faster"
        if setting == "max_json_bytes"
        else "send fewer fields in a request, or fields on a coarser grid"
    )
    if setting is None:
        return PayloadTooLarge(f"{what}, this route takes at most {limit}")
    return PayloadTooLarge(f"{what}, the limit is {limit} ({env_name(setting)}); {remedy}")


def _join(pieces: list[bytes | bytearray | memoryview], buffer: memoryview | None) -> memoryview:
    """The body, in `buffer` if there is one."""
    if buffer is None:
        return memoryview(b"".join(pieces))
    start = 0
    for piece in pieces:
        buffer[start : start + len(piece)] = piece
        start += len(piece)
    return buffer


def _inflate(data: memoryview, coding: str, limit: int, aligned_at: int) -> memoryview | None:
    """Decompress; None if the result exceeds `limit`. Raises BadRequest if the data is damaged."""
    window = _GZIP
    if coding == "deflate":
        # HTTP's deflate is a zlib stream, but some clients send raw deflate: check for the zlib header.
        zlib_header = len(data) >= 2 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
        window = _ZLIB if zlib_header else _RAW_DEFLATE
    stream = zlib.decompressobj(window)
    try:
        decoded = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise BadRequest(
            f"Content-Encoding says {coding}, but the body cannot be decompressed: {error}"
        ) from None
    if len(decoded) > limit:
        return None
    if not stream.eof:
        raise BadRequest(f"the {coding} body ends too early: only {len(data)} bytes arrived")
    if stream.unused_data:
        # Concatenated gzip members are refused: millions of empty ones take long to decompress.
        raise BadRequest(f"{len(stream.unused_data)} bytes follow the end of the {coding} body")
    body = heap_buffer(len(decoded), aligned_at)
    body[:] = decoded
    return body
