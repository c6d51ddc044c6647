"""Records which cached tables a piece of code uses, so that a CUDA graph keeps its tables alive after their eviction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_used: ContextVar[list[object] | None] = ContextVar("used", default=None)


def note_use(table: T) -> T:
    """Record the use of a table and return it. Caches call this for every table they return."""
    used = _used.get()
    if used is not None:
        used.append(table)
    return table


@contextmanager
def used_tables() -> Iterator[list[object]]:
    """Collect the tables that calls of this thread in the block use: they live as long as the list that it returns.

    Caches of tables are bounded, so that a table may be freed once others are used. A CUDA graph that is captured in
    the block reads these tables whenever it is replayed: keep the list as long as the graph. Gradients of tensors on a
    GPU are computed in threads of PyTorch, whose tables are not collected: `torch.autograd.set_multithreading_enabled`
    changes that.

    Returns:
        A context manager with the list, which is filled until the block ends. Do not rely on its entries.

    Example:
        >>> x = torch.randn(8, 421, device="cuda")  # doctest: +SKIP
        >>> fft.rfft(x, modes=24)  # makes the tables, which a capture cannot  # doctest: +SKIP
        >>> graph = torch.cuda.CUDAGraph()  # doctest: +SKIP
        >>> with used_tables() as tables, torch.cuda.graph(graph):  # doctest: +SKIP
        ...     z = fft.rfft(x, modes=24)
        >>> graph.replay()  # as long as `tables` lives  # doctest: +SKIP
    """
    used: list[object] = []
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)
