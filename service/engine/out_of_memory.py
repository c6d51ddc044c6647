"""Detection of out-of-memory errors, and release of the memory that they hold."""

from __future__ import annotations

import torch


def out_of_memory(error: Exception) -> bool:
    """True if device or host memory ran out.

    torch.OutOfMemoryError covers only the CUDA allocator; pinned memory, custom ops and the CPU allocator raise
    RuntimeError with a message.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("out of memory", "DefaultCPUAllocator"))
    )


def release_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of those that it arose from: their frames hold the tensors of the failed calls."""
    source: BaseException | None = error
    while source is not None and source.__traceback__ is not None:
        source.__traceback__ = None
        source = source.__cause__ or source.__context__
