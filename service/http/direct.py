"""Predictions past FastAPI's routing, which costs more than all else in a small one: same handlers, same answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request

from service.errors import ServiceError
from service.http import oip, predict
from service.http.problems import disconnected, problem_response

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

_PREDICT = re.compile(r"/v1/models/([^/]+):predict")
_INFER = re.compile(r"/v2/models/([^/]+)/infer")
_SHAPE = re.compile(rb"(?:shape=([0-9,]+))?")


class DirectPredictions:
    """Takes predictions with the newest version that use no parameter which FastAPI checks; passes all else on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _handler(scope, receive) if scope["type"] == "http" else None
        if answer is None:
            await self._app(scope, receive, send)
            return
        try:
            response = await answer
        except ServiceError as error:
            response = problem_response(scope["path"], error)
        except ClientDisconnect:
            response = disconnected()
        await response(scope, receive, send)


def _handler(scope: Scope, receive: Receive) -> Awaitable[Response] | None:
    if scope["method"] != "POST" or scope.get("root_path"):
        return None
    path: str = scope["path"]
    if (
        (match := _PREDICT.fullmatch(path))
        and not scope["query_string"]
        and all(name != b"x-deadline-ms" for name, _ in scope["headers"])
    ):
        return predict.predict(Request(scope, receive), match[1])
    if (match := _INFER.fullmatch(path)) and (shape := _SHAPE.fullmatch(scope["query_string"])):
        raw = shape[1].decode() if shape[1] else None
        return oip.infer(Request(scope, receive), match[1], raw_shape=raw)
    return None
