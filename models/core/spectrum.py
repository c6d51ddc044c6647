"""Placement of a spectral layer's kept modes on a grid, by the rules of the library that trained them.

`spectral_conv` keeps the frequencies -(K//2) .. (K+1)//2 - 1 of an axis, needs a grid that holds them, and returns
each to its own bin. Other libraries use other rules, and their trained weights depend on them:

mode_placement, on every axis but the last (the last one keeps its lowest columns, as many as fit):
    exact               as spectral_conv; grids that are too small are refused
    centred             a small grid uses the middle rows of the weight (neuraloperator 2)
    floor_window        as centred, but the window starts at (n - K)//2 of the shifted spectrum: one bin
                        lower for odd K on even grids (neuraloperator up to 1.0)
    corners_overwrite   the first and last K/2 rows of the spectrum; where they overlap on a small grid, the last
                        rows overwrite the first (the original scripts, PhysicsNeMo 1)
    corners_add         as above, but overlapping rows are added (PhysicsNeMo 2)
odd_axes_rolled: on axes of odd size except the last, the inverse shift of the spectrum is one bin off:
    frequency f is returned as f - 1 (neuraloperator up to 2.0.0 calls fftshift instead of ifftshift).
resolution_scaling: the spectrum of n bins is truncated or zero-padded at its end, so that negative frequencies
    move by n or are lost (neuraloperator calls irfftn(s=...) on an unshifted spectrum).

All rules are expressed as weights for spectral_conv: rows are selected, repeated or zeroed. Moving a frequency by s
multiplies the complex field G, whose real part the layer returns, by exp(2 pi i s x / n), and
    Re(exp(i phi) G) = cos(phi) Re(G) - sin(phi) Im(G) = cos(phi) S(W) + sin(phi) S(iW)
with S(W) = Re(G), what spectral_conv gives for the weight W.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

from turbofno.models.core.architecture import FNOArchitecture, ModePlacement
from turbofno.models.core.config import Precision
from turbofno_ops import SpectralTerm, spectral_conv

Rows = dict[int, list[int]]
"""Kept frequency -> rows of the stored weight (in FFT order) whose sum is its weight."""


def is_plain(arch: FNOArchitecture, size: Sequence[int]) -> bool:
    """True if `spectral_conv` with the stored weight computes the layer on a (padded) grid of `size`."""
    if arch.resolution_scaling:
        return False
    for count, n in zip(arch.modes[:-1], size[:-1], strict=True):
        if arch.odd_axes_rolled and n % 2:
            return False
        if arch.mode_placement != "exact" and count > n:
            return False
        if arch.mode_placement == "floor_window" and count % 2 and n % 2 == 0:
            return False
    return arch.mode_placement == "exact" or arch.modes[-1] <= size[-1] // 2 + 1


def spectral(
    x: torch.Tensor,
    weight: torch.Tensor,
    arch: FNOArchitecture,
    out_size: Sequence[int] | None = None,
    *,
    precision: Precision = "fp32",
) -> torch.Tensor:
    """The spectral convolution of `arch` on any grid, with the mode placement described above.

    Args:
        x: real [batch, c_in, *grid].
        weight: complex [c_in, c_out, *modes].
        out_size: the grid after resolution scaling; None: that of x.
        precision: see `spectral_conv`.

    Returns:
        Real field [batch, c_out, *out_size].

    Raises:
        ValueError: the grid is too small (only with `mode_placement="exact"`).
    """
    size = tuple(x.shape[2:])
    target = size if out_size is None else tuple(out_size)
    weights: list[torch.Tensor] = []
    factors: list[torch.Tensor | None] = []
    for placed, phase in spectral_terms(arch, weight, size, target):
        if phase is None:
            weights.append(placed)
            factors.append(None)
        else:
            weights += [placed, 1j * placed]
            factors += [phase.cos().to(x)[..., None], phase.sin().to(x)[..., None]]
    counts = list(weights[0].shape[2:-1])
    joined = torch.cat(weights, dim=1)
    fields = _on_any_grid(x, joined, counts, target, precision).chunk(len(weights), dim=1)
    terms = [
        field if factor is None else factor * field
        for field, factor in zip(fields, factors, strict=True)
    ]
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]


def spectral_terms(
    arch: FNOArchitecture, weight: torch.Tensor, size: Sequence[int], target: Sequence[int]
) -> list[SpectralTerm]:
    """The spectral convolution of `arch` from one grid to another as a sum of plain `spectral_conv` terms with phases.

    weight is complex [c_in, c_out, *modes]. If no frequency moves, there is one term, with `weight` itself.
    """
    if arch.mode_placement != "exact":
        weight = weight[..., : min(size[-1], target[-1]) // 2 + 1]
    axes = []
    for count, n, m in zip(arch.modes[:-1], size[:-1], target[:-1], strict=True):
        rows = _kept(arch.mode_placement, count, n)
        axes.append(_moved(rows, n, m, rolled=arch.odd_axes_rolled))
    counts = [_modes_holding(axis.values()) for axis in axes]
    terms = []
    for group in itertools.product(*(axis.items() for axis in axes)):
        placed = weight
        for axis, ((_, rows), count) in enumerate(zip(group, counts, strict=True), start=2):
            placed = _select(placed, axis, rows, count)
        terms.append(SpectralTerm(placed, _phase([shift for shift, _ in group], target[:-1])))
    return terms


def _on_any_grid(
    x: torch.Tensor,
    weight: torch.Tensor,
    counts: list[int],
    target: tuple[int, ...],
    precision: Precision,
) -> torch.Tensor:
    """`spectral_conv` onto `target`; if it is too coarse for the modes, through a finer grid that contains it."""
    steps = [*(-(-count // n) for count, n in zip(counts, target[:-1], strict=True)), 1]
    fine = [n * step for n, step in zip(target, steps, strict=True)]
    y = spectral_conv(x, weight, out_size=fine, precision=precision)
    every = tuple(slice(None, None, step) for step in steps)
    return y[:, :, *every] if max(steps) > 1 else y


def _kept(placement: ModePlacement, count: int, n: int) -> Rows:
    """The kept frequencies of an axis of n points, for a weight with `count` rows (in FFT order)."""
    if placement in ("centred", "floor_window"):
        fit = min(count, n)
        lowest = -(fit // 2) if placement == "centred" else (n - fit) // 2 - n // 2
        first = (count - fit) // 2 - count // 2
        return {lowest + i: [(first + i) % count] for i in range(fit)}
    if placement == "exact" or n >= count:
        return {f: [f % count] for f in _signed(count)}
    corner = count // 2
    rows: Rows = {}
    for bin_ in range(n):
        front = [bin_] if bin_ < corner else []
        back = [count - n + bin_] if bin_ >= n - corner else []
        frequency = bin_ if bin_ < (n + 1) // 2 else bin_ - n
        rows[frequency] = front + back if placement == "corners_add" else back or front
    return rows


def _moved(rows: Rows, n: int, target: int, *, rolled: bool) -> dict[int, Rows]:
    """The rows grouped by the distance that the layer moves a frequency; lost frequencies are left out."""
    groups: dict[int, Rows] = {}
    for frequency, sources in rows.items():
        place = frequency - 1 if rolled and n % 2 else frequency
        if target != n:
            place %= n
            if place >= target:
                continue
        groups.setdefault(place - frequency, {})[frequency] = sources
    return groups or {0: {}}


def _modes_holding(groups: Iterable[Rows]) -> int:
    """Number of modes with which `spectral_conv` keeps all of these frequencies of an axis."""
    frequencies = [frequency for rows in groups for frequency in rows]
    return max([1, *(2 * f + 1 if f >= 0 else -2 * f for f in frequencies)])


def _select(weight: torch.Tensor, axis: int, rows: Rows, count: int) -> torch.Tensor:
    """The weight with `count` modes on an axis, in FFT order; each mode is the sum of its rows, or zero."""
    if count == weight.shape[axis] and rows == {f: [f % count] for f in _signed(count)}:
        return weight
    chosen = torch.zeros(count, weight.shape[axis], dtype=weight.dtype, device=weight.device)
    for frequency, sources in rows.items():
        chosen[frequency % count, sources] = 1
    return torch.tensordot(chosen, weight, dims=([1], [axis])).movedim(0, axis)


def _signed(count: int) -> range:
    return range(-(count // 2), (count + 1) // 2)


def _phase(shifts: Sequence[int], size: Sequence[int]) -> torch.Tensor | None:
    """2 pi times the sum over the axes of shift * x / n, float64 on the grid; None without shifts."""
    if not any(shifts):
        return None
    phase = torch.zeros(tuple(size), dtype=torch.float64)
    for axis, (shift, n) in enumerate(zip(shifts, size, strict=True)):
        turns = torch.arange(n, dtype=torch.float64) * shift % n / n
        phase += 2 * math.pi * turns.view(-1, *[1] * (len(size) - 1 - axis))
    return phase
