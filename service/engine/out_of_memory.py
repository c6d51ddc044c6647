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


def release_frames(error: Exception) -> None:
    """Drop the traceback: its frames hold the tensors of the failed calls."""
    error.__traceback__ = None
