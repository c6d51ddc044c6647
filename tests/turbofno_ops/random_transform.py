"""Drawn transforms of `turbofno_ops.fft`: names, shapes, strides, axes, sizes, modes and norms, with numpy's result."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from turbofno_ops import fft as ours

NORMS = (None, "backward", "ortho", "forward")


class Case:
    """A drawn transform: its name, tensor and arguments."""

    def __init__(
        self,
        rng: random.Random,
        *,
        sizes: Callable[[random.Random], int],
        names: Sequence[str] = ours.NAMES,
    ) -> None:
        self.name = rng.choice(names)
        base = self.name.rstrip("2n")
        self.half, self.inverse = "r" in base, base.startswith("i")
        count = {"2": 2, "n": rng.randint(1, 3)}.get(self.name[-1], 1)
        n_dim = rng.randint(count, count + 2)
        self.dims = rng.sample(range(n_dim), count)
        self.points = [sizes(rng) for _ in self.dims]
        self.modes: list[int | None] = [None] * count
        self.norm = rng.choice(NORMS)
        shape = [rng.randint(1, 3) for _ in range(n_dim)]
        self.cut = rng.random() < 0.5
        for at, dim in enumerate(self.dims):
            shape[dim] = self._length(rng, at)
        self.shape = shape
        self.x = self._drawn(rng)

    def _most(self, at: int) -> int:
        half = self.half and at == len(self.dims) - 1
        return self.points[at] // 2 + 1 if half else self.points[at]

    def _length(self, rng: random.Random, at: int) -> int:
        """Draw the modes of an axis; return its length in the tensor."""
        most = self._most(at)
        if self.cut and rng.random() < 0.7:
            self.modes[at] = rng.randint(1, most)
        if self.inverse:
            kept = self.modes[at]
            return kept if kept is not None else max(1, most + rng.choice([0, 0, -2, 2]))
        return max(1, self.points[at] + rng.choice([0, 0, 0, -3, 2]))

    def _drawn(self, rng: random.Random) -> torch.Tensor:
        """A tensor with drawn strides."""
        order = list(range(len(self.shape)))
        if rng.random() < 0.4:
            rng.shuffle(order)
        padding = [rng.choice([0, 0, 0, 1]) for _ in order]
        stored = [self.shape[dim] + more for dim, more in zip(order, padding, strict=True)]
        real = self.half and not self.inverse
        dtype = torch.float64 if real else torch.complex128
        x = torch.randn(stored, dtype=dtype)
        x = x[tuple(slice(self.shape[dim]) for dim in order)]
        return x.permute(sorted(range(len(order)), key=order.__getitem__))

    @property
    def arguments(self) -> dict[str, Any]:
        sizes, dims, modes = self.points, self.dims, self.modes
        if self.name[-1] == "t":
            return {"n": sizes[0], "dim": dims[0], "norm": self.norm, "modes": modes[0]}
        return {"s": sizes, "dim": dims, "norm": self.norm, "modes": modes}

    def call(self, x: torch.Tensor, **more: Any) -> torch.Tensor:
        return getattr(ours, self.name)(x, **self.arguments, **more)

    def expected(self, x: torch.Tensor) -> np.ndarray:
        """numpy's transform in float64, of axes filled with zeros, cut afterwards."""
        return self._cut(self._whole(x))

    def error(self, found: torch.Tensor, x: torch.Tensor) -> float:
        """The relative L2 error of a transform of x.

        A few kept modes may be small by chance, their error is not, so they count at least as their share of the spectrum.
        """
        whole = self._whole(x)
        expected = self._cut(whole)
        least = np.linalg.norm(whole.ravel()) * math.sqrt(expected.size / whole.size)
        return relative_error(found, expected, float(least))

    def _whole(self, x: torch.Tensor) -> np.ndarray:
        # float32 values of a lazy conjugate are resolved by numpy's view
        field = x.detach().resolve_conj().numpy()
        field = field.astype(np.complex128 if np.iscomplexobj(field) else np.float64)
        for at, dim in enumerate(self.dims):
            kept, most = self.modes[at], self._most(at)
            if self.inverse and kept is not None and not self._is_half(at):
                field = _spread(field, dim, kept, most)
        base = self.name.rstrip("2n")
        whole: np.ndarray = getattr(np.fft, f"{base}n")(
            field, s=self.points, axes=self.dims, norm=self.norm
        )
        return whole

    def _cut(self, whole: np.ndarray) -> np.ndarray:
        for at, dim in enumerate(self.dims):
            kept = self.modes[at]
            if not self.inverse and kept is not None:
                tail = 0 if self._is_half(at) else kept // 2
                places = [*range(kept - tail), *range(whole.shape[dim] - tail, whole.shape[dim])]
                whole = whole.take(places, axis=dim)
        return whole

    def _is_half(self, at: int) -> bool:
        return self.half and at == len(self.dims) - 1

    def __repr__(self) -> str:
        return f"{self.name} {self.shape} {self.x.stride()} {self.arguments}"


def _spread(field: np.ndarray, dim: int, kept: int, most: int) -> np.ndarray:
    """A truncated spectrum in FFT order among zeros."""
    shape = list(field.shape)
    shape[dim] = most
    whole = np.zeros(shape, field.dtype)
    at = np.moveaxis(whole, dim, 0)
    values = np.moveaxis(field, dim, 0)
    head = (kept + 1) // 2
    at[:head] = values[:head]
    at[most - (kept - head) :] = values[head:]
    return whole


def relative_error(found: torch.Tensor, expected: np.ndarray, least: float = 0.0) -> float:
    """The L2 norm of the difference, as a share of the expected norm or, if that is smaller, of `least`."""
    assert tuple(found.shape) == expected.shape
    values = found.detach().resolve_conj()
    wide = values.to(torch.complex128 if values.is_complex() else torch.float64).numpy()
    scale = max(float(np.linalg.norm(expected.ravel())), least)
    return float(np.linalg.norm((wide - expected).ravel()) / (scale or 1.0))
