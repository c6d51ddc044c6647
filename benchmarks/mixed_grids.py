"""Eight fields on eight grids: one after another, with one mix of channels for all, or as one batch on the training grid.

`python -m benchmarks.mixed_grids` writes results/mixed_grids.jsonl, on which decision 20 rests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import process_time

import numpy as np
import torch

from benchmarks.timing import medians, print_table, save
from turbofno.models.core.blocks import FourierBlock, Pointwise
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.fno import FNO, positions
from turbofno.models.core.regrid import at_points, band_limited
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.pde import navier_stokes
from turbofno.models.zoo.problems import HELD_OUT_SEED, NAVIER_STOKES
from turbofno.models.zoo.train import relative_l2
from turbofno_ops import _gemm
from turbofno_ops._activations import activate_in_place
from turbofno_ops._channels import mix, mode_major, skip_and_bias

GRIDS = (48, 54, 61, 64, 72, 80, 85, 96)


def one_mix(module: FNO, fields: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Fields [1, 1, *grid] of different grids: everything a grid at a time, but each layer's mix of channels at once."""
    arch = module.arch
    xs = [_lifted(module, x) for x in fields]
    for block in module.blocks:
        assert isinstance(block, FourierBlock)
        weight, skip = block.spectral_weight, block.skip
        assert isinstance(skip, Pointwise)
        modes = weight.shape[2:]
        z = torch.cat([_gemm.analyze(x, modes) for x in xs], dim=-2)
        spectra = mix(z, mode_major(weight)).split([len(x) for x in xs], dim=-2)
        nexts = []
        for x, spectrum in zip(xs, spectra, strict=True):
            shape = (len(x), weight.shape[1], *x.shape[2:])
            y = skip_and_bias(x, skip.weight, skip.bias, shape)
            y = _gemm.synthesize(spectrum, x.shape[2:], onto=y)
            last = block is module.blocks[-1]
            nexts.append(y if last else activate_in_place(y, arch.activation))
        xs = nexts
    return [module.projection(x) * module.output_std + module.output_mean for x in xs]


def _lifted(module: FNO, x: torch.Tensor) -> torch.Tensor:
    grid = positions(module.arch, x.shape[2:], x.dtype)
    x = (x - module.input_mean) / module.input_std
    return module.lifting(torch.cat([x, grid.expand(len(x), *grid.shape)], dim=1))


def speeds() -> Iterator[dict[str, object]]:
    """Processor milliseconds for eight fields on eight grids. Raises RuntimeError if two ways disagree."""
    model = load_model(TRAINED / NAVIER_STOKES.name)
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
        seconds=30.0,
        clock=process_time,
    )
    for what, seconds in times.items():
        yield {"what": what, "processor ms": seconds * 1e3}


def main() -> None:
    """Measure and keep the result: time of one processor core, which other programs do not change much."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = list(speeds())
    grids = ", ".join(map(str, GRIDS))
    print_table(
        f"{NAVIER_STOKES.name}, a field on each square grid of {grids} points, one thread, medians of processor time",
        rows,
    )
    print(f"written to {save('mixed_grids', rows)}")


if __name__ == "__main__":
    main()
