"""What the routes' OpenAPI descriptions share, and FastAPI's own document made true."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path

from service.http.problems import MEDIA_TYPE

ModelName = Annotated[str, Path(description="name of a model", examples=["burgers-1d"])]
ModelVersion = Annotated[str, Path(description="version of the model", examples=["1"])]

_PROBLEM = {
    "title": "Problem",
    "description": "What was wrong, what was expected, how to mend it (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "request_id": {"type": "string"},
    },
}
_NEVER = ("HTTPValidationError", "ValidationError")


def problem(description: str) -> dict[str, Any]:
    """How a route declares an error that it answers as a problem document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


class DescribedAPI(FastAPI):
    """FastAPI without the 422 that it adds to every route with parameters: wrong parameters are 400 here."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            schemas = document["components"]["schemas"]
            schemas["Problem"] = _PROBLEM
            for name in _NEVER:
                schemas.pop(name, None)
            for path in document["paths"].values():
                for operation in path.values():
                    if _NEVER[0] in str(operation["responses"].get("422")):
                        del operation["responses"]["422"]
        return super().openapi()
