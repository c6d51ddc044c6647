"""Many arrays to and from one tensor by one call of the driver, here a fake one that copies memory of the host."""

from __future__ import annotations

import ctypes
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.draws import generator
from turbofno.service.runtime import batch_copy
from turbofno.service.runtime.batch_copy import Spans, copy_in, copy_out

STREAM: Any = SimpleNamespace(cuda_stream=7)


class Driver:
    """Copies one array a call, as drivers for CUDA 12; `status` is what a call returns."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.calls = status, 0

    def cuMemcpyAsync(self, to: Any, source: Any, size: Any, stream: Any) -> int:
        assert stream.value == STREAM.cuda_stream
        self.calls += 1
        ctypes.memmove(to.value, source.value, size.value)
        return self.status


class BatchDriver(Driver):
    """Copies any number of arrays a call."""

    def cuMemcpyBatchAsync_v2(
        self, to: Any, source: Any, sizes: Any, count: Any, *rest: Any
    ) -> int:
        attributes, of, n, on = rest
        assert on.value == STREAM.cuda_stream
        assert (n.value, ctypes.c_uint32.from_address(attributes.value).value) == (1, 1)
        assert ctypes.c_size_t.from_address(of.value).value == 0
        self.calls += 1
        column = ctypes.c_uint64 * count.value
        columns = (column.from_address(one.value) for one in (to, source, sizes))
        for row in zip(*columns, strict=True):
            ctypes.memmove(*row)
        return self.status


def spans(arrays: list[np.ndarray]) -> Spans:
    return Spans(
        array("Q", [one.ctypes.data for one in arrays]), array("Q", [one.nbytes for one in arrays])
    )


@pytest.mark.parametrize("kind", [Driver, BatchDriver])
def test_arrays_are_copied_one_after_another(
    kind: type[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, rng = kind(), generator()
    monkeypatch.setattr(batch_copy, "_driver", lambda: driver)
    arrays = [rng.standard_normal((n, 3, 5), np.float32) for n in (1, 4, 2)]
    x = torch.zeros(7, 3, 5)
    copy_in(x, spans(arrays), STREAM)
    np.testing.assert_array_equal(x.numpy(), np.concatenate(arrays))
    answers = [np.zeros_like(one) for one in arrays]
    copy_out(2 * x, spans(answers), STREAM)
    for one, answer in zip(arrays, answers, strict=True):
        np.testing.assert_array_equal(answer, 2 * one)
    assert driver.calls == (2 if kind is BatchDriver else 6)


@pytest.mark.parametrize("kind", [Driver, BatchDriver])
def test_an_error_of_the_driver_is_raised(
    kind: type[Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_copy, "_driver", lambda: kind(status=700))
    with pytest.raises(RuntimeError, match="700"):
        copy_in(torch.zeros(2), spans([np.ones(2, np.float32)]), STREAM)
