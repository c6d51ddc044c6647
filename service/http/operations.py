"""The table of operations on models, and the one order in which a request goes through them."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from turbofno.service.errors import NotFound, QueueFull, ServiceError
from turbofno.service.http import oip_infer, predict, reference, rollout, vjp
from turbofno.service.http.body import declared_size
from turbofno.service.http.call import ClientLeft, Reply, encoded
from turbofno.service.http.guard import is_preflight, preflight
from turbofno.service.http.problems import not_allowed, problem, unexpected
from turbofno.service.logs import request_id

if TYPE_CHECKING:
    from turbofno.service.http.call import Call
    from turbofno.service.http.operation import Operation

TABLE: dict[tuple[str, str], Operation] = {
    ("v1", "predict"): predict.OPERATION,
    ("v1", "rollout"): rollout.OPERATION,
    ("v1", "vjp"): vjp.OPERATION,
    ("v1", "sample"): reference.SAMPLE,
    ("v1", "solve"): reference.SOLVE,
    ("v2", "infer"): oip_infer.OPERATION,
}
"""By root and verb of the path."""

_PATH = re.compile(
    r"/(?:v1/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?:(?P<verb>[^/:]*)"
    r"|v1/models/(?P<sampled>[^/]+)/(?P<sample>sample)"
    r"|v2/models/(?P<model>[^/]+)(?:/versions/(?P<number>[^/]+))?/(?P<infer>infer))"
)


class Target(NamedTuple):
    """The target of a path."""

    path: str
    """Decoded."""
    operation: Operation | None
    """None: there is no such verb."""
    verb: str
    model: str
    version: str | None
    """None: the newest."""


_CACHED_BYTES = 256
"""Longer paths are read each time: they are for clients to choose, and would fill the memory."""


def target_of(raw_path: bytes) -> Target | None:
    """The target of a path, still percent-encoded; None: it is no operation's."""
    if len(raw_path) <= _CACHED_BYTES:
        return _remembered(raw_path)
    return _target(raw_path)


def _target(raw_path: bytes) -> Target | None:
    path = unquote(raw_path.decode("latin-1"))
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    part = found.groupdict()
    name = part["name"] or part["sampled"] or part["model"]
    verb = part["verb"] if part["name"] else part["sample"] or part["infer"]
    root = "v2" if part["model"] else "v1"
    version = part["version"] or part["number"]
    operation = TABLE.get((root, verb))
    # A sample is a thing of the model, not a verb; and the solver knows no versions.
    if (part["name"] and verb == "sample") or (version and verb == "solve"):
        operation = None
    return Target(path, operation, verb, name, version)


_remembered = lru_cache(maxsize=1024)(_target)


def begin(call: Call, target: Target | None) -> Reply | None:
    """Decide what the headers decide: host, origin and key of any request; of an operation also method, model,
    parameters, and whether there is room for it.

    The reply, if it needs no body; None: go on, with `execute` or FastAPI's routes.
    """
    token = request_id.set(call.request_id)
    try:
        if call.context.tracer is not None:
            call.context.tracer.start(call)
        call.context.guard.check(call)
        if is_preflight(call):
            return preflight()
        if call.context.keys is not None:
            call.context.keys.check(call)
        return None if target is None else _admit(call, target)
    except ServiceError as error:
        return problem(call.path, error)
    except Exception:
        return unexpected(call)
    finally:
        request_id.reset(token)


async def execute(call: Call, operation: Operation) -> Reply:
    """The reply to a request that `begin` let in; errors are replies too. Raises ClientLeft, CancelledError."""
    try:
        reply = await operation.run(call)
        if reply.stream is not None:
            # What fails before anything was sent is an error like any other.
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
    operation = target.operation
    if operation is None:
        raise _no_such_verb(call.path, target.verb)
    if call.method != operation.method and not (
        call.method == "HEAD" and operation.method == "GET"
    ):
        refusal = not_allowed(call.method, call.path, [operation.method])
        if call.method != "OPTIONS":
            raise refusal
        return Reply(204, encoded({"Allow": f"{refusal.allowed}, OPTIONS"}))
    context = call.context
    call.protocol = operation.protocol
    served = call.served = context.served.find(target.model, target.version)
    if operation.of_model:
        call.model, call.version = served.name, served.version
    call.asked = operation.parse(call)
    try:
        call.budget = context.admission.admit(
            declared_size(call),
            model=served.name,
            version=served.version,
            caller=call.caller,
            coming=context.shedding.reserved(served.name, served.version),
        )
    except QueueFull:
        call.shed = True
        raise
    if operation.queued:
        call.reservation = context.shedding.reserve(served.name, served.version)
    return None


def _no_such_verb(path: str, verb: str) -> NotFound:
    known = [name for root, name in TABLE if root == "v1" and name != "sample"]
    near = difflib.get_close_matches(verb, known, n=1)
    guess = f"did you mean :{near[0]}? " if near else ""
    verbs = ", ".join(f":{name}" for name in known)
    return NotFound(
        f"there is no route {path!r}: {guess}Models have {verbs}; GET /docs lists the routes"
    )
