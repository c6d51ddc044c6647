"""Pages for browsers: `/`, the API documentation at `/docs`, the demo page at `/ui`; none loads a file from elsewhere."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from turbofno.service.errors import Forbidden, NotFound
from turbofno.service.http.call import Call, Operation, Reply, encoded
from turbofno.service.http.route import json_reply, route
from turbofno.service.settings import env_name
from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOLDER = Path(__file__).resolve().parent.parent / "demo" / "page"
_FILES = {path.name: path for path in _FOLDER.iterdir() if path.suffix in _TYPES}
PAGE_PATHS = frozenset({"/ui", "/ui/", *(f"/ui/{name}" for name in _FILES)})
"""Open without a key: the page holds no data, and a browser has no key when it asks for it."""
_DOCUMENTATION = Path(__file__).resolve().parent / "documentation"
_SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
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

OPERATIONS: list[Operation] = []
_page = partial(route, OPERATIONS, "GET")


# Redirects are relative, so that they work behind a proxy that adds a prefix.


@_page("/")
async def root(call: Call) -> Reply:
    """Redirect a browser to the demo page, or to the documentation if that is off; list the entry points as JSON for others."""
    page = call.context.settings.ui
    if "text/html" in (call.header(b"accept") or ""):
        return _redirect("ui/" if page else "docs")
    links = {"models": "/v1/models", "documentation": "/docs", "openapi": "/openapi.json"}
    return json_reply(
        {"name": "turbofno", "version": VERSION, **links, **({"page": "/ui/"} if page else {})}
    )


@_page("/docs", "/docs/{file}")
async def documentation(call: Call) -> Reply:
    file = call.path[len("/docs/") :] or "index.html"
    if file in ("index.html", "start.js"):
        return _file(_DOCUMENTATION / file, _HEADERS)
    if file in _SWAGGER_FILES:
        return _file(_swagger_ui() / file, _HEADERS)
    raise NotFound(f"the documentation has no file {file[:80]!r}")


def _swagger_ui() -> Path:
    """The folder of Swagger UI's files in the package fastapi-offline."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"


@_page("/ui", "/ui/", "/ui/{file}")
async def page(call: Call) -> Reply:
    if not call.context.settings.ui:
        raise Forbidden(
            f"the web page is switched off: start the server with {env_name('ui')}=true to have it"
        )
    if call.path == "/ui":
        return _redirect("ui/")
    file = call.path[len("/ui/") :] or "index.html"
    if file not in _FILES:
        raise NotFound(f"the page has no file {file[:80]!r}")
    return _file(_FILES[file], _PAGE_HEADERS)


def _redirect(to: str) -> Reply:
    return Reply(307, encoded({"Location": to}))


def _file(path: Path, headers: Mapping[str, str]) -> Reply:
    return Reply(200, encoded({"Content-Type": _TYPES[path.suffix], **headers}), (_read(path),))


# The files of the service, few and small; its users' are never cached.
_read = cache(Path.read_bytes)
