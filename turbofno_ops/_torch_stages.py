"""The stages in plain PyTorch, from the matrix products of _gemm: float32 or float64, any device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from turbofno_ops import _gemm
from turbofno_ops._activations import activate_in_place
from turbofno_ops._channels import mix, pointwise, skip_and_bias
from turbofno_ops._stages import Layer, Projection


@dataclass(frozen=True)
class TorchStages:
    """Stages on a grid of `size` (h, w) that keep `modes` (modes_h, modes_w)."""

    size: tuple[int, int]
    modes: tuple[int, int]

    def analyze(self, x: torch.Tensor) -> torch.Tensor:
        return _gemm.analyze_last(x, self.modes[1])

    def mix(self, spectra: torch.Tensor, layer: Layer) -> torch.Tensor:
        z = mix(_gemm.analyze_others(spectra, self.modes[:1]), layer.weight)
        return _gemm.synthesize_others(z, self.size[:1])

    def rows(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (*spectra.shape[:3], self.size[1])
        onto = skip_and_bias(x, layer.skip, layer.bias, shape)
        y = _gemm.synthesize_last(spectra, self.size[1], onto=onto)
        y = activate_in_place(y, layer.activation)
        return y, spectra[..., :0] if last else self.analyze(y)

    def project(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, projection: Projection
    ) -> torch.Tensor:
        y, _ = self.rows(spectra, x, layer, last=True)
        return pointwise(y, projection.weight, projection.bias)
