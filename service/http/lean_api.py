"""FastAPI without the layers that it puts around an application's own: each request would pay for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware

from service.http.openapi import DescribedAPI

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class LeanAPI(DescribedAPI):
    """For an application that is not traced, whose own outermost layer answers what nobody foresaw (RequestMiddleware)
    and which bounds bodies where it reads them.
    """

    def build_middleware_stack(self) -> ASGIApp:
        inner: ASGIApp = ExceptionMiddleware(
            AsyncExitStackMiddleware(self.router),
            handlers=self.exception_handlers,
        )
        for make, args, options in reversed(self.user_middleware):
            inner = make(inner, *args, **options)
        return inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.middleware_stack is None:
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)
