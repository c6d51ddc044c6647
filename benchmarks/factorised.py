"""Factorised spectral weights: multiplied out once, as the importer does, against contracting the factors in each call.

`python -m benchmarks.factorised` times the channel product of one layer on a GPU, as a CUDA graph, and writes
results/factorised.jsonl. `benchmarks.tfno` times whole networks on a CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import tltorch
import torch
from neuralop.layers.spectral_convolution import get_contract_fun

from benchmarks.gpu.device import in_graph, milliseconds, require_gpu
from benchmarks.timing import no_options, print_table, save
from turbofno.models.importers.neuraloperator.spectral_weights import stored_weight
from turbofno_ops._channels import mix, mode_major

# width and kept modes
LAYERS = ((64, (16, 9)), (64, (24, 12)), (32, (12, 12, 7)))
# no CP with 0.42: its rank would be in the thousands, far above the width
WEIGHTS = (
    ("Tucker", 0.42), ("Tucker", 0.1), ("Tucker", 0.01), ("CP", 0.1), ("CP", 0.01), ("TT", 0.42), ("TT", 0.1),
)  # fmt: skip
BATCHES = (1, 32)
_TOLERANCE = 1e-4

Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to multiply a spectrum [batch, c, *modes]: `back(call(layout(z)))`; only `call` is timed."""

    call: Call
    layout: Callable[[torch.Tensor], torch.Tensor]
    back: Callable[[torch.Tensor], torch.Tensor]


def candidates(weight: Any) -> dict[str, Candidate]:
    """Ways to apply a tltorch weight, by name."""
    stored = stored_weight(dict(weight.state_dict()), "weight")
    n_dim = len(stored.shape) - 2
    dense = mode_major(stored.dense().to(torch.complex64)).contiguous()
    contract = get_contract_fun(weight, implementation="factorized", separable=False)

    def to_modes(z: torch.Tensor) -> torch.Tensor:
        return z.permute(*range(2, z.ndim), 0, 1).contiguous()

    def from_modes(z: torch.Tensor) -> torch.Tensor:
        return z.permute(n_dim, n_dim + 1, *range(n_dim))

    found = {
        "multiplied out": Candidate(lambda z: mix(z, dense), to_modes, from_modes),
        "in neuraloperator": Candidate(
            lambda z: contract(z, weight, separable=False), torch.Tensor.contiguous, lambda y: y
        ),
    }
    by_stages = staged(stored.parts, n_dim)
    if by_stages is not None:
        found["in stages"] = Candidate(by_stages, to_modes, from_modes)
    return found


def staged(parts: dict[str, torch.Tensor], n_dim: int) -> Call | None:
    """Contract the channel factors in each call, the mode factors beforehand; None for TT.

    A tensor train has no factor of the channels alone.
    """
    names = [f"factors.factor_{k}" for k in range(n_dim + 2)]
    if "core" in parts:
        core = parts["core"]
        c_in, c_out = parts[names[0]], parts[names[1]].T.contiguous()
        for name in names[2:]:
            core = torch.tensordot(core, parts[name], dims=([2], [1]))
        ranks = mode_major(core).contiguous()
        return lambda z: mix(z @ c_in, ranks) @ c_out
    if "weights" in parts:
        c_in, c_out = parts[names[0]], parts[names[1]].T.contiguous()
        scale = parts["weights"]
        for name in names[2:]:
            scale = scale.unsqueeze(-2) * parts[name]
        # [*modes, 1, rank], for every element of the batch
        scale = scale.unsqueeze(-2)
        return lambda z: ((z @ c_in) * scale) @ c_out
    return None


def rows(device: torch.device) -> Iterator[dict[str, object]]:
    """A row for each layer, weight and batch. Raises RuntimeError if two candidates disagree."""
    for (width, modes), (kind, rank), batch in product(LAYERS, WEIGHTS, BATCHES):
        weight = tltorch.FactorizedTensor.new(
            (width, width, *modes), rank=rank, factorization=kind, dtype=torch.cfloat
        )
        weight = weight.normal_(0, 0.1).to(device).requires_grad_(False)
        found = candidates(weight)
        spectra = [
            torch.randn(batch, width, *modes, dtype=torch.complex64, device=device)
            for _ in range(4)
        ]
        _check(found, spectra[0])
        ms = _milliseconds(found, spectra)
        stored = stored_weight(dict(weight.state_dict()), "weight")
        contracted = min(value for name, value in ms.items() if name != "multiplied out")
        yield {
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "layer": f"{len(modes)}D C{width} m{'x'.join(map(str, modes))}",
            "weight": f"{kind} {rank}",
            "batch": batch,
            "stored MB": stored.stored_bytes / 1e6,
            "multiplied out MB": stored.dense_bytes / 1e6,
            "multiplied out ms": ms["multiplied out"],
            "in neuraloperator ms": ms["in neuraloperator"],
            "in stages ms": ms.get("in stages", ""),
            "contracting is faster": ms["multiplied out"] / contracted,
        }


@torch.inference_mode()
def _check(found: dict[str, Candidate], spectrum: torch.Tensor) -> None:
    answers = {name: way.back(way.call(way.layout(spectrum))) for name, way in found.items()}
    truth = answers["multiplied out"]
    for name, answer in answers.items():
        difference = float((answer - truth).norm() / truth.norm())
        if not difference < _TOLERANCE:
            raise RuntimeError(f"{name} differs by {difference:.1e} from the weight multiplied out")


@torch.inference_mode()
def _milliseconds(found: dict[str, Candidate], spectra: Sequence[torch.Tensor]) -> dict[str, float]:
    """Milliseconds of one product, by candidate."""
    fields = {name: [way.layout(z) for z in spectra] for name, way in found.items()}
    graphs = [in_graph(way.call, fields[name]) for name, way in found.items()]
    ms = milliseconds(graphs, seconds=0.2)
    return {name: value / len(spectra) for name, value in zip(found, ms, strict=True)}


def main() -> None:
    """Measure, print and record."""
    require_gpu()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    measured = []
    for row in rows(torch.device("cuda")):
        measured.append(row)
        print(row["device"], row["layer"], row["weight"], row["batch"], "measured", flush=True)
    print_table("One layer's product over channels, ms", measured)
    print(f"\n{save('factorised', measured)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
