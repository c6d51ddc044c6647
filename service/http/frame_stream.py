"""A rollout's frames as they are made: the two streamed forms, and the response that sends either (docs/rollouts.md)."""

from __future__ import annotations

import base64
import struct
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.errors import BlowUp, ServiceError
from service.http.inference import unless_disconnected
from service.http.offload import heavy_to_encode, offload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from service.pipeline.engine import Fields, Frame

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


class FrameStream(Response):
    """Sends `start`, then `frame` and `progress` as they come, then `end` or `failed`; a stream without was cut.

    What fails before anything was sent is raised, and answered like any error; but a blow-up is always told in the
    stream. When the client goes away the rollout is ended.
    """

    def __init__(
        self,
        request: Request,
        frames: AsyncGenerator[Frame],
        form: Form,
        start: Event,
        headers: Mapping[str, str],
        warnings_of: Callable[[Frame], tuple[str, ...]],
    ) -> None:
        """`warnings_of` gives the texts of the warnings that begin with a frame."""
        # The second header keeps proxies from holding frames back.
        unbuffered = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(media_type=form.media_type, headers={**headers, **unbuffered})
        del self.headers["content-length"]
        self._request = request
        self._frames = frames
        self._form = form
        self._warnings_of = warnings_of
        self._start: Event = {"event": "start", **start}
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        try:
            # What it holds counts as free from here on: the rollout is over then, however it ended.
            await unless_disconnected(self._request, self._send(send))
        except ClientDisconnect:
            if not self._started:
                raise

    async def _send(self, send: Send) -> None:
        step = self._start["start"]
        async with aclosing(self._frames) as frames:
            try:
                async for frame in frames:
                    step = frame.step
                    event = _event_of(frame, self._warnings_of(frame))
                    await self._event(send, event, frame.fields)
                last: Event = {"event": "end", "step": step}
            except ServiceError as error:
                if not (self._started or isinstance(error, BlowUp)):
                    raise
                last = _failure(error, step)
        await self._event(send, last)
        await send({"type": "http.response.body"})

    async def _event(self, send: Send, event: Event, fields: Fields | None = None) -> None:
        pieces: list[bytes | memoryview] = []
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pieces += self._form.write(self._start)
        heavy = fields is not None and heavy_to_encode(fields.size, as_json=False)
        pieces += await offload(heavy, self._form.write, event, fields)
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})


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
