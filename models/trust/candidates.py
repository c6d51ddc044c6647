"""Signals that were tried and do not earn their place; docs/trust.md has the figures, models/trust/evaluation.py makes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from turbofno.models.core.config import ModelConfig


def conservation(inputs: Tensor, outputs: Tensor) -> Tensor:
    """[n]: change of the mean of [n, points, ...], over the output's rms. Burgers' equation and vorticity keep it."""
    axes = tuple(range(1, inputs.ndim))
    change = (outputs.mean(axes) - inputs.mean(axes)).abs()
    return change / outputs.square().mean(axes).sqrt()


def darcy_energy(a: Tensor, u: Tensor) -> Tensor:
    """[n]: |integral of a |grad u|^2 - integral of u|, over the latter: what flows must equal what is put in."""
    n = a.shape[-1]
    along_x = (a[:, 1:] + a[:, :-1]) / 2 * (u[:, 1:] - u[:, :-1]).square()
    along_y = (a[:, :, 1:] + a[:, :, :-1]) / 2 * (u[:, :, 1:] - u[:, :, :-1]).square()
    spent = along_x.sum((1, 2)) + along_y.sum((1, 2))
    given = u.sum((1, 2)) / (n - 1) ** 2
    return (spent - given).abs() / given.abs()


def energy_balance(w0: Tensor, w1: Tensor, *, nu: float, time: float) -> Tensor:
    """[n]: what the change of kinetic energy differs from viscous loss plus work of the forcing (trapezium), over it."""
    n = w0.shape[-1]
    both = torch.stack([w0, w1])
    spectrum = torch.fft.rfft2(both, norm="forward")
    kx = torch.fft.fftfreq(n, 1 / n)[:, None]
    ky = torch.arange(n // 2 + 1)
    squared = 4 * math.pi**2 * (kx**2 + ky**2)
    weight = torch.full((n // 2 + 1,), 2.0)
    weight[0] = 1.0
    power = spectrum.abs().square() * weight
    energy = (power / squared.clamp_min(1)).sum((-1, -2)) / 2
    # the forcing is the mode (1, 1) with the coefficient 0.05 - 0.05 i
    forced = spectrum[..., 1, 1]
    work = 2 * (0.05 * forced.real - 0.05 * forced.imag) / (8 * math.pi**2)
    rate = work - nu * power.sum((-1, -2))
    balance = energy[1] - energy[0] - time / 2 * rate.sum(0)
    return balance.abs() / energy[1]


def consistency(
    model: Callable[[Tensor], Tensor], config: ModelConfig, inputs: Tensor, outputs: Tensor
) -> Tensor | None:
    """[n]: relative difference between the answer on every second point and the answer of every second point.

    None on grids whose half the model does not serve. Takes [n, channels, *grid].
    """
    every_second = (slice(None), slice(None), *[slice(None, None, 2)] * (inputs.ndim - 2))
    coarse = inputs[every_second].contiguous()
    if any(size < least for size, least in zip(coarse.shape[2:], config.grid.minimum, strict=True)):
        return None
    fine = outputs[every_second].flatten(1)
    return (model(coarse).flatten(1) - fine).norm(dim=1) / fine.norm(dim=1)
