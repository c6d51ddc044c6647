"""Pages for browsers: `/`, the API documentation at `/docs`, the demo page at `/ui`; none loads a file from elsewhere."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, JSONResponse, RedirectResponse

from turbofno.service.context import context_of
from turbofno.service.errors import Forbidden, NotFound
from turbofno.service.settings import env_name
from turbofno.service.version import VERSION

_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
_FOLDER = Path(__file__).resolve().parent.parent / "demo" / "page"
_FILES = {path.name: path for path in _FOLDER.iterdir() if path.suffix in _TYPES}
PAGE_PATHS = frozenset({"/ui", "/ui/", *(f"/ui/{name}" for name in _FILES)})
"""Open without a key: the page holds no data, and a browser has no key when it asks for it."""
_DOCUMENTATION = Path(__file__).resolve().parent / "documentation"
_SWAGGER_UI = Path(str(files("fastapi_offline"))) / "static"
_DOCUMENTATION_FILES = {
    "start.js": _DOCUMENTATION / "start.js",
    "swagger-ui-bundle.js": _SWAGGER_UI / "swagger-ui-bundle.js",
    "swagger-ui.css": _SWAGGER_UI / "swagger-ui.css",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'{style}; img-src 'self'{images}; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    # Swagger UI has inline styles, and icons as data URLs.
    "Content-Security-Policy": _POLICY.format(style=" 'unsafe-inline'", images=" data:"),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_PAGE_HEADERS = _HEADERS | {
    "Content-Security-Policy": _POLICY.format(style="", images="")
    + "; require-trusted-types-for 'script'",
    "Cross-Origin-Opener-Policy": "same-origin",
}

router = APIRouter(include_in_schema=False)


# Redirects are relative, so that they work behind a proxy that adds a prefix.


@router.get("/")
async def root(request: Request) -> Response:
    """Redirect a browser to the demo page, or to the documentation if that is off; list the entry points as JSON for others."""
    page = context_of(request).settings.ui
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("ui/" if page else "docs", 307)
    links = {"models": "/v1/models", "documentation": "/docs", "openapi": "/openapi.json"}
    return JSONResponse(
        {"name": "turbofno", "version": VERSION, **links, **({"page": "/ui/"} if page else {})}
    )


@router.get("/docs")
async def documentation() -> Response:
    return FileResponse(_DOCUMENTATION / "index.html", headers=_HEADERS)


@router.get("/docs/{file}")
async def documentation_file(file: str) -> Response:
    path = _DOCUMENTATION_FILES.get(file)
    if path is None:
        raise NotFound(f"the documentation has no file {file[:80]!r}")
    return Response(_content(path), media_type=_TYPES[path.suffix], headers=_HEADERS)


@lru_cache
def _content(path: Path) -> bytes:
    """The content of a file, once in memory however many clients read it slowly."""
    return path.read_bytes()


@router.get("/ui")
async def page_redirect(request: Request) -> Response:
    _refuse_if_off(request)
    return RedirectResponse("ui/", 307)


@router.get("/ui/{file:path}")
async def page_file(request: Request, file: str) -> Response:
    _refuse_if_off(request)
    path = _FILES.get(file or "index.html")
    if path is None:
        raise NotFound(f"the page has no file {file[:80]!r}")
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=_PAGE_HEADERS)


def _refuse_if_off(request: Request) -> None:
    if not context_of(request).settings.ui:
        raise Forbidden(
            f"the web page is switched off: start the server with {env_name('ui')}=true to have it"
        )
