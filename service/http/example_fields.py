"""Fields for the examples of the API's documentation: drawn as the zoo's training data is, so that no answer warns."""

from __future__ import annotations

import math

import numpy as np

_SEED = 0


def burgers_field(points: int = 256) -> list[float]:
    """An initial velocity of burgers-1d: N(0, 625 (-Laplacian + 25 I)^-2), periodic, of zero mean."""
    noise = np.random.default_rng(_SEED).normal(size=points)
    k = np.fft.rfftfreq(points, 1 / points)
    deviation = 25.0 / (4 * math.pi**2 * k**2 + 25.0)
    deviation[0] = 0.0
    field = np.fft.irfft(np.fft.rfft(noise) * deviation, n=points) * math.sqrt(points)
    return [round(value, 4) for value in field.tolist()]


def vorticity_field(points: int = 64) -> list[list[float]]:
    """An initial vorticity of navier-stokes-2d: N(0, 2 * 7^3 (-Laplacian + 49 I)^-2.5), periodic, of zero mean."""
    noise = np.random.default_rng(_SEED).normal(size=(points, points))
    k = np.fft.fftfreq(points, 1 / points)
    squared = k[:, None] ** 2 + k**2
    deviation = math.sqrt(2 * 7.0**3) * (4 * math.pi**2 * squared + 49.0) ** -1.25
    deviation[0, 0] = 0.0
    field = np.fft.ifft2(np.fft.fft2(noise) * deviation).real * points
    return [[round(value, 3) for value in row] for row in field.tolist()]
