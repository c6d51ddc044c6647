"""A thread pool for codec work that would block the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

JSON_BYTES = 256 * 1024
"""Longer JSON (about 0.5 ms) is parsed and written off the event loop, in pieces that release the GIL."""
BINARY_BYTES = 1024 * 1024
"""Longer binary bodies (about 0.5 ms of copies and checks) are processed off the event loop."""
TENSOR_BYTES = 2 * 1024 * 1024
"""The same for bodies whose fields are used where they lie, without a copy."""

_JSON_NUMBER_BYTES = 10
"""Approximate length of a float32 in JSON."""

P = ParamSpec("P")
T = TypeVar("T")

# Not the event loop's default pool, which other code may fill. Admission bounds the bytes that wait here.
_threads = ThreadPoolExecutor(max(2, min(4, os.cpu_count() or 1)), thread_name_prefix="codec")


def heavy_to_encode(values: int, *, as_json: bool) -> bool:
    """True if encoding that many float32 values should leave the event loop."""
    if as_json:
        return values * _JSON_NUMBER_BYTES > JSON_BYTES
    return values * 4 > BINARY_BYTES


async def offload(heavy: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, on a codec thread if it is `heavy`."""
    if not heavy:
        return function(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, partial(function, *args, **kwargs))
