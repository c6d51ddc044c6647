"""Operations without fields: functions that return a document, or a whole reply, as entries of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
from pydantic import BaseModel

from turbofno.service.http.call import Operation, Reply
from turbofno.service.http.openapi import described, schema_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from turbofno.service.http.call import Call

    Route = Callable[[Call], Awaitable[object]]


def route(
    operations: list[Operation],
    method: str,
    *paths: str,
    summaries: tuple[str, ...] = (),
    errors: Mapping[int, dict[str, Any]] | None = None,
    responses: Mapping[int, dict[str, Any]] | None = None,
    **about: Any,
) -> Callable[[Route], Route]:
    """Add the decorated function to `operations`: it returns a JSON document, None for an empty body, or a `Reply`.

    Its name, docstring and type, `errors`, other `responses` and the arguments of `described` are its description in
    OpenAPI, which omits it without `summaries`.
    """

    def add(function: Route) -> Route:
        async def run(call: Call) -> Reply:
            document = await function(call)
            if isinstance(document, Reply):
                return document
            return Reply(200) if document is None else json_reply(document)

        entries: dict[str, dict[str, Any]] = {path: {} for path in paths}
        if summaries:
            success: dict[str, Any] = {"description": "Success."}
            document_type = get_type_hints(function)["return"]
            if document_type is type(None):
                success = {"description": "Success; the body is empty."}
            elif document_type is not Reply:
                success["content"] = json_content(document_type)
            given = {200: success, **(errors or {}), **(responses or {})}
            about.update(name=function.__name__, description=function.__doc__)
            entries = described(*paths, summaries=summaries, responses=given, **about)
        operations.append(Operation(run, entries, method))
        return function

    return add


def json_reply(document: object, status: int = 200) -> Reply:
    """A reply with a JSON document, whose parts may be pydantic models."""
    body = msgspec.json.encode(document, enc_hook=_plain)
    return Reply(status, [(b"content-type", b"application/json")], (body,))


def json_content(kind: Any) -> dict[str, Any]:
    """The content of a JSON document of this type in OpenAPI."""
    return {"application/json": {"schema": schema_of(kind)}}


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise NotImplementedError
