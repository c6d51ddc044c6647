"""Which cases of the kernels' and networks' tests run where there is no GPU: `make test-thorough` and `make test-gpu` run all.

Of the cases of a test that a mark skips the first alone is reported: there are thousands, and each takes milliseconds.

The numbers are here and not in the tests' files: those are covered by the record of GPU runs (tests/gpu/record.py), whose
tests they do not change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tests.thorough import tried

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

ONE_IN = {
    "tests/turbofno_ops/test_fft.py": {"test_gradients_are_those_of_finite_differences": 3},
    "tests/turbofno_ops/test_fourier_layer.py": {"test_fourier_layer_equals_definition": 5},
    "tests/turbofno_ops/test_half_fft.py": {"test_twiddles": 5},
    "tests/turbofno_ops/test_library.py": {
        "test_fourier_layer_gradients_match_finite_differences": 5,
        "test_input_gradients_do_not_depend_on_weight_gradients": 3,
        "test_ops_pass_opcheck": 4,
    },
    "tests/turbofno_ops/test_mixed_radix_fft.py": {"test_many_columns": 3},
    "tests/turbofno_ops/test_plan.py": {
        "test_chain_equals_the_network": 2,
        "test_every_mode_placement_equals_the_network": 3,
        "test_layers_on_other_grids": 2,
    },
    "tests/turbofno_ops/test_replay.py": {"test_spectral_layers": 3},
}
"""File -> test -> of so many cases one runs. No number divides the number of values of a parameter: else some would not occur."""

LEFT_OUT = (
    # 70 s of CPU time for warnings: the installation, which comes first, compiles them too.
    "tests/turbofno_ops/test_native.py::test_kernels_compile_without_warnings[",
)
"""Beginnings of the names of cases that do not run."""


def left_out(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases to leave out, of all in their order."""
    if tried(0, 1) or torch.cuda.is_available():
        return
    seen: dict[tuple[str, str], int] = {}
    skipped: set[tuple[str, str]] = set()
    for item in items:
        if item.nodeid.startswith(LEFT_OUT):
            yield item
        file, _, case = item.nodeid.partition("::")
        test, _, _ = case.partition("[")
        if any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif")):
            if (file, test) in skipped:
                yield item
            skipped.add((file, test))
        if (one_in := ONE_IN.get(file, {}).get(test)) is not None:
            number = seen[file, test] = seen.get((file, test), -1) + 1
            if number % one_in:
                yield item
