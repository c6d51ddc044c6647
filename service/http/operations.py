"""The table of operations, the last of which is FastAPI, and the one order in which a request passes through them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from turbofno.service.errors import NotFound, Unavailable
from turbofno.service.http import (
    health,
    oip_infer,
    oip_server,
    predict,
    rollout,
    sample_and_solve,
    vjp,
)
from turbofno.service.http.body import declared_size
from turbofno.service.http.call import Call, Operation, Reply, Target
from turbofno.service.http.guard import is_preflight, preflight
from turbofno.service.http.parameters import read_query
from turbofno.service.http.problems import no_route, not_allowed, problem

Methods = Mapping[str, Operation]
Parse = Callable[[Call, Mapping[str, Any]], Any]


_WITH_VERBS = [
    *predict.OPERATIONS,
    *rollout.OPERATIONS,
    *vjp.OPERATIONS,
    *sample_and_solve.OPERATIONS,
]
_OTHERS = [*oip_infer.OPERATIONS, *oip_server.OPERATIONS, *health.OPERATIONS]
_VERBS = ("predict", "rollout", "vjp", "solve")
_VERB = re.compile(r"/v1/models/[^/]*(?:/versions/[^/]*)?:[^/:]*")
_CACHED_BYTES = 256
"""Longest path that is cached: clients choose paths, and long ones would fill the memory."""


def documented() -> dict[str, dict[str, Any]]:
    """The table's operations by path and method, as in an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in (*_WITH_VERBS, *_OTHERS):
        for path, about in operation.paths.items():
            if about:
                paths.setdefault(path, {})[operation.method.lower()] = about
    return paths


def _routes(operations: Sequence[Operation]) -> Iterator[tuple[re.Pattern[str], str, Methods]]:
    """A pattern for each path template, with the template and its operations by method."""
    routes: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        for template in operation.paths:
            routes.setdefault(template, {})[operation.method] = operation
    for template, by_method in routes.items():
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", template.replace(".", r"\."))
        yield re.compile(pattern), template, by_method


# A wrong verb is no part of a model's name, and a verb is no name.
_ROUTES = [*_routes(_WITH_VERBS), (_VERB, "", {}), *_routes(_OTHERS)]


def target_of(raw_path: bytes) -> Target:
    """The target of a percent-encoded path."""
    return _cached(raw_path) if len(raw_path) <= _CACHED_BYTES else _target(raw_path)


def _target(raw_path: bytes) -> Target:
    path = unquote(raw_path.decode("latin-1"))
    for pattern, template, operations in _ROUTES:
        if found := pattern.fullmatch(path):
            part = found.groupdict()
            model = part.get("name") or part.get("model") or ""
            protocols = [one.protocol for one in operations.values()]
            return Target(path, template, operations, model, part.get("version"), *protocols[:1])
    return Target(path, "", None, "", None)


_FASTAPI = Operation(lambda call: call.context.app.answer(call), {}, "GET")
_cached = lru_cache(maxsize=1024)(_target)


def begin(call: Call) -> Reply | None:
    """Check what the headers decide: host, origin, key, method, and for an operation on fields model, parameters and
    capacity.

    Returns the reply if no body is needed; None to go on with `call.operation`.
    """
    try:
        if call.context.tracer is not None:
            call.context.tracer.start(call)
        # With `checked`, the same head was found right before.
        if call.checked is None:
            call.context.guard.check(call)
            if is_preflight(call):
                # Asked before a prediction, it is none.
                call.protocol = "admin"
                return preflight()
        if call.context.keys is not None:
            call.context.keys.check(call)
        if call.checked is None:
            call.operation = _operation(call)
        if (parse := call.operation.parse) is not None:
            _admit(call, parse)
    except Exception as error:
        return problem(call, error)
    return None


def _operation(call: Call) -> Operation:
    operations = call.target.operations
    if operations is None:
        if (call.method, call.path) == ("OPTIONS", "*"):
            # Asks about the server as a whole.
            raise not_allowed(call.method, call.path, ["GET", "POST"])
        return _FASTAPI
    if not operations:
        raise _no_verb(call.path)
    method = "GET" if call.method == "HEAD" else call.method
    if method not in operations:
        raise not_allowed(call.method, call.path, sorted(operations))
    return operations[method]


def _admit(call: Call, parse: Parse) -> None:
    operation, target, context = call.operation, call.target, call.context
    try:
        served = call.served = context.served.find(target.model, target.version)
    except Unavailable:
        if operation.of_model:
            _note_unready(call)
        raise
    if operation.of_model:
        call.model, call.version = served.name, served.version
    if call.checked is not served:
        if call.checked is None:
            call.declared_bytes = declared_size(call)
        given = read_query(call, operation.parameters, hint=operation.hint)
        call.parameters = parse(call, given)
        call.checked = served
    call.admitted = context.admission.admit(
        call.declared_bytes,
        model=served.name,
        version=served.version,
        caller=call.caller,
        queued=operation.queued,
        received=call.received,
    )


def _note_unready(call: Call) -> None:
    """Note the requested model, if the engine knows its name, and the version that its error is about."""
    name, version, statuses = call.target.model, call.target.version, call.context.engine.statuses()
    known = [one.version for one in statuses if one.name == name and version in (None, one.version)]
    if known:
        call.model, call.version = name, known[-1]


def _no_verb(path: str) -> NotFound:
    names = path.rpartition(":")[0].split("/")[3:]
    if "" in names:
        missing = "version" if names[0] else "name"
        return no_route(
            path, f": the {missing} of the model is missing; GET /v1/models lists models"
        )
    near = difflib.get_close_matches(path.rpartition(":")[2], _VERBS, n=1)
    guess = f"did you mean :{near[0]}? " if near else ""
    return no_route(path, f": {guess}Models have {', '.join(f':{name}' for name in _VERBS)}")
