"""The web page at /ui: static files, sent so that nothing but them is loaded or run."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, RedirectResponse

from turbofno.service.context import context_of
from turbofno.service.errors import Forbidden, NotFound
from turbofno.service.settings import env_name

FOLDER = Path(__file__).resolve().parent.parent / "demo" / "page"
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
FILES = {path.name: path for path in FOLDER.iterdir() if path.suffix in _TYPES}
PAGE_PATHS = frozenset({"/ui", "/ui/", *(f"/ui/{name}" for name in FILES)})
"""Open to everybody: the page holds nothing, and a browser that asks for it has no key yet."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

page = APIRouter(include_in_schema=False)


@page.get("/ui")
async def to_the_page(request: Request) -> Response:
    _refuse_if_off(request)
    # Relative, so that it also leads there behind a proxy that puts a prefix before it.
    return RedirectResponse("ui/", 307)


@page.get("/ui/{file:path}")
async def page_file(request: Request, file: str) -> Response:
    _refuse_if_off(request)
    path = FILES.get(file or "index.html")
    if path is None:
        raise NotFound(f"the page has no file {file[:80]!r}")
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=_HEADERS)


def _refuse_if_off(request: Request) -> None:
    if not context_of(request).settings.ui:
        raise Forbidden(
            f"the web page is switched off: start the server with {env_name('ui')}=true to have it"
        )
