"""Triton's shared-memory, trace and logging routes: true readings, refused changes."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import APIRouter, Response

from turbofno.service.errors import Unsupported

# Left out of OpenAPI: none of these extensions is offered, which the metadata says by not naming
# them. The routes exist so that a client's generic calls get an answer that it can show.
router = APIRouter(include_in_schema=False)


@router.get("/v2/systemsharedmemory/status")
@router.get("/v2/systemsharedmemory/region/{region}/status")
@router.get("/v2/cudasharedmemory/status")
@router.get("/v2/cudasharedmemory/region/{region}/status")
async def shared_memory_status() -> list[dict[str, Any]]:
    """No region is ever registered."""
    return []


@router.post("/v2/systemsharedmemory/region/{region}/register")
@router.post("/v2/cudasharedmemory/region/{region}/register")
async def register_shared_memory() -> Response:
    """Refuse."""
    raise Unsupported("shared memory is not offered by this server: send tensors in binary")


@router.post("/v2/systemsharedmemory/unregister")
@router.post("/v2/systemsharedmemory/region/{region}/unregister")
@router.post("/v2/cudasharedmemory/unregister")
@router.post("/v2/cudasharedmemory/region/{region}/unregister")
async def unregister_shared_memory() -> Response:
    """Nothing is registered afterwards, as before."""
    return Response()


@router.get("/v2/trace/setting")
@router.get("/v2/models/{model}/trace/setting")
async def trace_settings() -> dict[str, Any]:
    """Tracing in Triton's format is off."""
    return {"trace_level": ["OFF"], "trace_rate": "0", "trace_count": "0", "log_frequency": "0"}


@router.post("/v2/trace/setting")
@router.post("/v2/models/{model}/trace/setting")
async def update_trace_settings() -> Response:
    """Refuse."""
    raise Unsupported("trace settings cannot be changed: this server does not trace requests")


@router.get("/v2/logging")
async def log_settings() -> dict[str, Any]:
    """Which levels are logged now."""
    logger = logging.getLogger("service")
    return {
        "log_file": "",
        "log_info": logger.isEnabledFor(logging.INFO),
        "log_warning": logger.isEnabledFor(logging.WARNING),
        "log_error": logger.isEnabledFor(logging.ERROR),
        "log_verbose_level": int(logger.isEnabledFor(logging.DEBUG)),
        "log_format": "default",
    }


@router.post("/v2/logging")
async def update_log_settings() -> Response:
    """Refuse."""
    raise Unsupported(
        "log settings cannot be changed while the server runs: start it with TURBOFNO_LOG_LEVEL"
    )
