"""Streams of a rollout's frames in two formats: length-prefixed binary records and server-sent events."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import orjson

from turbofno.service.codec.fields import bytes_of
from turbofno.service.engine.interface import Fields, Frame
from turbofno.service.errors import BlowUp, ServiceError
from turbofno.service.http.offload import heavy_to_encode, offload

Event = dict[str, Any]

_PREFIX = struct.Struct("<II")


def _record(event: Event, fields: Fields | None = None) -> Sequence[bytes | memoryview]:
    """Lengths of JSON and payload in bytes as two little-endian uint32; the JSON; the payload as <f4."""
    text = orjson.dumps(event)
    if fields is None:
        return [_PREFIX.pack(len(text), 0) + text]
    payload = bytes_of(fields)
    return [_PREFIX.pack(len(text), len(payload)) + text, payload]


def _server_sent_event(event: Event, fields: Fields | None = None) -> Sequence[bytes | memoryview]:
    """`data` is the JSON, whose member `data` holds the fields in base64."""
    if fields is not None:
        data = base64.b64encode(bytes_of(fields)).decode()
        event = {**event, "data": data}
    return [b"event: %b\ndata: %b\n\n" % (event["event"].encode(), orjson.dumps(event))]


class StreamFormat(NamedTuple):
    """A media type, and the function that encodes an event and its fields in pieces."""

    media_type: str
    write: Callable[..., Sequence[bytes | memoryview]]


RECORDS = StreamFormat("application/vnd.turbofno.frames", _record)
SERVER_SENT_EVENTS = StreamFormat("text/event-stream", _server_sent_event)
FORMATS = {one.media_type: one for one in (RECORDS, SERVER_SENT_EVENTS)}


async def stream(
    frames: AsyncGenerator[Frame],
    form: StreamFormat,
    about: Event,
    warnings_of: Callable[[Frame], tuple[str, ...]],
) -> AsyncGenerator[bytes | memoryview]:
    """Encode the events `start`, `frame` and `progress`, and last `end` or `failed`; a stream without either was cut off.

    Closing the generator ends the rollout. `warnings_of` returns the texts of the warnings that begin with a frame.

    Raises:
        ServiceError: the rollout failed before the first frame. A blow-up is an event of the stream even then.
    """
    start: Event | None = {"event": "start", **about}
    step = about["start"]
    async with aclosing(frames):
        try:
            async for frame in frames:
                step = frame.step
                event: Event = {
                    "event": "progress" if frame.fields is None else "frame",
                    "step": step,
                }
                if frame.trust:
                    event["trust"] = frame.trust
                if warnings := warnings_of(frame):
                    event["warnings"] = warnings
                if start is not None:
                    yield b"".join(form.write(start))
                    start = None
                heavy = frame.fields is not None and heavy_to_encode(
                    frame.fields.size, as_json=False
                )
                for piece in await offload(heavy, form.write, event, frame.fields):
                    yield piece
            last: Event = {"event": "end", "step": step}
        except ServiceError as error:
            if start is not None and not isinstance(error, BlowUp):
                raise
            # The last good step, except for a blow-up, which names its own.
            last = {"event": "failed", "reason": error.slug, "step": step, "detail": error.message}
            if isinstance(error, BlowUp):
                last |= {"reason": error.reason, "step": error.step}
    if start is not None:
        yield b"".join(form.write(start))
    yield b"".join(form.write(last))
