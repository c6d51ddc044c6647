"""Request bodies: bounded in size and time, read once into one buffer, decompressed within the same bounds."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from service.context import context_of, record_of
from service.errors import BadRequest, PayloadTooLarge, RequestTimeout, UnsupportedMediaType
from service.http.offload import BINARY_BYTES, offload
from service.pipeline.engine import heap_buffer
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from fastapi import Request

    from service.context import AppContext
    from service.pipeline.admission import Room

    _Chunks = list[bytes | bytearray]

WHOLE_BODY = "turbofno.whole_body"
"""In a request's scope: all of its body, in pieces, where it had come before anybody asked for it."""

_SMALL_CHUNK = 4096
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15
"""zlib window arguments of the three formats."""


def header_values(request: Request, name: bytes) -> list[str]:
    """What a header says, each time it is given; `name` in lower case. Half the price of Starlette's."""
    return [value.decode("latin-1") for key, value in request.scope["headers"] if key == name]


def declared_size(request: Request) -> int | None:
    """Decoded body bytes as the headers state them; None if they cannot know (chunked, compressed).

    Raises:
        BadRequest: Content-Length is not a whole number.
        UnsupportedMediaType: Content-Encoding is none of gzip, deflate, identity.
    """
    return _content_length(request) if _coding(request) is None else None


async def read_body(
    request: Request,
    room: Room,
    *,
    limit: int,
    setting: str | None = "max_body_bytes",
    aligned_at: int | None = None,
) -> memoryview:
    """Read and decompress the whole body.

    Args:
        room: where its bytes are counted as they arrive.
        limit: most bytes, on the wire and decompressed.
        setting: name of the setting that `limit` comes from, if any, for the message.
        aligned_at: given for a body whose fields are used as they stand: it is put into the engine's memory, the
            byte at this offset on a 64-byte boundary. Fields of other bodies are copied there once they are decoded.

    Returns:
        A writable view of bytes.

    Raises:
        PayloadTooLarge, QueueFull, RequestTimeout, Unavailable, UnsupportedMediaType, BadRequest: as the messages
            say.
        ClientDisconnect: the client went away.
    """
    coding = _coding(request)
    context = context_of(request)
    whole: _Chunks | None = request.scope.get(WHOLE_BODY)
    chunks = whole
    if chunks is None:
        chunks = await _in_time(context, _read(request, room, coding, limit, setting))
    size = sum(map(len, chunks))
    if whole is not None:
        if size > limit:
            raise _too_large(request, f"the body has {size} bytes", limit, setting)
        room.hold(size)
    # Taken only now: what a client announces, and does not send, must not use up the engine's memory.
    if aligned_at is None or coding is not None:
        body = heap_buffer(size)
    else:
        body = context.engine.buffer(size, aligned_at=aligned_at)
    await offload(size > BINARY_BYTES, _join, chunks, body)
    record_of(request).body_bytes = len(body)
    if coding is None:
        return body
    # Always off the event loop: a few kilobytes can inflate to the whole limit.
    decoded = await offload(True, _inflate, body, coding, limit, aligned_at or 0)
    if decoded is None:
        raise _too_large(request, "the decompressed body is longer", limit, setting)
    room.hold(len(decoded))
    return decoded


async def _in_time(context: AppContext, reading: Coroutine[None, None, _Chunks]) -> _Chunks:
    seconds = context.settings.body_timeout_seconds
    try:
        async with asyncio.timeout(seconds) as patience:
            with context.admission.reading(patience):
                return await reading
    except TimeoutError:
        context.admission.refuse_if_ended()
        raise RequestTimeout(
            f"the body did not arrive within {seconds:g} s ({env_name('body_timeout_seconds')})"
        ) from None


def _coding(request: Request) -> str | None:
    given = header_values(request, b"content-encoding")
    coding = ", ".join(given).strip().lower() if given else ""
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip"):
        return "gzip"
    if coding == "deflate":
        return "deflate"
    raise UnsupportedMediaType(
        f"Content-Encoding {coding!r} cannot be read; send gzip, deflate or no Content-Encoding"
    )


def _content_length(request: Request) -> int | None:
    text = next(iter(header_values(request, b"content-length")), None)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(f"Content-Length must be a whole number of bytes, got {text!r}")
    return int(text)


def _too_large(request: Request, what: str, limit: int, setting: str | None) -> PayloadTooLarge:
    context_of(request).metrics.reject("body_too_large", record_of(request).model)
    remedy = (
        "send the fields as binary (Open Inference Protocol binary tensors, .npy or safetensors), "
        "which is also many times faster"
        if setting == "max_json_bytes"
        else "send fewer fields in a request"
    )
    if setting is None:
        return PayloadTooLarge(f"{what}, this route takes at most {limit}")
    return PayloadTooLarge(f"{what}, the limit is {limit} ({env_name(setting)}); {remedy}")


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def _read(
    request: Request, room: Room, coding: str | None, limit: int, setting: str | None
) -> _Chunks:
    declared = _content_length(request)
    if declared is not None and declared > limit:
        raise _too_large(request, f"the body has {declared} bytes", limit, setting)
    if coding is None and declared is not None:
        return await _read_declared(request, room, declared)
    return await _read_unknown(request, room, limit, setting)


async def _read_declared(request: Request, room: Room, size: int) -> _Chunks:
    chunks: _Chunks = []
    read = 0
    async for chunk in _chunks(request):
        read += len(chunk)
        if read > size:
            raise BadRequest(f"Content-Length says {size} bytes, but more came")
        room.hold(read)
        _keep(chunks, chunk)
    if read != size:
        raise BadRequest(f"Content-Length says {size} bytes, but {read} came")
    return chunks


async def _read_unknown(request: Request, room: Room, limit: int, setting: str | None) -> _Chunks:
    chunks: _Chunks = []
    size = 0
    async for chunk in _chunks(request):
        size += len(chunk)
        if size > limit:
            raise _too_large(request, "the body is longer than allowed", limit, setting)
        room.hold(size)
        _keep(chunks, chunk)
    return chunks


def _keep(chunks: _Chunks, chunk: bytes) -> None:
    """Add a chunk; small ones are put together, else a client could send millions of them, each an object."""
    if len(chunk) >= _SMALL_CHUNK:
        chunks.append(chunk)
    elif chunks and isinstance(chunks[-1], bytearray):
        chunks[-1] += chunk
    else:
        chunks.append(bytearray(chunk))


def _join(chunks: _Chunks, body: memoryview) -> None:
    start = 0
    for chunk in chunks:
        body[start : start + len(chunk)] = chunk
        start += len(chunk)
    chunks.clear()


def _inflate(data: memoryview, coding: str, limit: int, aligned_at: int) -> memoryview | None:
    """Decompress; None if the result would be longer than `limit`. Raises BadRequest if it is broken."""
    window = _GZIP
    if coding == "deflate":
        # HTTP's deflate is a zlib stream; some clients send the bare stream. The header tells them apart.
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
        raise BadRequest(f"the {coding} body ends too early: only {len(data)} bytes came")
    if stream.unused_data:
        # Concatenated gzip members are legal in files, but nothing sends them, and millions of empty ones
        # would cost far more time than bytes.
        raise BadRequest(f"{len(stream.unused_data)} bytes follow the end of the {coding} body")
    body = heap_buffer(len(decoded), aligned_at)
    body[:] = decoded
    return body
