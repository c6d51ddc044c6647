"""The layer around the application: every request's record from its headers to its last byte, the last exception net."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from service.context import RECORD_KEY
from service.http.journal import shown_path
from service.http.problems import CLIENT_CLOSED_REQUEST, given_up, unexpected
from service.logs import request_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.http.journal import Journal

logger = logging.getLogger(__name__)

_WAIT_BYTES = 32 * 1024
"""Shorter bodies are within what the server buffers for any connection."""


class RequestMiddleware:
    """Pure ASGI, so that bodies pass through untouched and uncopied."""

    def __init__(self, app: ASGIApp, *, journal: Journal) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = scope[RECORD_KEY] = self._journal.open(scope["headers"])
        token = request_id.set(record.request_id)
        status = CLIENT_CLOSED_REQUEST
        response_started = False
        sent_bytes = 0

        async def send_noting(message: Message) -> None:
            nonlocal status, response_started, sent_bytes
            if message["type"] == "http.response.start":
                status, response_started = message["status"], True
                message["headers"] = [*message.get("headers", ()), *self._journal.headers(record)]
            elif message["type"] == "http.response.body":
                size = len(message.get("body", b""))
                sent_bytes += size
                if size > _WAIT_BYTES and not message.get("more_body", False):
                    # The server takes a body at once and waits before the next message, if need be,
                    # until the client has read enough of it.
                    await send({**message, "more_body": True})
                    message = {"type": "http.response.body"}
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception:
            status = 500
            logger.exception("unexpected failure of %s %s", scope["method"], shown_path(scope))
            if response_started:
                raise
            await unexpected(scope["path"])(scope, receive, send_noting)
        except asyncio.CancelledError:
            if response_started:
                raise
            # Answered, so not raised again: the server would put a traceback into the log for each.
            await given_up(scope["path"])(scope, receive, send_noting)
        finally:
            self._journal.close(scope, record, status, sent_bytes)
            request_id.reset(token)
