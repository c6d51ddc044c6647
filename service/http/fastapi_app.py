"""The FastAPI application: API documentation, demo page and administration.

`CallMiddleware` serves the operations (see operations.py) without FastAPI; the OpenAPI document describes them too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware

from turbofno.service.http.openapi import SCHEMAS
from turbofno.service.http.operations import OPERATIONS

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_VALIDATION_SCHEMAS = ("HTTPValidationError", "ValidationError")


class FastAPIApp(FastAPI):
    """FastAPI without ServerErrorMiddleware, so that `CallMiddleware` is the outermost layer."""

    def build_middleware_stack(self) -> ASGIApp:
        inner: ASGIApp = ExceptionMiddleware(
            AsyncExitStackMiddleware(self.router), handlers=self.exception_handlers
        )
        for make, args, options in reversed(self.user_middleware):
            inner = make(inner, *args, **options)
        return inner

    def openapi(self) -> dict[str, Any]:
        """FastAPI's document with the operations added, and without validation status 422: the service sends 400."""
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            schemas |= SCHEMAS
            for name in _VALIDATION_SCHEMAS:
                schemas.pop(name, None)
            for path in document["paths"].values():
                for operation in path.values():
                    if _VALIDATION_SCHEMAS[0] in str(operation["responses"].get("422")):
                        del operation["responses"]["422"]
            operations = {
                path: {operation.method.lower(): described}
                for operation in OPERATIONS
                for path, described in operation.paths.items()
                if described
            }
            document["paths"] = operations | document["paths"]
        return super().openapi()
