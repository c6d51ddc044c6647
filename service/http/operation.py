"""One operation on a model: what the table of operations holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from turbofno.service.http.call import Call, Protocol, Reply


@dataclass(frozen=True, slots=True)
class Operation:
    """A verb: the functions that serve it, and its description in OpenAPI."""

    protocol: Protocol
    """Label of its requests in the metrics."""
    parse: Callable[[Call], Any]
    """Read the parameters, by the headers alone; `Call.asked` from then on. Raises ServiceError."""
    run: Callable[[Call], Awaitable[Reply]]
    """Read the body, do the work, write the reply. Raises ServiceError, ClientLeft."""
    paths: dict[str, dict[str, Any]] = field(repr=False)
    """Path template -> its operation in OpenAPI."""
    method: str = "POST"
    queued: bool = True
    """Its fields wait in the model's queue."""
    of_model: bool = True
    """Its requests count as the model's."""
