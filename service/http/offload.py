"""Codec work that would hold up the event loop, on a few threads of its own."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

JSON_BYTES = 256 * 1024
"""JSON longer than this (about 0.5 ms) is parsed and written off the event loop, in pieces: the interpreter is free for it
every few milliseconds. Long binary bodies are copied without the interpreter.
"""
BINARY_BYTES = 1024 * 1024
"""Binary bodies longer than this (about 0.5 ms of copies and checks) are handled off it too."""

_JSON_NUMBER_BYTES = 10
"""About what one float32 takes in JSON."""

P = ParamSpec("P")
T = TypeVar("T")

# Not the loop's default pool, which anything may fill; how much can wait here is bounded by the
# body bytes that admission lets in. Its threads start when first needed.
_threads = ThreadPoolExecutor(max(2, min(4, os.cpu_count() or 1)), thread_name_prefix="codec")


def heavy_to_encode(values: int, *, as_json: bool) -> bool:
    """Whether that many float32 values are to be written off the event loop."""
    if as_json:
        return values * _JSON_NUMBER_BYTES > JSON_BYTES
    return values * 4 > BINARY_BYTES


async def offload(heavy: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` here, or on a codec thread if it is `heavy`."""
    if not heavy:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, partial(function, *args, **kwargs))
