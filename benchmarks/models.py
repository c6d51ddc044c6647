"""Forward pass of whole models: ours, and the same network in neuraloperator 2.0."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.neuraloperator_twin import twin
from benchmarks.timing import medians, no_options, print_table, save
from turbofno.models.core.architecture import ChannelMLP, FNOArchitecture
from turbofno.models.core.fno import FNO

_LARGEST_DIFFERENCE = 1e-4
_SECONDS = 2.0

# No odd grids: there neuraloperator 2.0.0 shifts the spectrum back by one frequency too few and computes something else.
CASES = (
    (1, (64, 64), 32, (24, 12)),
    (8, (64, 64), 32, (24, 12)),
    (1, (94, 94), 32, (24, 12)),
    (8, (128, 128), 32, (24, 12)),
    (1, (128, 128), 64, (64, 33)),
    (8, (1024,), 64, (16,)),
)


def measure(
    batch: int, size: tuple[int, ...], hidden: int, modes: tuple[int, ...]
) -> dict[str, object]:
    """One row. Raises RuntimeError if the two libraries disagree."""
    arch = FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=hidden,
        n_layers=4,
        modes=modes,
        lifting_channels=(2 * hidden,),
        projection_channels=(2 * hidden,),
        skip_bias=False,
        spectral_bias=True,
        channel_mlp=ChannelMLP(hidden_channels=hidden // 2),
        positional_grid="endpoint_excluded",
    )
    ours = FNO(arch).eval().requires_grad_(False)
    theirs = twin(ours).requires_grad_(False)
    x = torch.randn(batch, 1, *size)
    difference = float((ours(x) - theirs(x)).norm() / theirs(x).norm())
    if not difference <= _LARGEST_DIFFERENCE:
        raise RuntimeError(f"the two models differ by {difference:.2e}")
    times = medians({"ours": partial(ours, x), "theirs": partial(theirs, x)}, seconds=_SECONDS)
    return {
        "model": f"B{batch} {'x'.join(map(str, size))} C{hidden} m{'x'.join(map(str, modes))}",
        "turbofno ms": times["ours"] * 1e3,
        "neuraloperator ms": times["theirs"] * 1e3,
        "speed-up": times["theirs"] / times["ours"],
        "difference": difference,
    }


def main() -> None:
    """Measure all cases; write results/models.jsonl."""
    with torch.inference_mode():
        rows = [measure(*case) for case in CASES]
    print_table(f"4-layer FNO forward, {torch.get_num_threads()} threads, medians", rows)
    print(f"written to {save('models', rows)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
