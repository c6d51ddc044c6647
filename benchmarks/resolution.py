"""Error of a network by the grid that it runs on, when input and output grids differ: `python -m benchmarks.resolution`.

The network can run on the grid of the input, of the output, or of its training, with interpolation before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from scipy.interpolate import make_interp_spline

from benchmarks.timing import no_options, print_table, save
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.regrid import Boundary, at_points, band_limited
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.pde import burgers, darcy, navier_stokes
from turbofno.models.zoo.problems import BURGERS, DARCY, HELD_OUT_SEED, NAVIER_STOKES
from turbofno.models.zoo.train import relative_l2

Row = dict[str, object]
Bring = Callable[[torch.Tensor, Sequence[int]], torch.Tensor]

PAIRS = {
    BURGERS.name: ((64, 64), (64, 1024), (256, 8192), (1024, 64), (8192, 8192), (8192, 256)),
    DARCY.name: (
        (43, 43), (43, 85), (61, 106), (85, 141), (85, 421), (106, 106),
        (141, 85), (211, 106), (421, 43), (421, 421),
    ),
    NAVIER_STOKES.name: (
        (32, 32), (32, 64), (32, 192), (48, 96), (64, 96), (64, 192), (96, 96),
        (96, 48), (192, 32), (192, 64), (192, 192),
    ),
}  # fmt: skip


def held_out(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and solutions float32 [samples, 1, *grid] on a fine grid; coarser grids are every k-th point of it."""
    if name == BURGERS.name:
        u0 = burgers.sample_inputs(range(20), seed=HELD_OUT_SEED, n=8192)
        return u0[:, None].float(), burgers.solve(u0)[:, None].float()
    if name == DARCY.name:
        a = darcy.sample_inputs(range(10), seed=HELD_OUT_SEED)
        return a[:, None].float(), darcy.solve(a)[:, None].float()
    w0 = navier_stokes.sample_inputs(
        range(10), seed=HELD_OUT_SEED, n=192, device="cpu", dtype=torch.float32
    )
    frames = navier_stokes.solve(w0, times=[10.0, 11.0])
    return frames[:, :1], frames[:, 1:]


def errors(name: str) -> Iterator[Row]:
    """Mean relative L2 on the output grid, for the network run on each of the three grids."""
    model = load_model(TRAINED / name)
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
        cubic = "on the training grid, cubic splines"
        if spec.boundary == "nodes":
            answers[cubic] = _cubic(model.module(_cubic(x, spec.training)), size)
        mean = {how: float(relative_l2(y, truth).mean()) for how, y in answers.items()}
        row = {"model": name, "from": given, "to": asked, "samples": len(x), **mean}
        yield {**row, cubic: mean.get(cubic)}


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


def main() -> None:
    """Measure all models; write results/resolution.jsonl."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = [row for name in PAIRS for row in errors(name)]
    for name in PAIRS:
        print_table(f"{name}, mean relative L2", [row for row in rows if row["model"] == name])
    print(f"written to {save('resolution', rows)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
