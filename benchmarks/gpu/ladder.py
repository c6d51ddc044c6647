"""The ladder of fusion: one Fourier layer inside a network, in steps that each fuse one thing more.

A layer is gelu(spectral_conv(x) + skip x + bias), all in float32. The rungs:

    0  torch.fft chain: full FFTs, modes multiplied only where kept, 1x1 convolution, sum, GELU (as published)
    1  truncated transforms: our kernels transform only the kept modes, of fields in their own layout, channels last;
       PyTorch multiplies the modes and does the rest
    2  pruned mix: our product of modes, without the copies that a batched product of PyTorch needs
    3  skip, bias and GELU in the kernel of the inverse transform
    4  the next layer's analysis in the same kernel
    5  one CUDA graph instead of launches from Python

Rungs 0 to 4 are timed as CUDA graphs of one call for each input, so that no launch is timed; rung 5 compares the graph
with the calls. Each rung is checked against float64 before it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from benchmarks.gpu import published
from benchmarks.gpu.candidates import checked_error
from benchmarks.gpu.device import ends, floor_ms, milliseconds, rotating
from benchmarks.gpu.layers import LARGEST_ERROR, Inputs
from benchmarks.ops import Layer
from turbofno_ops import fourier_layer
from turbofno_ops._channels import mode_major, pointwise
from turbofno_ops._cuda import CudaStages
from turbofno_ops._cuda_product import CudaProduct
from turbofno_ops._cuda_programs import Planned, TileProgram
from turbofno_ops._native import Product
from turbofno_ops._stages import (
    Activate,
    AddMap,
    Affine,
    Analyze,
    Field,
    Operands,
    Restore,
    Results,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops._support import device_limits
from turbofno_ops._tile_program import ChannelsLast, Piece, Shape, kernel_steps, plan_kernel
from turbofno_ops.description import Size

BATCHES = (1, 16, 256, 4096, 16384)
CHANNELS = (16, 32, 64, 128, 256)
RUNGS = (
    "torch.fft chain",
    "truncated transforms",
    "pruned mix",
    "skip, bias, GELU fused",
    "next analysis fused",
    "one CUDA graph",
)
_SHAPES: tuple[tuple[Size, Size], ...] = (
    ((128,), (64,)),
    ((256,), (64,)),
    ((1024,), (64,)),
    ((64, 64), (24, 12)),
    ((128, 128), (24, 12)),
)
_MOST_BYTES = 60e9
# The largest rung holds this many fields at once: the input in two layouts, full spectra before and after the product,
# copies and workspace of the FFTs; beside it the results of the calls that are not in a graph.
_FIELDS_AT_ONCE = 12.5
_MOST_INPUTS = 16
_LEAST_ROUNDS = 5
_BEFORE: tuple[Step, ...] = (Restore(), Analyze())
SYNTHESIS: tuple[Step, ...] = (Synthesis(), Store())
_ANALYZE = Analyze()

State = Any
"""Input of a rung: a field, or a field and its spectra."""


def field_bytes(layer: Layer) -> int:
    """Bytes of a float32 field."""
    return 4 * layer.batch * layer.channels * math.prod(layer.size)


def cases(*, quick: bool = False) -> list[Layer]:
    """The layers of the ladder whose largest rung fits into 60 GB; a few small ones if `quick`."""
    grid = product(_SHAPES, CHANNELS, BATCHES)
    if quick:
        grid = product(_SHAPES[::3], (16, 64), (1, 256))
    every = (Layer(b, c, *shape) for shape, c, b in grid)
    return [layer for layer in every if _FIELDS_AT_ONCE * field_bytes(layer) <= _MOST_BYTES]


class Kernels(Protocol):
    """The stages that the rungs are built of."""

    def tile(self, steps: tuple[Step, ...], operands: Operands) -> Results:
        """Run a tile program; fields are in the private layout."""

    def fused(self, steps: tuple[Step, ...], operands: Operands) -> Results:
        """Run a tile program as one kernel."""

    def mix(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply spectra by weight [*modes, c_in, c_out]."""

    def mix_by_torch(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Do the same with our transforms of the other axes and PyTorch's product of modes."""

    def convert(self, x: torch.Tensor) -> Field:
        """Convert [batch, channels, *grid] to the private layout."""

    def plain(self, field: Field) -> torch.Tensor:
        """Convert a field of the private layout to [batch, channels, *grid]."""

    def points(self, field: Field) -> torch.Tensor:
        """Return the values of a field, contiguous [batch, *grid, channels]."""

    def field(self, points: torch.Tensor) -> Field:
        """Return the field of such values."""


def multiply_by_torch(z: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Write the product of modes: z [others, batch, c_in, last] by weight [*others, last, c_in, c_out].

    `out` is [others, batch, c_out, last] with any strides. PyTorch's batched product needs z with the modes in front and
    copies it for that, as in published codes.
    """
    others, _, c_in, last = z.shape
    by_mode = weight.reshape(others, last, c_in, weight.shape[-1])
    out.copy_(torch.einsum("kbim,kmio->kbom", z, by_mode))


class _TorchProduct(CudaProduct):
    """The mix with our transforms of the other axes and PyTorch's product of modes."""

    def _multiply(self, z: torch.Tensor, weight: torch.Tensor, structure: Product) -> torch.Tensor:
        batch, c_in, c_out = structure.batch, structure.c_in, structure.c_out
        others, last = structure.others, structure.row_modes
        out = z.new_empty(others, structure.out_pitch)

        def by_channel(modes: torch.Tensor, channels: int, *, channels_last: int) -> torch.Tensor:
            rows = modes[:, : batch * channels * last]
            if channels_last:
                return rows.unflatten(1, (batch, last, channels)).transpose(-1, -2)
            return rows.unflatten(1, (batch, channels, last))

        given = z.view(others, structure.in_pitch)
        given = by_channel(given, c_in, channels_last=structure.input_channels_last)
        made = by_channel(out, c_out, channels_last=structure.channels_last)
        multiply_by_torch(given, weight, made)
        return out


class CudaKernels:
    """The stages on the CUDA kernels, for one layer shape in float32."""

    def __init__(self, layer: Layer, device: torch.device) -> None:
        self._layer = layer
        self._stages = CudaStages(layer.size, layer.modes, device=device, precision="fp32")
        self.mix_by_torch = _TorchProduct(
            layer.size,
            layer.modes,
            layer.size,
            device=device,
            precision="fp32",
            limits=device_limits(device),
            clusters=0,
            settled=True,
            slab=None,
        )
        self.mix = self._stages.mix
        self.tile, self.convert = self._stages.tile, self._stages.convert
        self.plain = self._stages.plain
        row = self._shape(modes=0).next_modes
        self._after = self._shape(modes=row)
        self._fused: dict[tuple[Step, ...], TileProgram] = {}

    def _shape(self, modes: int) -> Shape:
        channels = self._layer.channels
        return self._stages.shape(
            batch=self._layer.batch,
            channels=channels,
            x_channels=channels,
            x_channel_first=False,
            modes=modes,
        )

    def refusal(self, steps: tuple[Step, ...]) -> str | None:
        """Reason why a tile program after the mix cannot be one kernel, or None if it can."""
        return plan_kernel(kernel_steps(steps), self._after).refusal

    def fused_in_networks(self, steps: tuple[Step, ...]) -> bool:
        """True if compiled networks run a tile program after the mix as one kernel."""
        return len(self._stages.programs.prepare(steps, self._after).pieces) == 1

    def fused(self, steps: tuple[Step, ...], operands: Operands) -> Results:
        found = self._fused.get(steps)
        if found is None:
            # `prepare` would split programs that are faster as two kernels
            piece = Piece(kernel_steps(steps), self._after, self.refusal(steps))
            planned = Planned(piece, self._stages.programs._kernels(piece))
            found = self._fused[steps] = TileProgram(steps, (planned,))
        return self._stages.run(found, operands)

    def points(self, field: ChannelsLast) -> torch.Tensor:
        if field.data.shape[-1] != field.channels:
            raise ValueError(f"{field.channels} channels are padded in memory")
        return field.values()

    def field(self, points: torch.Tensor) -> ChannelsLast:
        return ChannelsLast(points, points.shape[-1])


def spectra_of(kernels: Kernels, field: Field) -> torch.Tensor:
    """Spectra of a field along the last axis."""
    spectra = kernels.tile(_BEFORE, Operands(saved=field)).spectra
    assert spectra is not None
    return spectra


def convolution(kernels: Kernels, weight: torch.Tensor, field: Field) -> Field:
    """The spectral convolution of a field in the kernels' layout, by weight [*modes, c_in, c_out]."""
    mixed = kernels.mix(spectra_of(kernels, field), weight)
    return kernels.tile(SYNTHESIS, Operands(mixed=mixed)).x


class Rungs:
    """The rungs 0 to 4 for one layer. `pointwise_map` is PyTorch's 1x1 convolution: (x, weight, bias) -> y."""

    def __init__(
        self,
        inputs: Inputs,
        kernels: Kernels,
        pointwise_map: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> None:
        self._kernels, self._pointwise = kernels, pointwise_map
        self._weight = mode_major(inputs.weight)
        self._corners = published.corners_of(inputs.weight)
        self._skip, self._bias = inputs.skip, inputs.bias
        self.layer_steps: tuple[Step, ...] = (
            Synthesis(),
            AddMap(inputs.skip),
            Affine(None, inputs.bias),
            Activate("gelu"),
            Store(),
        )
        self.chained_steps = (*self.layer_steps, _ANALYZE)

    def state(self, rung: int, x: torch.Tensor) -> State:
        """Input of a rung for the field x [batch, channels, *grid]."""
        if rung == 0:
            return x
        field = self._kernels.convert(x)
        return (field, spectra_of(self._kernels, field)) if rung == 4 else field

    def run(self, rung: int, state: State) -> State:
        """The state after the layer: the next field, on rung 4 with its spectra."""
        steps = (self._torch, self._truncated, self._pruned, self._epilogue, self._chained)
        return steps[rung](state)

    def results(self, rung: int, state: State) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The field [batch, channels, *grid] of a state, and its spectra along the last axis on rung 4."""
        if rung == 0:
            return state, None
        field, spectra = state if rung == 4 else (state, None)
        return self._kernels.plain(field), spectra

    def _torch(self, x: torch.Tensor) -> torch.Tensor:
        convolved = published.spectral_conv(x, self._corners)
        return F.gelu(convolved + self._pointwise(x, self._skip, self._bias))

    def _truncated(self, field: Field) -> Field:
        mixed = self._kernels.mix_by_torch(spectra_of(self._kernels, field), self._weight)
        convolved = self._kernels.tile(SYNTHESIS, Operands(mixed=mixed)).x
        return self._end_by_torch(convolved, field)

    def _pruned(self, field: Field) -> Field:
        return self._end_by_torch(convolution(self._kernels, self._weight, field), field)

    def _epilogue(self, field: Field) -> Field:
        mixed = self._kernels.mix(spectra_of(self._kernels, field), self._weight)
        return self._kernels.tile(self.layer_steps, Operands(x=field, mixed=mixed)).x

    def _chained(self, state: tuple[Field, torch.Tensor]) -> tuple[Field, torch.Tensor | None]:
        field, spectra = state
        mixed = self._kernels.mix(spectra, self._weight)
        done = self._kernels.fused(self.chained_steps, Operands(x=field, mixed=mixed))
        return done.x, done.spectra

    def _end_by_torch(self, convolved: Field, x: Field) -> Field:
        # with channels last the 1x1 convolution is one matrix product
        skipped = F.linear(self._kernels.points(x), self._skip, self._bias)
        return self._kernels.field(F.gelu(self._kernels.points(convolved) + skipped))


def hermitian(weight: torch.Tensor) -> torch.Tensor:
    """Make the zeroth column of a weight [*modes, c_in, c_out] Hermitian in place, for one or two axes of modes.

    The mixed spectra of real fields are then those of real fields. Of others cuFFT's inverse makes something else at some
    sizes, and the chain of torch.fft could not be checked.
    """
    n_dim = weight.ndim - 2
    column = weight if n_dim == 1 else weight[:, 0]
    column[0] = column[0].real.to(weight.dtype)
    if n_dim == 1:
        return weight
    rows = len(column)
    for k in range(1, (rows + 1) // 2):
        column[-k] = column[k].conj()
    if rows % 2 == 0:
        # the frequency -rows / 2 is kept, its mirror image is not
        column[rows // 2] = 0
    return weight


def draw(layer: Layer) -> Inputs:
    """Random inputs on the GPU."""
    n, c = len(layer.modes), layer.channels
    weight = torch.randn(*layer.modes, c, c, dtype=torch.complex64, device="cuda") / math.sqrt(c)
    return Inputs(
        rotating((layer.batch, c, *layer.size), most=_MOST_INPUTS),
        hermitian(weight).permute(n, n + 1, *range(n)),
        torch.randn(c, c, device="cuda") / math.sqrt(c),
        torch.randn(c, device="cuda"),
    )


def truth(inputs: Inputs) -> torch.Tensor:
    """The layer in float64 through torch.fft, where the inputs are, for the checked elements of the first field."""
    return fourier_layer(
        ends(inputs.fields[0]).double(),
        inputs.weight.to(torch.complex128),
        skip_weight=inputs.skip.double(),
        bias=inputs.bias.double(),
        activation="gelu",
        backend="reference",
    )


def error_of(results: tuple[torch.Tensor, torch.Tensor | None], expected: torch.Tensor) -> float:
    """The larger relative L2 error of a field and, if there are any, of its spectra."""
    field, spectra = results
    errors = [_relative(ends(field).double(), expected)]
    if spectra is not None:
        of_truth = torch.fft.rfft(expected, norm="forward")[..., : spectra.shape[-1]]
        errors.append(_relative(ends(spectra).to(torch.complex128), of_truth))
    # NaN is larger than all
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def _relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    return float((value - expected).norm() / expected.norm())


@contextmanager
def float32_convolutions() -> Iterator[None]:
    """Run PyTorch's convolutions in float32 and do not search for algorithms, which takes longer than the measurement."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, cudnn.benchmark = False, False
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before


def _faster_pointwise(
    inputs: Inputs,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """The faster of PyTorch's 1x1 convolution and its batched product, for this shape."""
    ways = (published.pointwise, pointwise)
    given = inputs.fields[0], inputs.skip, inputs.bias
    taken = milliseconds([partial(way, *given) for way in ways], seconds=0, least_rounds=3)
    return ways[taken.index(min(taken))]


def _calls(rungs: Rungs, rung: int, states: Sequence[State]) -> Callable[[], object]:
    def run() -> None:
        for state in states:
            rungs.run(rung, state)

    return run


def captured(run: Callable[[], object], pool: Any) -> Callable[[], object]:
    """A function that replays a CUDA graph of `run`, which ran before. Graphs of one pool must not run at once."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # one pool for all rungs: none keeps a result, so each may write where the others did
    with torch.cuda.graph(graph, pool=pool):
        run()

    def replay(owner: Callable[[], object] = run) -> None:
        # the graph uses memory that `run` owns; this argument keeps it alive
        del owner
        graph.replay()

    return replay


def measure(layer: Layer, bandwidth: float, *, seconds: float) -> list[dict[str, object]]:
    """The rows of one layer, one for each rung. Raises RuntimeError if a rung's result is wrong."""
    with float32_convolutions():
        return list(_rows(layer, bandwidth, seconds=seconds))


def _rows(layer: Layer, bandwidth: float, *, seconds: float) -> Iterator[dict[str, object]]:
    inputs = draw(layer)
    kernels = CudaKernels(layer, inputs.fields[0].device)
    rungs = Rungs(inputs, kernels, _faster_pointwise(inputs))
    fusable = kernels.refusal(rungs.chained_steps) is None
    in_networks = kernels.fused_in_networks(rungs.chained_steps)
    expected = truth(inputs)
    numbers = range(5 if fusable else 4)
    errors, runs = [], []
    fields: list[Field] = []
    for rung in numbers:
        if rung == 1:
            fields = [rungs.state(rung, x) for x in inputs.fields]
        states: list[State] = fields or inputs.fields
        if rung == 4:
            states = [(field, spectra_of(kernels, field)) for field in fields]
        results = rungs.results(rung, rungs.run(rung, states[0]))
        what = f"{layer.label}, {RUNGS[rung]}"
        errors.append(checked_error(what, error_of(results, expected), LARGEST_ERROR["fp32"]))
        del results
        runs.append(_calls(rungs, rung, states))
    last = 4 if in_networks else 3
    pool = torch.cuda.graph_pool_handle()
    graphs = [captured(run, pool) for run in runs]
    times = milliseconds([*graphs, runs[last]], seconds=seconds, least_rounds=_LEAST_ROUNDS)
    *of_rungs, of_calls = (ms / len(inputs.fields) for ms in times)
    shared = {
        "layer": layer.label,
        "batch": layer.batch,
        "channels": layer.channels,
        "grid": list(layer.size),
        "modes": list(layer.modes),
        "precision": "fp32",
        "floor ms": floor_ms(math.prod(inputs.fields[0].shape), 4, bandwidth),
    }
    for rung, ms, error in zip(numbers, of_rungs, errors, strict=True):
        backend = "torch.fft" if rung == 0 else "cuda"
        yield {**shared, **_rung(rung, ms), "backend": backend, "relative L2 error": error}
    yield {
        **shared,
        **_rung(5, of_rungs[last]),
        "backend": "cuda",
        "relative L2 error": errors[last],
        "calls ms": of_calls,
        "analysis fused in networks": in_networks,
    }


def _rung(rung: int, ms: float) -> dict[str, object]:
    return {"rung": rung, "what": RUNGS[rung], "ms": ms}
