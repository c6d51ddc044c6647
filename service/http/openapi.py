"""Parts that the OpenAPI descriptions of routes and operations share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path

from turbofno.service.http.problems import MEDIA_TYPE

ModelName = Annotated[str, Path(description="name of a model", examples=["burgers-1d"])]
ModelVersion = Annotated[str, Path(description="version of the model", examples=["1"])]

PROBLEM = {
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


def problem(description: str) -> dict[str, Any]:
    """The OpenAPI entry of an error that is answered as a problem document."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}
