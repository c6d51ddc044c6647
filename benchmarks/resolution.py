"""Where to run a network that is asked on one grid and answers on another: its error at each place, against the solvers.

And what one mix of channels for fields of several grids would save on this machine. `python -m benchmarks.resolution`
writes results/resolution.jsonl; decision 20 rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from scipy.interpolate import make_interp_spline

from benchmarks.timing import medians, print_table, save
from models.blocks import FourierBlock, activate
from models.checkpoint import load_model
from models.evaluate import ZOO
from models.fno import FNO, positions
from models.pde import burgers, darcy, navier_stokes
from models.problems import HELD_OUT_SEED
from models.regrid import Boundary, at_points, band_limited
from models.train import relative_l2
from turbofno_ops import _gemm
from turbofno_ops._channels import mix, mode_major, skip_and_bias

Row = dict[str, object]
Bring = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]

BURGERS, DARCY, FLOW = "burgers-1d", "darcy-2d", "navier-stokes-2d"
PAIRS = {
    BURGERS: ((64, 64), (64, 1024), (256, 8192), (1024, 64), (8192, 8192), (8192, 256)),
    DARCY: (
        (43, 43), (43, 85), (61, 106), (85, 141), (85, 421), (106, 106),
        (141, 85), (211, 106), (421, 43), (421, 421),
    ),
    FLOW: (
        (32, 32), (32, 64), (32, 192), (48, 96), (64, 96), (64, 192), (96, 96),
        (96, 48), (192, 32), (192, 64), (192, 192),
    ),
}  # fmt: skip
GRIDS = (48, 54, 61, 64, 72, 80, 85, 96)
"""Of the fields that are run together."""


def held_out(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and solutions float32 [samples, 1, *grid] on a fine grid, of which the others are every k-th point."""
    if name == BURGERS:
        u0 = burgers.sample_inputs(range(50), seed=HELD_OUT_SEED, n=8192)
        return u0[:, None].float(), burgers.solve(u0)[:, None].float()
    if name == DARCY:
        a = darcy.sample_inputs(range(20), seed=HELD_OUT_SEED)
        return a[:, None].float(), darcy.solve(a)[:, None].float()
    w0 = navier_stokes.sample_inputs(
        range(20), seed=HELD_OUT_SEED, n=192, device="cpu", dtype=torch.float32
    )
    frames = navier_stokes.solve(w0, times=[10.0, 11.0])
    return frames[:, :1], frames[:, 1:]


def errors(name: str) -> Iterator[Row]:
    """Mean relative L2 on the output grid, of the network run on the input's, the output's and its training grid."""
    model = load_model(ZOO / name)
    spec = model.config.grid
    onto, into = (partial(_bring, how, spec.boundary) for how in (at_points, band_limited))
    inputs, truths = held_out(name)
    for given, asked in PAIRS[name]:
        x = _every(inputs, given, spec.boundary)
        truth = _every(truths, asked, spec.boundary)
        size = (asked,) * len(spec.training)
        answers = {
            "on the input's grid": onto(model.module(x), size),
            "on the output's grid": model.module(into(x, size)),
            "on the training grid": onto(model.module(into(x, spec.training)), size),
        }
        if spec.boundary == "nodes":
            answers["on the training grid, cubic splines"] = _cubic(
                model.module(_cubic(x, spec.training)), size
            )
        yield {
            "model": name,
            "from": given,
            "to": asked,
            "samples": len(x),
            **{how: float(relative_l2(y, truth).mean()) for how, y in answers.items()},
        }


def _every(fields: torch.Tensor, points: int, boundary: Boundary) -> torch.Tensor:
    if boundary == "nodes":
        return darcy.subsample(fields, points).contiguous()
    every = slice(None, None, fields.shape[-1] // points)
    return fields[:, :, *[every] * (fields.ndim - 2)].contiguous()


def _bring(
    how: Callable[..., np.ndarray[tuple[int, ...], np.dtype[np.float32]]],
    boundary: Boundary,
    fields: torch.Tensor,
    size: Sequence[int],
) -> torch.Tensor:
    return torch.from_numpy(how(fields.numpy(), size, boundary))


def _cubic(fields: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    values = fields.numpy().astype(np.float64)
    for axis, points in enumerate(size, start=2):
        nodes = np.linspace(0, 1, values.shape[axis])
        values = make_interp_spline(nodes, values, axis=axis)(np.linspace(0, 1, points))
    return torch.from_numpy(values.astype(np.float32))


def one_mix(module: FNO, fields: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Fields [1, 1, *grid] of different grids: everything a grid at a time, but each layer's mix of channels at once."""
    arch = module.arch
    xs = [_lifted(module, x) for x in fields]
    for block in module.blocks:
        assert isinstance(block, FourierBlock)
        part = block.linear_part()
        modes = part.weight.shape[2:]
        z = torch.cat([_gemm.analyze(x, modes) for x in xs], dim=-2)
        spectra = mix(z, mode_major(part.weight)).split([len(x) for x in xs], dim=-2)
        nexts = []
        for x, spectrum in zip(xs, spectra, strict=True):
            shape = (len(x), part.weight.shape[1], *x.shape[2:])
            y = skip_and_bias(x, part.skip, part.bias, shape)
            y = _gemm.synthesize(spectrum, x.shape[2:], onto=y)
            last = block is module.blocks[-1]
            nexts.append(y if last else activate(y, arch.activation))
        xs = nexts
    return [module.projection(x) * module.output_std + module.output_mean for x in xs]


def _lifted(module: FNO, x: torch.Tensor) -> torch.Tensor:
    grid = positions(module.arch, x.shape[2:], x.dtype)
    x = (x - module.input_mean) / module.input_std
    return module.lifting(torch.cat([x, grid.expand(len(x), *grid.shape)], dim=1))


def speeds() -> Iterator[Row]:
    """Milliseconds for eight fields on eight grids. Raises RuntimeError if two ways disagree."""
    model = load_model(ZOO / FLOW)
    module, training = model.module, model.config.grid.training
    w0 = navier_stokes.sample_inputs(
        range(1), seed=HELD_OUT_SEED, n=192, device="cpu", dtype=torch.float32
    )
    xs = [torch.from_numpy(at_points(w0[:, None].numpy(), (n, n), "periodic")) for n in GRIDS]
    same = torch.cat([torch.from_numpy(at_points(xs[-1].numpy(), training, "periodic"))] * len(xs))

    def alone() -> list[torch.Tensor]:
        return [module(x) for x in xs]

    def on_training_grid() -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        brought = [band_limited(x.numpy(), training, "periodic") for x in xs]
        y = module(torch.from_numpy(np.concatenate(brought))).numpy()
        return [at_points(y[i : i + 1], (n, n), "periodic") for i, n in enumerate(GRIDS)]

    for one, other in zip(alone(), one_mix(module, xs), strict=True):
        difference = float(relative_l2(other, one))
        if not difference < 1e-5:
            raise RuntimeError(f"one mix differs by {difference:.1e} from the network itself")
    times = medians(
        {
            "each alone, on its own grid": alone,
            "own grids, one mix a layer": lambda: one_mix(module, xs),
            "one batch on the training grid, interpolation included": on_training_grid,
            "for comparison: eight fields that are on the training grid": lambda: module(same),
        },
        seconds=20.0,
    )
    for what, seconds in times.items():
        yield {"what": what, "ms": seconds * 1e3}


def main() -> None:
    """Measure all of it and keep the result."""
    with torch.inference_mode():
        accuracy = [row for name in PAIRS for row in errors(name)]
        timing = list(speeds())
    print_table("relative L2 against the solvers", accuracy)
    grids = ", ".join(map(str, GRIDS))
    print_table(f"{FLOW}, eight fields on square grids of {grids} points, medians", timing)
    print(f"written to {save('resolution', accuracy + timing)}")


if __name__ == "__main__":
    main()
