"""Waiting for a condition on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(met: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once the condition is true; fail after that many seconds."""
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.001)
