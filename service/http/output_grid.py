"""An answer on another grid than the input's, for both protocols."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from turbofno.service.codec.grids import OUTPUT_GRID, from_network, to_network
from turbofno.service.errors import PayloadTooLarge
from turbofno.service.http.inference import infer
from turbofno.service.http.offload import offload
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from turbofno.service.codec.grids import Grid
    from turbofno.service.engine.interface import Fields, PredictResult
    from turbofno.service.http.call import Call

_HEAVY_VALUES = 16 * 1024
"""Fields of more values (about 0.5 ms) are interpolated off the event loop."""


async def infer_onto(
    call: Call,
    fields: Fields,
    *,
    output_grid: Grid | None,
    priority: int,
    seconds: float | None,
) -> PredictResult:
    """As `infer`; for an answer on another grid the model runs on its training grid, between two interpolations.

    Raises:
        PayloadTooLarge, QueueFull: there never is, or is no room now, for all that this takes.
    """
    if output_grid is None:
        return await infer(call, fields, priority=priority, seconds=seconds)
    config = call.served.config
    _hold_all(call, len(fields), output_grid)
    started = time.perf_counter()
    inside = len(fields) * math.prod(config.grid.training)
    fields = await offload(fields.size + inside > _HEAVY_VALUES, to_network, fields, config)
    call.decode_seconds = (call.decode_seconds or 0.0) + time.perf_counter() - started
    result = await infer(call, fields, priority=priority, seconds=seconds)
    started = time.perf_counter()
    outside = len(fields) * math.prod(output_grid)
    answer = await offload(
        result.fields.size + outside > _HEAVY_VALUES,
        from_network, result.fields, output_grid, config,
    )  # fmt: skip
    call.encode_seconds = time.perf_counter() - started
    result.fields = answer
    return result


def _hold_all(call: Call, count: int, output_grid: Grid) -> None:
    """Count input and answer on the network's grid, and the answer: a small body can ask for a large one."""
    config = call.served.config
    channels = config.architecture
    inside = channels.in_channels + channels.out_channels
    values = inside * math.prod(config.grid.training)
    size = 4 * count * (values + channels.out_channels * math.prod(output_grid))
    most = call.context.settings.max_inflight_bytes
    if size > most:
        raise PayloadTooLarge(
            f"{count} fields on the {OUTPUT_GRID} {list(output_grid)} take {size} bytes, more than the limit of {most} "
            f"({env_name('max_inflight_bytes')}): send fewer, or ask for a coarser grid"
        )
    assert call.budget is not None
    call.budget.hold_more(size)
