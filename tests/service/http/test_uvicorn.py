"""uvicorn still has the internals that service/http/edge.py overrides or uses."""

from __future__ import annotations

import ast
import asyncio
import inspect
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from turbofno.service.http import edge

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.timeout(30)


def test_uvicorn_has_every_name_that_edge_overrides_or_uses() -> None:
    """Every attribute that Edge reads of itself is its own or one of uvicorn's protocol."""

    async def made() -> set[str]:
        config = uvicorn.Config(Mock(), interface="asgi3", log_config=None)
        protocol = HttpToolsProtocol(config, ServerState(), {})
        protocol.on_message_begin()
        return set(dir(protocol))

    theirs = asyncio.run(made())
    (tree,) = [
        node
        for node in ast.parse(inspect.getsource(edge)).body
        if isinstance(node, ast.ClassDef) and node.name == "Edge"
    ]
    used = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    ]
    named = {node.attr for node in used}
    stored = [node for node in used if isinstance(node.ctx, ast.Store)]
    overridden = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    own = {"app_context", "body_received", "read_on"} | {
        name
        for name in overridden | {node.attr for node in stored}
        if name.startswith("_") and name not in theirs
    }
    assert (named | overridden) - theirs - own == set()
    assert {"on_headers_complete", "on_response_complete", "data_received"} <= overridden


def test_uvicorn_shuts_down_by_these_attributes_of_a_cycle() -> None:
    source = inspect.getsource(HttpToolsProtocol.shutdown)
    assert "if self.cycle is None or self.cycle.response_complete:" in source
    assert "self.cycle.keep_alive = False" in source
