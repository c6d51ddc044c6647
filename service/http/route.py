"""The declaration of operations: a decorator that makes an entry of the table of a function, with its OpenAPI."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from turbofno.service.http.call import Call, Operation, Reply
from turbofno.service.http.openapi import schema_of
from turbofno.service.http.parameters import Parameter
from turbofno.service.http.problems import Error, form_of

F = TypeVar("F", bound="Callable[[Call], Awaitable[object]]")


def route(
    operations: list[Operation],
    method: str,
    *paths: str,
    summaries: tuple[str, ...] = (),
    tag: str = "",
    parameters: tuple[Parameter, ...] = (),
    headers: tuple[dict[str, Any], ...] = (),
    body: dict[str, Any] | None = None,
    errors: Mapping[int, str] | None = None,
    responses: Mapping[int, dict[str, Any]] | None = None,
    example: str = "burgers-1d",
    **options: Any,
) -> Callable[[F], F]:
    """Add the decorated function to `operations`: it returns a `Reply`, a JSON document, or None for an empty body.

    In OpenAPI its docstring is the description; without `summaries` it is not listed there. A path with VERSION stands for
    two, that of the newest version and that of a given one, each with a summary. `example` is the name of a model.

    Args:
        errors: status -> its meaning.
        responses: status -> another response; the success of a function that returns a document needs none.
        options: attributes of the `Operation`.
    """
    endings, hint = dict.fromkeys(paths, ""), None if form_of(paths[0])[1] is Error else ""
    if "VERSION" in paths[0]:
        newest, given = (paths[0].replace("VERSION", by) for by in ("", "/versions/{version}"))
        endings = {newest: "_newest", given: "_version"}
        if hint is not None:
            hint = (
                f" (a version goes into the path: {given.format(name='NAME', version='VERSION')})"
            )

    options.setdefault("hint", hint)

    def add(function: F) -> F:
        document_type = get_type_hints(function)["return"]
        run: Any = function if document_type is Reply else _replying(function)
        success: dict[str, Any] = {"description": "Success."}
        if document_type is type(None):
            success = {"description": "Success; the body is empty."}
        elif document_type is not Reply:
            success["content"] = json_content(document_type)
        failures = error_responses(next(iter(endings)), errors or {})
        answers: dict[Any, Any] = {200: success, **failures, **(responses or {})}
        shared = {
            "tags": [tag],
            "description": inspect.getdoc(function),
            "responses": {str(code): response for code, response in answers.items()},
            **({} if body is None else {"requestBody": body}),
        }
        asked = [*(one.described() for one in parameters), *headers]
        entries: dict[str, dict[str, Any]] = {path: {} for path in endings}
        for path, summary in zip(endings, summaries, strict=bool(summaries)):
            entries[path] = {
                "summary": summary,
                "operationId": function.__name__ + endings[path],
                "parameters": [*_path_parameters(path, example), *asked],
                **shared,
            }
        operations.append(Operation(run, entries, method, parameters, **options))
        return function

    return add


def error_responses(path: str, errors: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's responses for errors (status -> meaning) on a path."""
    media_type, form = form_of(path)
    content = {media_type: {"schema": schema_of(form)}}
    return {code: {"description": meaning, "content": content} for code, meaning in errors.items()}


def json_reply(document: object, status: int = 200) -> Reply:
    return Reply(status, [b"content-type: application/json"], (msgspec.json.encode(document),))


def json_content(kind: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema_of(kind)}}


def _replying(function: Callable[[Call], Awaitable[object]]) -> Callable[[Call], Awaitable[Reply]]:
    async def run(call: Call) -> Reply:
        document = await function(call)
        return Reply(200) if document is None else json_reply(document)

    return run


def _path_parameters(path: str, example: str) -> list[dict[str, Any]]:
    about = {"version": ("version of the model", "1")}
    found = []
    for name in re.findall(r"{(\w+)}", path):
        description, value = about.get(name, ("name of a model", example))
        schema = {"type": "string", "examples": [value]}
        shown = {"name": name, "in": "path", "required": True, "description": description}
        found.append({**shown, "schema": schema})
    return found
