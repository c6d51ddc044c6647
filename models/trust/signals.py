"""Trust signals of a batch of inputs and outputs, as far as the model's configuration has the data for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from turbofno.models.core.config import BurgersResidual, DarcyResidual
from turbofno.models.core.statistics import INPUT_DISTANCE, LARGEST, RESIDUAL
from turbofno.models.trust import residuals
from turbofno.models.trust.features import (
    Spectrum,
    distance,
    features,
    resolved_features,
    spectrum_of,
    with_finer_octaves,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from turbofno.models.core.config import ModelConfig, Residual


class Signals:
    """A model's signals; none without statistics and without a declared PDE. Thread-safe."""

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu") -> None:
        """`device` is the device of the fields."""
        statistics, pde = config.statistics, config.pde
        self._distribution = None if statistics is None else statistics.distribution
        if statistics is not None and self._distribution is not None:
            known = self._distribution.inputs
            self._known = len(known[0].mean)
            scale, mean, deviation = (
                torch.tensor(values)
                for values in (
                    [channel.std for channel in statistics.inputs],
                    [channel.mean for channel in known],
                    [channel.std for channel in known],
                )
            )
            # Copied when they are complete: other streams of a GPU read them, and would not wait for kernels of this stream.
            tables = (scale, *with_finer_octaves(mean, deviation))
            self._scale, self._mean, self._deviation = (table.to(device) for table in tables)
        self._declared = None if pde is None else pde.residual

    def __call__(self, inputs: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        """Signal -> float32 [n] of inputs [n, in_channels, *grid] and outputs [n, out_channels, *grid].

        input_distance: distance from the training distribution; 1 in 100 training fields is above 1.
        residual: residual of the PDE, an estimate of the relative L2 error; absent on grids that it does not support.
        """
        spectrum = None if self._distribution is None else spectrum_of(inputs)
        found = self._input_distance(inputs, spectrum)
        residual = residual_on(self._declared, tuple(inputs.shape[2:]), spectrum)
        if residual is not None and inputs.shape[2:] == outputs.shape[2:]:
            found[RESIDUAL] = residual(inputs[:, 0], outputs[:, 0])
        return _bounded(found)

    def of_inputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Signals that need no outputs: input_distance."""
        return _bounded(self._input_distance(inputs))

    def _input_distance(
        self, inputs: Tensor, spectrum: Spectrum | None = None
    ) -> dict[str, Tensor]:
        if self._distribution is None:
            return {}
        resolved = min(self._known, resolved_features(tuple(inputs.shape[2:])))
        found = features(inputs, self._scale, spectrum)
        apart = distance(found, self._mean, self._deviation, resolved)
        return {INPUT_DISTANCE: apart / self._distribution.edge}


def _bounded(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.nan_to_num_(LARGEST).clamp_max_(LARGEST) for name, value in found.items()}


def residual_on(
    declared: Residual | None, grid: tuple[int, ...], spectrum: Spectrum | None = None
) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The declared residual as a function of input and output [n, *grid]; None on grids that it does not support.

    `spectrum` is that of the inputs, if it is known.
    """
    if declared is None:
        return None
    known = spectrum if spectrum is not None and spectrum.grid == grid else None
    residual: Callable[[Tensor, Tensor], Tensor]
    if isinstance(declared, DarcyResidual):
        least, residual = residuals.DARCY_LEAST, partial(residuals.darcy, source=declared.source)
    elif isinstance(declared, BurgersResidual):
        least = residuals.BURGERS_LEAST
        residual = partial(residuals.burgers, nu=declared.nu, time=declared.time, spectrum=known)
    else:
        least, of = residuals.NAVIER_STOKES_LEAST, residuals.navier_stokes
        residual = partial(of, nu=declared.nu, time=declared.time, spectrum=known)
    return None if min(grid) < least else residual
