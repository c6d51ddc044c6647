"""Copies between a device tensor and many arrays in page-locked memory, all enqueued by one call of the CUDA driver.

A call for each array, as PyTorch makes, takes about 4 us of a CPU on an H200's host; as a part of one 0.6 us.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

_IN_STREAM_ORDER = array("I", [1, 0, 0, 0, 0, 0])
"""CUmemcpyAttributes: when sources are read; location hints and flags, unused."""
_FOR_ALL = array("Q", [0])
"""Index of the first copy with these attributes."""


class Spans(NamedTuple):
    """Addresses and sizes in bytes of arrays in memory, as unsigned 64-bit integers ("Q")."""

    addresses: array[int]
    sizes: array[int]


def copy_in(x: torch.Tensor, spans: Spans, stream: torch.cuda.Stream) -> None:
    """Enqueue the copy of page-locked spans, one after another, to all of a contiguous device tensor.

    Raises:
        RuntimeError: the driver refused.
    """
    _enqueue(_parts(x, spans), spans.addresses, spans.sizes, stream)


def copy_out(y: torch.Tensor, spans: Spans, stream: torch.cuda.Stream) -> None:
    """Enqueue the copy of all of a contiguous device tensor to page-locked spans, one after another.

    Raises:
        RuntimeError: the driver refused.
    """
    _enqueue(spans.addresses, _parts(y, spans), spans.sizes, stream)


def copy(to: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream) -> None:
    """Enqueue the copy of a contiguous tensor to another of its size, one on the device and one in pinned memory.

    PyTorch's own copy notes the stream, and records an event on it once the pinned memory is freed, on any thread. That
    would spoil a capture on that stream.

    Raises:
        RuntimeError: the driver refused.
    """
    assert to.is_contiguous()
    assert source.is_contiguous()
    assert to.nbytes == source.nbytes
    _enqueue_one(to.data_ptr(), source.data_ptr(), to.nbytes, stream)


def _parts(tensor: torch.Tensor, spans: Spans) -> array[int]:
    """Addresses in a tensor of consecutive parts of the spans' sizes."""
    start = tensor.data_ptr()
    *parts, end = accumulate(spans.sizes, initial=start)
    assert tensor.is_contiguous()
    assert end == start + tensor.nbytes
    return array("Q", parts)


def _enqueue(
    destinations: array[int], sources: array[int], sizes: array[int], stream: torch.cuda.Stream
) -> None:
    driver = _driver()
    if hasattr(driver, "cuMemcpyBatchAsync_v2"):
        _check(
            driver.cuMemcpyBatchAsync_v2(
                *map(_pointer, (destinations, sources, sizes)),
                ctypes.c_size_t(len(sizes)),
                _pointer(_IN_STREAM_ORDER),
                _pointer(_FOR_ALL),
                ctypes.c_size_t(1),
                ctypes.c_void_p(stream.cuda_stream),
            )
        )
        return
    # Drivers for CUDA 12.
    for to, source, size in zip(destinations, sources, sizes, strict=True):
        _enqueue_one(to, source, size, stream)


def _enqueue_one(to: int, source: int, size: int, stream: torch.cuda.Stream) -> None:
    numbers = map(ctypes.c_uint64, (to, source, size))
    _check(_driver().cuMemcpyAsync(*numbers, ctypes.c_void_p(stream.cuda_stream)))


def _pointer(numbers: array[int]) -> ctypes.c_void_p:
    return ctypes.c_void_p(numbers.buffer_info()[0])


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status} in a copy from or to page-locked memory")


@cache
def _driver() -> ctypes.PyDLL:
    # It keeps the interpreter lock: to get it back takes longer than a call.
    return ctypes.PyDLL("libcuda.so.1")
