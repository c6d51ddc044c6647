"""Networks with the keys and results of the original FNO scripts, written from the published equations.

One class covers the three generations; what a script does beyond its parameters (padding, norm,
activation, where the coordinates go) is an argument here. `batch_norm_parameters` are those of norms that never ran.
Without `complex_pairs` generation A has complex weights, as in its ports to torch 1.8. Fields are
[batch, *grid, channels], as there.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class SpectralConv(nn.Module):
    """Multiply the corners of the half spectrum; later corners overwrite earlier ones."""

    def __init__(
        self, width: int, modes: tuple[int, ...], *, real: bool = False, out_in: bool = False
    ) -> None:
        super().__init__()
        self.modes, self.real = modes, real
        self.sum = "bi...,oi...->bo..." if out_in else "bi...,io...->bo..."
        for k in range(1 << (len(modes) - 1)):
            shape = (width, width, *modes)
            weight = torch.randn(*shape, 2) / width
            weight = weight if real else torch.view_as_complex(weight)
            self.register_parameter(f"weights{k + 1}", nn.Parameter(weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes = tuple(range(2, x.ndim))
        spectrum = torch.fft.rfftn(x, dim=axes)
        out = torch.zeros_like(spectrum)
        for k in range(1 << (len(axes) - 1)):
            weight = getattr(self, f"weights{k + 1}")
            weight = torch.view_as_complex(weight) if self.real else weight
            corner = [slice(None), slice(None)]
            for axis, m in enumerate(self.modes[:-1]):
                corner.append(slice(-m, None) if k >> axis & 1 else slice(None, m))
            corner.append(slice(None, self.modes[-1]))
            out[tuple(corner)] = torch.einsum(self.sum, spectrum[tuple(corner)], weight)
        return torch.fft.irfftn(out, s=x.shape[2:], dim=axes)


class MLP(nn.Module):
    """Two 1x1 convolutions with a GELU between them (generation C)."""

    def __init__(self, conv: Any, c_in: int, c_out: int, c_mid: int) -> None:
        super().__init__()
        self.mlp1, self.mlp2 = conv(c_in, c_mid, 1), conv(c_mid, c_out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp2(F.gelu(self.mlp1(x)))


class Script(nn.Module):
    """A network of generation "A", "B" or "C". `channels` counts data channels only."""

    def __init__(
        self,
        generation: str,
        modes: tuple[int, ...],
        width: int,
        channels: int,
        out_channels: int,
        *,
        n_layers: int = 4,
        padding: tuple[int, ...] = (),
        norm: str = "none",
        batch_norm_parameters: bool = False,
        activation: Any = F.gelu,
        grid_order: str = "ij",
        grid_place: str = "after",
        grid_end: float = 1.0,
        flat_skips: bool = False,
        out_in: bool = False,
        complex_pairs: bool = True,
        last_activation: bool = False,
    ) -> None:
        super().__init__()
        n = len(modes)
        self.generation, self.n_layers, self.norm = generation, n_layers, norm
        self.pads = padding or (0,) * n
        self.activation, self.grid_order, self.grid_place = activation, grid_order, grid_place
        self.grid_end, self.flat_skips = grid_end, flat_skips or generation == "A"
        self.n_activations = n_layers if last_activation else n_layers - 1
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n - 1]
        lifting = nn.Linear(channels + n, width)
        if generation == "C":
            self.p = lifting
            self.q = MLP(conv, width, out_channels, width * 4)
        else:
            self.fc0 = lifting
            self.fc1, self.fc2 = nn.Linear(width, 128), nn.Linear(128, out_channels)
        pairs = generation == "A" and complex_pairs
        for i in range(n_layers):
            setattr(self, f"conv{i}", SpectralConv(width, modes, real=pairs, out_in=out_in))
            skip = nn.Conv1d if self.flat_skips else conv
            setattr(self, f"w{i}", skip(width, width, 1))
            if generation == "C":
                setattr(self, f"mlp{i}", MLP(conv, width, width, width))
            if norm == "batch":
                setattr(self, f"bn{i}", _busy_batch_norm(width))
            elif batch_norm_parameters:
                setattr(self, f"bn{i}", nn.BatchNorm1d(width))
                nn.init.uniform_(getattr(self, f"bn{i}").weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._with_grid(x)
        lifting = self.p if self.generation == "C" else self.fc0
        x = lifting(x).movedim(-1, 1)
        x = F.pad(x, [amount for pad in reversed(self.pads) for amount in (0, pad)])
        for i in range(self.n_layers):
            x = self._layer(x, i)
        for axis, pad in enumerate(self.pads, start=2):
            x = x.narrow(axis, 0, x.shape[axis] - pad)
        if self.generation == "C":
            return self.q(x).movedim(1, -1)
        return self.fc2(self.activation(self.fc1(x.movedim(1, -1))))

    def _layer(self, x: torch.Tensor, i: int) -> torch.Tensor:
        spectral, skip = getattr(self, f"conv{i}"), getattr(self, f"w{i}")
        instance = F.instance_norm if self.norm == "instance" else lambda y: y
        y = instance(spectral(instance(x)))
        if self.generation == "C":
            y = getattr(self, f"mlp{i}")(y)
        flat = x.flatten(2) if self.flat_skips else x
        y = y + skip(flat).view_as(y)
        if self.norm == "batch":
            y = getattr(self, f"bn{i}")(y)
        return self.activation(y) if i < self.n_activations else y

    def _with_grid(self, x: torch.Tensor) -> torch.Tensor:
        if self.grid_place == "caller":
            return x
        size = x.shape[1:-1]
        axes = [torch.linspace(0, self.grid_end, n, dtype=x.dtype) for n in size]
        columns = list(torch.meshgrid(*axes, indexing="ij"))
        if self.grid_order == "xy":
            columns[:2] = columns[1], columns[0]
        grid = torch.stack(columns, dim=-1).expand(x.shape[0], *size, len(size))
        return torch.cat([grid, x] if self.grid_place == "before" else [x, grid], dim=-1)


def _busy_batch_norm(width: int) -> nn.BatchNorm1d:
    """Batch normalisation with statistics and weights other than 0 and 1."""
    norm = nn.BatchNorm1d(width)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.2, 3)
    # statistics are per channel in any dimension
    norm._check_input_dim = lambda _: None
    return norm
