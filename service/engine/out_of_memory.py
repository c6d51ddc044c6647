"""Out of memory: the errors that show it, and the way to have the memory back."""

from __future__ import annotations

import torch


def out_of_memory(error: Exception) -> bool:
    """True if memory ran out, of the device or of the machine.

    torch has an exception of its own for its CUDA allocator alone: pinned memory, custom ops and its CPU
    allocator say it in words.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in str(error) for words in ("out of memory", "DefaultCPUAllocator"))
    )


def release_frames(error: Exception) -> None:
    """Let go of what the failed calls still hold in their frames, which is most of the memory."""
    error.__traceback__ = None
