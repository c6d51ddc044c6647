"""Argument checks and the error of the random fields and solvers."""

from collections.abc import Sequence

import torch
from torch import Tensor

SUPPORTED_DTYPES = (torch.float32, torch.float64)


class SolverError(RuntimeError):
    """A solver blew up or did not converge."""


def check_dtype(dtype: torch.dtype, name: str) -> None:
    """Raise ValueError unless `dtype` is float32 or float64."""
    if dtype not in SUPPORTED_DTYPES:
        raise ValueError(
            f"{name} has dtype {dtype}; expected torch.float32 or torch.float64; "
            "convert it with .to(torch.float64)"
        )


def check_positive(value: float, name: str) -> None:
    """Raise ValueError unless `value` is a finite number greater than zero."""
    if not 0.0 < value < float("inf"):
        raise ValueError(f"{name} is {value}; expected a finite number > 0; pass a positive {name}")


def check_at_least(value: int, least: int, name: str) -> None:
    """Raise ValueError unless the integer `value` is at least `least`."""
    if value < least:
        raise ValueError(f"{name} is {value}; expected an integer >= {least}; pass a larger {name}")


def check_batch(field: Tensor, dimensions: int, least: int, name: str) -> None:
    """Raise ValueError unless `field` is [batch, n, ...] with `dimensions` equal axes, real, finite, n >= least."""
    expected = "[batch, " + ", ".join(["n"] * dimensions) + "]"
    shape = tuple(field.shape)
    if field.ndim != dimensions + 1 or len(set(shape[1:])) != 1:
        raise ValueError(
            f"{name} has shape {shape}; expected {expected}; "
            "add a batch axis with [None] for a single sample"
        )
    if shape[0] < 1:
        raise ValueError(f"{name} holds no samples; expected batch >= 1; pass at least one sample")
    check_dtype(field.dtype, name)
    check_at_least(shape[1], least, f"the grid size n of {name}")
    if not bool(torch.isfinite(field).all()):
        raise ValueError(
            f"{name} holds NaN or infinity; expected finite values; "
            "check how it was made or drop those samples"
        )


def check_solution(finite: Tensor, what: str, remedy: str) -> None:
    """Raise SolverError naming the samples whose entry in `finite` ([batch], bool) is False."""
    if not bool(finite.all()):
        failed: Sequence[int] = torch.nonzero(~finite).flatten().tolist()
        raise SolverError(
            f"{what} for {len(failed)} of {finite.shape[0]} samples "
            f"(batch positions {list(failed[:8])}); {remedy}"
        )
