"""The table of operations, and the one order in which a request passes through them."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

from turbofno.service.errors import NotFound, QueueFull, ServiceError
from turbofno.service.http import oip_infer, oip_server, predict, rollout, sample_and_solve, vjp
from turbofno.service.http.body import declared_size
from turbofno.service.http.call import ClientLeft, Reply, Target, encoded
from turbofno.service.http.guard import is_preflight, preflight
from turbofno.service.http.problems import not_allowed, problem, unexpected
from turbofno.service.logs import request_id

if TYPE_CHECKING:
    from turbofno.service.http.call import Call, Operation

OPERATIONS: tuple[Operation, ...] = (
    predict.OPERATION,
    rollout.OPERATION,
    vjp.OPERATION,
    sample_and_solve.SAMPLE,
    sample_and_solve.SOLVE,
    oip_infer.OPERATION,
    *oip_server.OPERATIONS,
)
_VERBS = ("predict", "rollout", "vjp", "solve")
_VERB = re.compile(r"/v1/models/[^/]+(?:/versions/[^/]+)?:([^/:]*)")
_CACHED_BYTES = 256
"""Longest path that is cached: clients choose paths, and long ones would fill the memory."""


def _routes() -> list[tuple[re.Pattern[str], dict[str, Operation]]]:
    """A pattern for each path template, with its operations by method."""
    routes: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        for template in operation.paths:
            routes.setdefault(template, {})[operation.method] = operation
    return [
        (re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", template)), by_method)
        for template, by_method in routes.items()
    ]


_ROUTES = _routes()


def target_of(raw_path: bytes) -> Target | None:
    """The target of a percent-encoded path; None if it is none of the table's."""
    return _cached(raw_path) if len(raw_path) <= _CACHED_BYTES else _target(raw_path)


def _target(raw_path: bytes) -> Target | None:
    path = unquote(raw_path.decode("latin-1"))
    for pattern, operations in _ROUTES:
        if found := pattern.fullmatch(path):
            part = found.groupdict()
            model = part.get("name") or part.get("model") or ""
            return Target(path, operations, model, part.get("version"))
    return Target(path, {}, "", None) if _VERB.fullmatch(path) else None


_cached = lru_cache(maxsize=1024)(_target)


def begin(call: Call) -> Reply | None:
    """Check what the headers decide: host, origin and key of every request; for an operation also method, model,
    parameters and capacity.

    Returns the reply if no body is needed; None to go on, with `execute` or FastAPI's routes.
    """
    try:
        if call.context.tracer is not None:
            call.context.tracer.start(call)
        if call.first is None:
            call.context.guard.check(call)
            if is_preflight(call):
                return preflight()
        if call.context.keys is not None:
            call.context.keys.check(call)
        return None if call.target is None else _admit(call, call.target)
    except Exception as error:
        token = request_id.set(call.request_id)
        try:
            return (
                problem(call.path, error) if isinstance(error, ServiceError) else unexpected(call)
            )
        finally:
            request_id.reset(token)


async def execute(call: Call) -> Reply:
    """Run the operation of a request that `begin` admitted; errors become replies. Raises ClientLeft, CancelledError."""
    try:
        reply = await call.operation.run(call)
        if reply.stream is not None:
            # An error before the first piece is still sent as an ordinary error.
            reply.body = (await anext(reply.stream),)
            reply.size = len(reply.body[0])
    except ServiceError as error:
        return problem(call.path, error)
    except ClientLeft:
        raise
    except Exception:
        return unexpected(call)
    return reply


def _admit(call: Call, target: Target) -> Reply | None:
    operations = target.operations
    if not operations:
        raise _unknown_verb(call.path)
    method = "GET" if call.method == "HEAD" else call.method
    if method not in operations:
        refusal = not_allowed(call.method, call.path, sorted(operations))
        if method != "OPTIONS":
            raise refusal
        return Reply(204, encoded({"Allow": f"{refusal.allowed}, OPTIONS"}))
    operation = call.operation = operations[method]
    if operation.parse is None:
        return None
    context = call.context
    call.protocol = operation.protocol
    served = call.served = context.served.find(target.model, target.version)
    if operation.of_model:
        call.model, call.version = served.name, served.version
    first = call.first
    if first is not None and first.served is served:
        call.parameters, call.declared_bytes = first.parameters, first.declared_bytes
    else:
        call.parameters, call.declared_bytes = operation.parse(call), declared_size(call)
    try:
        call.admitted = context.admission.admit(
            call.declared_bytes,
            model=served.name,
            version=served.version,
            caller=call.caller,
            queued=operation.queued,
        )
    except QueueFull:
        call.shed = True
        raise
    return None


def _unknown_verb(path: str) -> NotFound:
    near = difflib.get_close_matches(path.rpartition(":")[2], _VERBS, n=1)
    guess = f"did you mean :{near[0]}? " if near else ""
    verbs = ", ".join(f":{name}" for name in _VERBS)
    return NotFound(
        f"there is no route {path!r}: {guess}Models have {verbs}; GET /docs lists the routes"
    )
