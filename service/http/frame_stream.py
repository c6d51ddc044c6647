"""A rollout's frames as they are made: the two streamed forms, and the stream in either (docs/rollouts.md)."""

from __future__ import annotations

import base64
import struct
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from turbofno.service.errors import BlowUp, ServiceError
from turbofno.service.http.offload import heavy_to_encode, offload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from turbofno.service.engine.interface import Fields, Frame

    Event = dict[str, Any]

_PREFIX = struct.Struct("<II")


class Form(Protocol):
    """One form of a stream."""

    media_type: str

    def write(self, event: Event, fields: Fields | None = None) -> Sequence[bytes | memoryview]:
        """The bytes of one event, in pieces."""
        ...


class Records:
    """Length of the JSON and of the payload in bytes, as two little-endian uint32; the JSON; the payload, <f4."""

    media_type = "application/vnd.turbofno.frames"

    def write(self, event: Event, fields: Fields | None = None) -> Sequence[bytes | memoryview]:
        text = orjson.dumps(event)
        if fields is None:
            return [_PREFIX.pack(len(text), 0) + text]
        payload = np.ascontiguousarray(fields, "<f4").reshape(-1).view(np.uint8).data
        return [_PREFIX.pack(len(text), len(payload)) + text, payload]


class ServerSentEvents:
    """For browsers: `data` is the JSON, with the fields in base64 as its member `data`."""

    media_type = "text/event-stream"

    def write(self, event: Event, fields: Fields | None = None) -> Sequence[bytes | memoryview]:
        if fields is not None:
            data = base64.b64encode(np.ascontiguousarray(fields, "<f4").data).decode()
            event = {**event, "data": data}
        return [b"event: %b\ndata: %b\n\n" % (event["event"].encode(), orjson.dumps(event))]


FORMS: tuple[Form, ...] = (Records(), ServerSentEvents())


def form_asked_for(accept: str) -> Form | None:
    """The streamed form that Accept names, if any: a wildcard asks for none."""
    names = [item.partition(";")[0].strip().lower() for item in accept.split(",")]
    return next((form for form in FORMS if form.media_type in names), None)


async def stream(
    frames: AsyncGenerator[Frame],
    form: Form,
    about: Event,
    warnings_of: Callable[[Frame], tuple[str, ...]],
) -> AsyncGenerator[bytes | memoryview]:
    """The bytes of `start`, then of `frame` and `progress` as they come, then of `end` or `failed`; a stream without was cut.

    Closing it ends the rollout. `warnings_of` gives the texts of the warnings that begin with a frame.

    Raises:
        ServiceError: of what fails before the first frame; but a blow-up is always told in the stream.
    """
    start: Event | None = {"event": "start", **about}
    step = about["start"]
    async with aclosing(frames):
        try:
            async for frame in frames:
                step = frame.step
                event = _event_of(frame, warnings_of(frame))
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
            last = _failure(error, step)
    if start is not None:
        yield b"".join(form.write(start))
    yield b"".join(form.write(last))


def _event_of(frame: Frame, warnings: tuple[str, ...]) -> Event:
    kind = "progress" if frame.fields is None else "frame"
    event: Event = {"event": kind, "step": frame.step}
    if frame.trust:
        event["trust"] = frame.trust
    if warnings:
        event["warnings"] = warnings
    return event


def _failure(error: ServiceError, step: int) -> Event:
    """`step` is the last that is good; a blow-up names its own."""
    event: Event = {"event": "failed", "reason": error.slug, "step": step, "detail": error.message}
    if isinstance(error, BlowUp):
        event |= {"reason": error.reason, "step": error.step}
    return event
