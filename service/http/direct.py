"""Predictions past ASGI: the same handlers, the same answers, without the layers that cost more than all else in a small one.

Takes those that use no parameter which FastAPI checks. Reading, cancelling, closing are as for any other request, because
the exchange of request and response is uvicorn's own class.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.context import CONTEXT_KEY, RECORD_KEY
from service.errors import ServiceError
from service.http import oip, predict
from service.http.body import WHOLE_BODY
from service.http.head import head_of
from service.http.inference import CANCELLED
from service.http.journal import shown_path
from service.http.problems import CLIENT_CLOSED_REQUEST, given_up, problem_response, unexpected
from service.logs import request_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import Receive, Scope
    from uvicorn._types import ASGI3Application, ASGIReceiveEvent

    from service.context import AppContext, RequestRecord
    from service.http.arrival import Arrival, Headers

    Handler = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)

_SHAPE = re.compile(rb"(?:shape=([0-9,]+))?")
_CLOSE = (b"connection", b"close")


def handler_of(arrival: Arrival, headers: Headers) -> Handler | None:
    """What answers the request; None: it is for the application's routes."""
    if arrival.protocol == "predict":
        if arrival.query or any(name == b"x-deadline-ms" for name, _ in headers):
            return None
        return partial(predict.predict, name=arrival.model, version=arrival.version)
    if arrival.protocol == "oip" and (shape := _SHAPE.fullmatch(arrival.query)):
        raw = shape[1].decode() if shape[1] else None
        return partial(oip.infer, model=arrival.model, version=arrival.version, raw_shape=raw)
    return None


class DirectCycle(RequestResponseCycle):
    """One prediction, from its headers to its last byte: uvicorn's cycle with a handler in the application's place."""

    def __init__(
        self, handler: Handler, arrival: Arrival, context: AppContext, **uvicorns: Any
    ) -> None:
        super().__init__(**uvicorns)
        self._handler = handler
        self._arrival = arrival
        self._context = context
        self._journal = context.journal
        self._pieces: list[bytes] = []
        """Of the body: what has come and was not received yet."""
        self._held = 0
        """Their bytes: a read can bring tens of thousands of pieces, so they are not added up for each."""
        self._received = False
        self._answering: asyncio.Task[None] | None = None

    def take(self, piece: bytes) -> None:
        """Keep what has come of the body, unless it was answered without."""
        if self.response_complete:
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.message_event.set()

    def end_body(self) -> None:
        """All of the body has come."""
        self.more_body = False
        # Of a connection that is not read nobody hears that the client has left.
        self.flow.resume_reading()
        if not self._received:
            cast("dict[str, Any]", self.scope)[WHOLE_BODY] = self._pieces
        self.message_event.set()

    def abandon(self) -> None:
        """The client has left: nobody wants the answer any more."""
        if self._answering is not None:
            self._answering.cancel()

    async def receive(self) -> ASGIReceiveEvent:
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self.flow.resume_reading()
        await self.message_event.wait()
        self.message_event.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self._received = True
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def run_asgi(self, app: ASGI3Application) -> None:
        """Answer, and be done with the request; under the name by which uvicorn starts it."""
        del app
        scope = cast("Scope", self.scope)
        scope[CONTEXT_KEY], scope[CANCELLED] = self._context, True
        record = scope[RECORD_KEY] = self._journal.open(scope["headers"])
        record.caller = self._arrival.caller
        token = request_id.set(record.request_id)
        status, size = CLIENT_CLOSED_REQUEST, 0
        try:
            response = None if self.disconnected else await self._response(scope)
            if response is not None:
                status, size = response.status_code, len(response.body)
                await self._send(response, record)
        except BaseException:
            # As uvicorn has it. Mostly the end of the process, while the client reads its answer.
            logger.exception("POST %s was cut short", shown_path(scope))
            if self.response_started:
                self.transport.close()
            else:
                status, size = 500, 0
                await self.send_500_response()
        finally:
            self._journal.close(scope, record, status, size)
            request_id.reset(token)
            # A connection keeps this until its next request: not what of the body nobody wanted.
            self._pieces.clear()
            # As uvicorn does: else this and the connection would refer to each other.
            self.on_response = _nothing

    async def _response(self, scope: Scope) -> Response | None:
        """What to send; None: nobody is there to read it."""
        self._answering = asyncio.current_task()
        try:
            return await self._handler(Request(scope, cast("Receive", self.receive)))
        except asyncio.CancelledError:
            return None if self.disconnected else given_up(scope["path"])
        except ServiceError as error:
            return problem_response(scope["path"], error)
        except ClientDisconnect:
            return None
        except Exception:
            logger.exception("unexpected failure of POST %s", shown_path(scope))
            return unexpected(scope["path"])
        finally:
            self._answering = None

    async def _send(self, response: Response, record: RequestRecord) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        closing = () if self.keep_alive else (_CLOSE,)
        own = self._journal.headers(record)
        head = head_of(
            response.status_code, (*self.default_headers, *response.raw_headers, *own, *closing)
        )
        self.response_started = True
        self.transport.writelines((head, response.body))
        if self.flow.write_paused:
            # What the answer holds is counted until the client has read enough of it.
            await self.flow.drain()
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


def _nothing() -> None:
    """In place of a callback whose time is over."""
