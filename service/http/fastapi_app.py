"""FastAPI's routes (documentation, page, models), as one operation of the table, and the OpenAPI document of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.types import Message

from turbofno.service.errors import BadRequest
from turbofno.service.http import admin, pages
from turbofno.service.http.call import Call, Reply
from turbofno.service.http.openapi import SCHEMAS
from turbofno.service.http.operations import documented
from turbofno.service.http.problems import no_route, not_allowed
from turbofno.service.version import VERSION

_NOT_PASSED_ON = {b"content-length", b"range", b"accept-ranges"}
_VALIDATION_SCHEMAS = ("HTTPValidationError", "ValidationError")
_KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "an API key, where the server asks for one",
}


class FastAPIApp(FastAPI):
    """An application whose routes are served by `answer`, in whatever way their requests came."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            title="turbofno",
            version=VERSION,
            description="Inference for trained Fourier neural operators.",
            redirect_slashes=False,
            # FastAPI's documentation pages load files from a CDN.
            docs_url=None,
            redoc_url=None,
            generate_unique_id_function=lambda route: route.name,
            exception_handlers={RequestValidationError: _refuse, 404: _refuse, 405: _refuse},
            # The service's own spans and metrics cover all requests.
            telemetry={
                "tracing": False,
                "metrics": False,
                "logs": False,
                "operation_spans": False,
                "auto_configure": False,
            },
            **options,
        )
        for router in (admin.router, pages.router):
            self.include_router(router)
        self._routes = ExceptionMiddleware(
            AsyncExitStackMiddleware(self.router), handlers=self.exception_handlers
        )

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with API keys and the table's operations, and without validation status 422: the service sends 400."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            for name in _VALIDATION_SCHEMAS:
                schemas.pop(name, None)
            for schema in schemas.values():
                _describe_answer(schema)
            schemas |= SCHEMAS
            document["components"]["securitySchemes"] = {"key": _KEY}
            # Not all servers ask for one.
            document["security"] = [{}, {"key": []}]
            for path in document["paths"].values():
                for operation in path.values():
                    if _VALIDATION_SCHEMAS[0] in str(operation["responses"].get("422")):
                        del operation["responses"]["422"]
            document["paths"] = documented() | document["paths"]
        return super().openapi()

    async def answer(self, call: Call) -> Reply:
        """Serve a request that no other operation serves. Raises ServiceError."""
        sent: list[Message] = []

        async def receive() -> Message:
            raise RuntimeError("FastAPI's routes read no body")

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "scheme": "http", "root_path": call.root_path, "app": self,
            # Files are sent without waiting for the client to leave.
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            # FastAPI's GET routes do not serve HEAD; the transports omit the body.
            "method": "GET" if call.method == "HEAD" else call.method,
            "path": call.root_path + call.path, "raw_path": call.raw_path, "query_string": call.query,
            "headers": [one for one in call.headers.items() if one[0] not in _NOT_PASSED_ON],
        }  # fmt: skip
        await self._routes(scope, receive, send)
        start, *pieces = sent
        # The transports add the length, and know no ranges.
        headers = [b": ".join(one) for one in start["headers"] if one[0] not in _NOT_PASSED_ON]
        return Reply(start["status"], headers, [one.get("body", b"") for one in pieces])


def _describe_answer(schema: dict[str, Any]) -> None:
    """Change the schema of a configuration, which may lack members but has no unknown ones, to that of an answer, which has all
    members, and may have more in a later version.
    """
    schema.pop("additionalProperties", None)
    schema["required"] = list(schema["properties"])
    for member in schema["properties"].values():
        member.pop("default", None)


async def _refuse(request: Request, raised: Exception) -> NoReturn:
    """Raise the service's error for one of FastAPI's."""
    path = request.scope["path"].removeprefix(request.scope["root_path"])
    # It would close a cycle with FastAPI's frames.
    raised.__traceback__ = None
    match raised:
        case RequestValidationError():
            raise BadRequest("; ".join(map(_describe, raised.errors()))) from None
        case HTTPException(status_code=404):
            raise no_route(path) from None
        case _:
            # All of FastAPI's routes are GET.
            raise not_allowed(request.method, path, ["GET"]) from None


def _describe(error: Mapping[str, Any]) -> str:
    """The text of an error of a parameter in the path: the routes have no others, and none of these can be missing."""
    where, name = error["loc"]
    return f"{where} parameter {name!r}: {error['msg']}, got {error['input'][:80]!r}"
