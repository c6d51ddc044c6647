"""Which model a request is for, and by whom, told from its first line and headers alone, below ASGI."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from service.errors import ServiceError
from service.pipeline.admission import ANYONE, Caller

if TYPE_CHECKING:
    from service.context import AppContext, Protocol

Headers = list[tuple[bytes, bytes]]

_TARGET = re.compile(
    rb"(/(v[12])/models/([^/:%?]+)(?:/versions/([^/:%?]+))?(:predict|:vjp|/infer))(?:\?(.*))?"
)
_PROTOCOLS: dict[tuple[bytes, bytes], Protocol] = {
    (b"v1", b":predict"): "predict",
    (b"v1", b":vjp"): "vjp",
    (b"v2", b"/infer"): "oip",
}


class Arrival(NamedTuple):
    """A request that a model which can serve is to answer, from somebody who may ask."""

    protocol: Protocol
    model: str
    version: str
    """The newest that is ready where the path names none."""
    caller: Caller
    path: str
    query: bytes


def arrival_of(target: bytes, headers: Headers, context: AppContext) -> Arrival | None:
    """What the POST to `target` is; None: the application is to look at it, be it only to refuse it."""
    match = _TARGET.fullmatch(target)
    if match is None or context.admission.draining:
        return None
    path, root, name, number, verb, query = match.groups()
    protocol = _PROTOCOLS.get((root, verb))
    if protocol is None:
        return None
    try:
        context.guard.check("POST", path.decode("latin-1"), headers)
    except ServiceError:
        return None
    # A caller without a known key is told that, and nothing of models and queues.
    caller = ANYONE if context.keys is None else context.keys.caller_of(headers)
    if caller is None:
        return None
    version = None if number is None else number.decode("latin-1")
    try:
        config = context.engine.config(name.decode("latin-1"), version)
    except ServiceError:
        return None
    return Arrival(
        protocol, config.name, config.version, caller, path.decode("latin-1"), query or b""
    )
