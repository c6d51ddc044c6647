"""The Fourier neural operator as a torch module, with inputs and outputs in physical units."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.blocks import FourierBlock, PointwiseMLP, broadcast
from turbofno.models.core.chain_steps import chain_steps
from turbofno.models.core.config import FieldNormalization, Normalization, Precision
from turbofno.models.core.resample import resample
from turbofno_ops import FNODescription, Scaling
from turbofno_ops._autocast import without_autocast


class FNO(nn.Module):
    """Fourier neural operator: lift, Fourier blocks, project (Li et al. 2020, Figure 2).

    Maps fields in physical units, [batch, in_channels, *grid] -> [batch, out_channels, *grid], float32 (float64
    after `.double()`), on any grid that holds the kept modes, also inside of torch.autocast.

    The state dict has no normalisation per channel, which config.json holds.
    """

    input_mean: torch.Tensor
    input_std: torch.Tensor
    output_mean: torch.Tensor
    output_std: torch.Tensor

    def __init__(
        self,
        arch: FNOArchitecture,
        normalization: Normalization | FieldNormalization | None = None,
    ) -> None:
        super().__init__()
        self.arch = arch
        self.normalization = normalization
        self.normalized = normalization is not None
        if isinstance(normalization, FieldNormalization):
            for side, channels in (("input", arch.in_channels), ("output", arch.out_channels)):
                self.register_buffer(f"{side}_mean", torch.zeros(channels, *normalization.grid))
                self.register_buffer(f"{side}_std", torch.ones(channels, *normalization.grid))
        elif normalization is not None:
            for name, values in normalization:
                # not in the state dict: config.json holds them
                self.register_buffer(name, torch.tensor(values), persistent=False)
        grid_channels = 0 if arch.positional_grid == "none" else arch.n_dim
        width = arch.hidden_channels
        lifting = (arch.in_channels + grid_channels, *arch.lifting_channels, width)
        self.lifting = PointwiseMLP(lifting, arch.lifting_activation or arch.activation)
        self.blocks = nn.ModuleList(FourierBlock(arch, layer) for layer in range(arch.n_layers))
        projection = (width, *arch.projection_channels, arch.out_channels)
        self.projection = PointwiseMLP(projection, arch.projection_activation or arch.activation)
        # whatever torch's default dtype is
        to_precision(self, torch.float32)
        self.register_state_dict_post_hook(_note_normalization)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_check_normalization)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with without_autocast(x.device):
            return self._forward(x)

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalized:
            x = (x - broadcast(self.input_mean, x)) / broadcast(self.input_std, x)
        if self.arch.positional_grid != "none":
            grid = positions(self.arch, x.shape[2:], x.dtype, x.device)
            x = torch.cat([x, grid.expand(x.shape[0], *grid.shape)], dim=1)
        x = self.lifting(x)
        padding = padding_points(self.arch, x.shape[2:])
        x = _pad(x, self.arch, padding)
        for block in self.blocks:
            x = block(x)
        x = _crop(x, padding)
        x = self.projection(x)
        if self.normalized:
            x = x * broadcast(self.output_std, x) + broadcast(self.output_mean, x)
        return x

    def double(self) -> Self:
        """Cast to float64, including the complex weights, which `nn.Module.double` does not cast."""
        to_precision(self, torch.float64)
        if isinstance(self.normalization, Normalization):
            for name, values in self.normalization:
                # the values of config.json, not their float32 roundings
                self.get_buffer(name).copy_(torch.tensor(values, dtype=torch.float64))
        return self

    def float(self) -> Self:
        """Cast to float32, including the complex weights."""
        return to_precision(self, torch.float32)

    def compute_in(self, precision: Precision) -> Self:
        """Set the precision of the Fourier layers (see `fourier_layer`); everything else stays float32."""
        for block in self.modules():
            if isinstance(block, FourierBlock):
                block.precision = precision
        return self

    def description(self) -> FNODescription:
        """Description of this network for `turbofno_ops.compile_fno`; it shares the weights.

        Raises:
            ChainRefused: a block has a step that chains do not support; the message names it.
        """
        arch = self.arch
        inputs = outputs = None
        if self.normalized:
            inputs = Scaling(self.input_mean, self.input_std)
            outputs = Scaling(self.output_mean, self.output_std)
        padding = arch.domain_padding
        return FNODescription(
            in_channels=arch.in_channels,
            lifting=self.lifting.maps(),
            blocks=tuple(chain_steps(b) for b in self.blocks if isinstance(b, FourierBlock)),
            projection=self.projection.maps(),
            lifting_activation=self.lifting.activation,
            projection_activation=self.projection.activation,
            inputs=inputs,
            outputs=outputs,
            positions=partial(positions, arch) if arch.positional_grid != "none" else None,
            padding=None if padding is None else partial(padding_points, arch),
            padding_mode="zeros" if padding is None else padding.mode,
            resample=resample if arch.resolution_scaling else None,
        )


def _note_normalization(
    module: FNO, _state: object, _prefix: str, metadata: dict[str, Any]
) -> None:
    """Note in a state dict's metadata, which torch.save keeps, whether its network is normalised."""
    metadata["normalized"] = module.normalized


def _check_normalization(
    module: FNO, _state: object, _prefix: str, metadata: dict[str, Any], *given: Any
) -> None:
    """Add an error if only one of state dict and network is normalised: answers would be wrong without a word."""
    errors: list[str] = given[-1]
    noted = metadata.get("normalized", module.normalized)
    if noted != module.normalized:
        kinds = {True: "with a normalisation", False: "without normalisation"}
        errors.append(
            f"the state dict is that of an FNO {kinds[noted]}, this one was made {kinds[module.normalized]}: give "
            "FNO(config.architecture, config.normalization) that of config.json, or load dict(state_dict) if you mean it"
        )


M = TypeVar("M", bound=nn.Module)


def to_precision(module: M, dtype: torch.dtype) -> M:
    """Cast every parameter and buffer of a module to `dtype`, complex ones to the complex dtype of that precision."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.to(dtype.to_complex() if tensor.is_complex() else dtype)
    return module


def positions(
    arch: FNOArchitecture,
    size: Sequence[int],
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> torch.Tensor:
    """The coordinates of every grid point in [0, 1], one channel per axis: [n_dim, *size]."""
    included = arch.positional_grid == "endpoint_included"
    start = 0.5 if arch.positional_grid == "cell_centres" else 0.0
    axes = [
        (torch.arange(n, dtype=dtype, device=device) + start) / max(n - 1 if included else n, 1)
        for n in size
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


def padding_points(arch: FNOArchitecture, size: tuple[int, ...]) -> list[tuple[int, int]]:
    """Padding points before and after each axis of a grid of `size`; empty without domain padding."""
    padding = arch.domain_padding
    if padding is None:
        return []
    if padding.points is not None:
        amounts = list(padding.points)
    else:
        assert padding.fraction is not None
        amounts = [round(f * n) for f, n in zip(padding.fraction, size, strict=True)]
    return [(amount if padding.sides == "both" else 0, amount) for amount in amounts]


def _pad(x: torch.Tensor, arch: FNOArchitecture, padding: list[tuple[int, int]]) -> torch.Tensor:
    if arch.domain_padding is None:
        return x
    mode = arch.domain_padding.mode
    # F.pad counts from the last axis
    amounts = [p for pair in reversed(padding) for p in pair]
    return F.pad(x, amounts, mode="constant" if mode == "zeros" else mode)


def _crop(x: torch.Tensor, padding: list[tuple[int, int]]) -> torch.Tensor:
    for axis, (before, after) in enumerate(padding, start=2):
        x = x.narrow(axis, before, x.shape[axis] - before - after)
    return x
