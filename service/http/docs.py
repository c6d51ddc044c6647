"""The ways in: `/` leads a browser to the page and tells programs what there is; `/docs` needs nothing from elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse

from turbofno.service.context import context_of
from turbofno.service.errors import NotFound
from turbofno.service.version import VERSION

_HTML = """<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>turbofno: the API</title>
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
  <div id="swagger-ui"></div>
  <script src="docs/swagger-ui-bundle.js"></script>
  <script src="docs/start.js"></script>
</body>
</html>
"""
# Without a validator it does not send the document to swagger.io.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
});
"""
_TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
_HEADERS = {
    # Swagger UI styles its elements one by one, and has its icons as data.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

docs = APIRouter(include_in_schema=False)


@docs.get("/")
async def root(request: Request) -> Response:
    """A browser is sent to the page, or to the documentation where the page is off; others get the ways in as JSON."""
    page = context_of(request).settings.ui
    # Relative, so that they also lead there behind a proxy that puts a prefix before them.
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("ui/" if page else "docs", 307)
    ways = {"models": "/v1/models", "documentation": "/docs", "openapi": "/openapi.json"}
    return JSONResponse(
        {"name": "turbofno", "version": VERSION, **ways, **({"page": "/ui/"} if page else {})}
    )


@docs.get("/docs")
async def documentation() -> Response:
    """Every route, to read and to try."""
    return HTMLResponse(_HTML, headers=_HEADERS)


@docs.get("/docs/{file}")
async def documentation_file(file: str) -> Response:
    """A script or style sheet of the documentation. Raises NotFound."""
    if file == "start.js":
        return Response(_START, media_type="text/javascript", headers=_HEADERS)
    if file not in _TYPES:
        raise NotFound(f"the documentation has no file {file[:80]!r}")
    return FileResponse(_swagger_ui() / file, media_type=_TYPES[file], headers=_HEADERS)


def _swagger_ui() -> Path:
    """The folder of Swagger UI's files, which the package fastapi-offline brings along."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "static"
