"""Plans of tile programs: the chosen one against others, timed with the programs of whole networks.

The kernels choose a plan by its estimated cost (csrc/plan/tile_plan.cpp). Each program of a network is timed with that plan,
with the next cheapest, and with random ones that cost up to half more. All must give the same result.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from unittest import mock

import torch

from benchmarks.gpu import drawn, layers, models
from benchmarks.gpu.candidates import checked_error
from benchmarks.gpu.device import in_graph, milliseconds
from benchmarks.host_plans import PLANS, compiled
from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno.models.importers.refusal import ImportRefused
from turbofno_ops import PRECISIONS, _cuda, _cuda_programs, _native, compile_fno
from turbofno_ops._cuda_programs import Kernel
from turbofno_ops._stages import Operands, Results
from turbofno_ops._tile_program import ChannelsLast, Weighted, plan_kernel
from turbofno_ops.description import Size

_MOST_PLANS = 1 << 16
_CHEAPEST, _RANDOM = 10, 14
_COSTLIEST = 1.5
_SEED = 1
_REPEATS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A network on a grid; its label begins with what it is an example of."""

    label: str
    network: FNO
    batch: int
    size: Size
    precision: str


def cases() -> Iterator[Case]:
    """The layers of `layers`, the models of `models` and the random networks of `drawn`."""
    for layer in layers.LAYERS:
        arch = FNOArchitecture(
            in_channels=1,
            out_channels=1,
            hidden_channels=layer.channels,
            n_layers=2,
            modes=layer.modes,
        )
        for precision in PRECISIONS:
            label = f"layers: {layer.label} {precision}"
            yield Case(label, FNO(arch), layer.batch, layer.size, precision)
    for model in models.cases():
        for batch in models.BATCHES:
            label = f"models: {model.name} B{batch}"
            yield Case(label, model.model, batch, model.size, "fp32")
    for label, network in drawn.networks(drawn.COUNT):
        assert not isinstance(network.imported, ImportRefused)
        batch, grid = drawn.BATCHES[network.n_dim]
        module = FNO(network.imported.architecture, network.imported.normalization)
        yield Case(f"random networks: {label}", module, batch, grid, "fp32")


@cache
def _lister() -> ctypes.CDLL:
    return compiled(Path(__file__).with_suffix(".cpp"), PLANS / "tile_plan.cpp")


def plans(tile: _native.Tile) -> list[_native.TilePlan]:
    """All plans of a tile program, the cheapest first."""
    found = (_native.TilePlan * _MOST_PLANS)()
    count = _lister().list_tile_plans(ctypes.byref(tile), found, _MOST_PLANS)
    different: dict[bytes, _native.TilePlan] = {}
    for i in range(count):
        different.setdefault(bytes(found[i]), found[i])
    return sorted(different.values(), key=lambda plan: plan.cost)


def _tried(tile: _native.Tile) -> list[_native.TilePlan]:
    """The chosen plan and those that it is compared with."""
    chosen, *others = plans(tile)
    affordable = [plan for plan in others if plan.cost <= _COSTLIEST * chosen.cost]
    near, far = affordable[:_CHEAPEST], affordable[_CHEAPEST:]
    return [chosen, *near, *random.Random(_SEED).sample(far, min(_RANDOM, len(far)))]


def _with_plan(stages: _cuda.CudaStages, kernel: Kernel, plan: _native.TilePlan) -> Kernel:
    planned = plan_kernel(kernel.steps, kernel.shape)._replace(plan=plan)
    with mock.patch.object(_cuda_programs, "plan_kernel", return_value=planned):
        return stages.programs._kernel(kernel.steps, kernel.shape, 0)


def _distance(one: Results, other: Results) -> float:
    """The largest relative L2 distance of fields and spectra."""
    found = [0.0]
    for name in ("x", "saved", "spectra", "out"):
        pair = [getattr(of, name) for of in (one, other)]
        if pair[0] is not None:
            a, b = (v.values() if isinstance(v, ChannelsLast) else v for v in pair)
            found.append(float((a - b).norm() / a.norm()))
    return max(found)


def measure(case: Case, *, seconds: float) -> Iterator[dict[str, object]]:
    """A row for each tile program of a network; none if the network is no chain."""
    rows: list[dict[str, object]] = []
    seen: set[bytes] = set()
    launch = _cuda.CudaStages._launch

    def timed(
        stages: _cuda.CudaStages,
        kernel: Kernel,
        given: Operands,
        weights: Mapping[Weighted, Weighted],
        *,
        channel_first: bool,
    ) -> Results:
        def run(of: Kernel) -> Results:
            return launch(stages, of, given, weights, channel_first=channel_first)

        def repeated(of: Kernel, x: torch.Tensor) -> torch.Tensor:
            run(of)
            return x

        if bytes(kernel.tile) not in seen:
            seen.add(bytes(kernel.tile))
            tried = [_with_plan(stages, kernel, plan) for plan in _tried(kernel.tile)]
            ours = run(tried[0])
            error = max(_distance(ours, run(one)) for one in tried)
            checked_error(case.label, error, layers.LARGEST_ERROR[case.precision])
            repeats = [torch.empty(0)] * _REPEATS
            graphs = [in_graph(partial(repeated, one), repeats) for one in tried]
            ms = [of / _REPEATS for of in milliseconds(graphs, seconds=seconds)]
            found = {"network": case.label, "precision": case.precision, "program": len(rows) + 1}
            times = {
                "plans": len(ms),
                "ms": ms[0],
                "fastest ms": min(ms),
                "largest distance": error,
            }
            rows.append({**found, **times})
        return run(kernel)

    description = case.network.eval().requires_grad_(False).description()
    chain = compile_fno(description, device="cuda", precision=case.precision)
    if chain.refusal(case.size) is None:
        forward = chain._pass(case.size)
        buffer = forward.buffer(case.batch)
        x = torch.randn(case.batch, case.network.arch.in_channels, *case.size, device="cuda")
        forward.load(x, forward.input_view(buffer))
        with mock.patch.object(_cuda.CudaStages, "_launch", timed):
            forward.run(buffer)
    yield from rows
