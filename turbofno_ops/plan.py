"""`compile_fno`: a complete Fourier neural operator as one chain of stages, replayed as CUDA graphs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import torch

from turbofno_ops._autocast import without_autocast
from turbofno_ops._check import check
from turbofno_ops._cuda import CudaStages, field_dtype
from turbofno_ops._graphs import Graph, GraphCache, batch_buckets, shared_lane
from turbofno_ops._implementations import untraced
from turbofno_ops._lower import Chain, Mix, Tile, lower
from turbofno_ops._modes import axis_limits
from turbofno_ops._native import native_status
from turbofno_ops._pass import (
    MixOnGrid,
    PaddedGrid,
    Pass,
    bytes_per_element,
    mixes_on_grid,
    size_after,
)
from turbofno_ops._slab import Slab
from turbofno_ops._spectral_product import row_modes
from turbofno_ops._stages import Stages
from turbofno_ops._support import device_limits, gpu_refusal, product_refusal, program_refusal
from turbofno_ops._tile_program import cached_operand_bytes
from turbofno_ops._torch_stages import TorchStages
from turbofno_ops._validation import check_precision, check_tensor, grid_of, has_tangent
from turbofno_ops._zero_channels import with_zero_channels
from turbofno_ops.description import ChainRefused, FNODescription, Size, Spectral

_MAX_CHECKED_SHAPES = 4096

Around = Callable[[Callable[[torch.Tensor], torch.Tensor]], object]
"""A function that is given a network and calls it."""


class _GridCheck(NamedTuple):
    """Support of a grid: refusal or None, output grid, largest bucket that fits the cache's byte bound, bytes of a field."""

    refusal: str | None
    out_size: Size = ()
    largest_bucket: int = 0
    field_bytes: int = 0


class CompiledChain:
    """A chain compiled for one device: its grids, its stages, its CUDA graphs. Attributes are those of `CompiledFNO`."""

    def __init__(
        self,
        chain: Chain,
        device: torch.device,
        precision: str,
        buckets: tuple[int, ...],
        graphs: GraphCache,
        slab: Slab | None = None,
    ) -> None:
        self.device = device
        self.dtype = chain.dtype
        self.backend = "cuda" if device.type == "cuda" else "gemm"
        self.precision = precision
        self._chain, self._slab = chain, slab
        self._buckets, self._graphs = buckets, graphs
        self._owner = object()
        self._grid_checks: dict[Size, _GridCheck] = {}

    def refusal(self, size: Size) -> str | None:
        """Return the reason why a grid is not supported, or None if it is."""
        return self._grid_check(grid_of("the network", size)).refusal

    def buckets(self) -> tuple[int, ...]:
        """Return the batch sizes that graphs are captured for."""
        return self._buckets

    def device_bytes(self) -> int:
        """Return its device bytes: weights, packed operands, graphs and buffers."""
        steps = [s for item in self._chain.items if isinstance(item, Tile) for s in item.steps]
        return (
            self._chain.nbytes(self.device)
            + cached_operand_bytes(steps)
            + self._graphs.bytes_of(self._owner)
        )

    def clear(self) -> None:
        """Free all of its graphs. Later calls capture them again."""
        with self._graphs.lock:
            self._graphs.drop(self._owner)

    def __reduce__(self) -> str:
        raise TypeError(
            "a compiled network cannot be copied or pickled: copy or save the module, and compile it again"
        )

    @untraced
    def _apply(self, x: torch.Tensor, size: Size) -> torch.Tensor:
        """Apply the network to x on the grid `size`, or to its slab of that grid."""
        self._check(x, size)
        if x.shape[0] == 0:
            return self._empty_output(x, size)
        if self.backend == "cuda":
            # Detached, so that its copy records nothing: contexts would take a sixth of a small call on the host.
            return self._run_graphs(x.detach(), size)
        with torch.no_grad(), without_autocast(self.device):
            return self._run_eager(x, size)

    def _check(self, x: torch.Tensor, size: Size) -> None:
        channels = self._chain.in_channels
        check_tensor("the network", "x", x)
        if x.dtype != self.dtype:
            raise TypeError(f"the network was compiled for {self.dtype}, x is {x.dtype}")
        if (x.requires_grad and torch.is_grad_enabled()) or has_tangent(x):
            raise ValueError(
                "a compiled network computes no gradients: call it under torch.no_grad(), or differentiate the module"
            )
        if x.device != self.device:
            raise ValueError(f"the network is on {self.device}, x on {x.device}; move x")
        if x.ndim < 3 or x.shape[1] != channels or min(size) < 1:
            raise ValueError(
                f"x must be [batch, {channels}, *grid] with a point or more on every axis, "
                f"got shape {list(x.shape)}"
            )
        refused = self._grid_check(size).refusal
        if refused is not None:
            raise ChainRefused(refused)

    def _grid_check(self, size: Size) -> _GridCheck:
        found = self._grid_checks.get(size)
        if found is None:
            if len(self._grid_checks) >= _MAX_CHECKED_SHAPES:
                self._grid_checks.clear()
            found = self._grid_checks[size] = self._check_grid(size)
        return found

    def _check_grid(self, size: Size) -> _GridCheck:
        chain = self._chain
        grid = "x".join(map(str, size))
        if len(size) != chain.n_dim:
            return _GridCheck(
                f"the network has {chain.n_dim} grid axes, the grid {grid} has {len(size)}"
            )
        if chain.grid not in (None, size):
            return _GridCheck(f"its normalisation is a field on another grid than {grid}")
        padded_grid = PaddedGrid.of(chain, size)
        unpadded = padded_grid.refusal()
        if unpadded is not None:
            return _GridCheck(unpadded)
        on_grid = mixes_on_grid(chain, padded_grid.padded, shapes_only=True)
        if not all(_holds_modes(product) for product in on_grid):
            return _GridCheck(f"the grid {grid} does not hold the network's modes")
        on_gpu = self.backend == "cuda"
        mixes = [item for item in chain.items if isinstance(item, Mix)]
        between = zip(
            mixes, ({*product.size, *product.out_size} for product in on_grid), strict=True
        )
        # there a resampling may change constants, and folded maps and biases assume that it keeps them
        if any(mix.resamples_x and 1 in points for mix, points in between):
            return _GridCheck(f"on the grid {grid} a layer resamples an axis of one point")
        all_slabs = self._all_slabs(on_grid)
        if on_gpu and self._slab and not all(_has_rows(p) for own in all_slabs for p in own):
            return _GridCheck(
                f"on the grid {grid} a process has fewer rows than the network keeps modes along them, which the CUDA "
                "kernels do not support; use fewer processes"
            )
        one = max(bytes_per_element(chain, own, field_dtype(self.precision)) for own in all_slabs)
        fitting = [bucket for bucket in self._buckets if bucket * one <= self._graphs.most_bytes]
        largest = fitting[-1] if fitting else 1
        refused = None
        if on_gpu:
            refusals = (self._kernels_refusal(own, largest) for own in all_slabs)
            refused = next((reason for reason in refusals if reason is not None), None)
        return _GridCheck(refused, size_after(padded_grid, on_grid), largest, one)

    def _all_slabs(self, on_grid: list[MixOnGrid]) -> list[list[MixOnGrid]]:
        """Return the products on every process's slab, because all processes must come to the same decisions."""
        if self._slab is None:
            return [on_grid]
        by_product = (
            zip(self._slab.all_local(p.size), self._slab.all_local(p.out_size), strict=True)
            for p in on_grid
        )
        return [
            [
                product._replace(size=size, out_size=out_size)
                for product, (size, out_size) in zip(on_grid, sizes, strict=True)
            ]
            for sizes in dict.fromkeys(zip(*by_product, strict=True))
        ]

    def _kernels_refusal(self, on_grid: list[MixOnGrid], batch: int) -> str | None:
        """Return the reason why the kernels do not support the chain on a grid, or None if they do."""
        layers, done, size, mixed_modes = len(on_grid), 0, on_grid[0].size, 0
        for item in self._chain.items:
            product = on_grid[min(done, layers - 1)]
            row = row_modes(product.modes, product.size, product.out_size)
            if isinstance(item, Tile):
                where = "after" if done == layers else "before"
                refused = program_refusal(
                    item.steps,
                    batch=batch,
                    channels=item.channels,
                    channels_of_x=item.channels_of_x,
                    size=size,
                    modes=mixed_modes,
                    next_modes=row,
                    precision=self.precision,
                    device=self.device,
                )
            else:
                where = "in"
                c_in, c_out = product.weights[0].shape[-2:]
                refused = product_refusal(
                    batch,
                    c_in,
                    c_out,
                    product.size,
                    product.out_size,
                    product.modes,
                    self.precision,
                )
            if refused is not None:
                return f"{where} layer {min(done + 1, layers)} of {layers}: {refused}"
            if isinstance(item, Mix):
                size, done, mixed_modes = product.out_size, done + 1, row
        return None

    def _pass(self, size: Size) -> Pass:
        return Pass(self._chain, size, self._stages, device=self.device, slab=self._slab)

    def _stages(self, size: Size, modes: Size, out_size: Size) -> Stages:
        if self.backend != "cuda":
            return TorchStages(size, modes, out_size, self._slab)
        return CudaStages(
            size,
            modes,
            device=self.device,
            precision=self.precision,
            out_size=out_size,
            slab=self._slab,
        )

    def _run_eager(self, x: torch.Tensor, size: Size) -> torch.Tensor:
        forward = self._pass(size)
        buffer = forward.buffer(x.shape[0])
        forward.load(x, forward.input_view(buffer))
        return forward.run(buffer).contiguous()

    def _run_graphs(self, x: torch.Tensor, size: Size) -> torch.Tensor:
        batch, out = x.shape[0], self._empty_output(x, size)
        largest = self._grid_check(size).largest_bucket
        if batch <= largest:
            self._run(x, out, size)
        else:
            for piece, part in zip(x.split(largest), out.split(largest), strict=True):
                self._run(piece, part, size)
        return out

    def _empty_output(self, x: torch.Tensor, size: Size) -> torch.Tensor:
        """Allocate the result."""
        out_size = self._grid_check(size).out_size
        if self._slab is not None:
            out_size = self._slab.local(out_size)
        return x.new_empty(x.shape[0], self._chain.out_channels, *out_size)

    def _run(self, x: torch.Tensor, out: torch.Tensor, size: Size) -> None:
        bucket = self._buckets[bisect_left(self._buckets, x.shape[0])]
        with self._graphs.lock:
            graph = self._graphs.get(
                self._owner, (bucket, size), lambda: self._capture(bucket, size)
            )
            graph.run(x, out)

    def _capture(self, bucket: int, size: Size, around: Around | None = None) -> Graph:
        with (
            torch.cuda.device(self.device),
            # later calls write the buffers outside inference mode, so they must not be inference tensors
            torch.inference_mode(False),
            torch.no_grad(),
            without_autocast(self.device),
        ):
            if around is None:
                graph = Graph(self._pass(size), bucket, self.device)
            else:
                forward = _Surrounded(around, self._pass(size))
                graph = Graph(forward, bucket, self.device, shared_lane(self.device))
        if self._slab is not None:
            # a capture runs collectives, so the processes must evict the same graphs
            graph.nbytes = self._slab.most(graph.nbytes, self.device)
        return graph


class CompiledFNO(CompiledChain):
    """A Fourier neural operator compiled for one device, made by `compile_fno`. No gradients.

    On a GPU a batch is padded to the next of `buckets()`, and every (bucket, grid) is a CUDA graph, captured at its first
    use. A larger batch is split into the largest bucket, or a smaller one on grids where it would exceed the graph
    cache's byte bound. On a CPU the stages run without graphs.

    Thread-safe, on any CUDA stream: work is queued on the caller's current stream, and calls that share a graph run in
    sequence. The result is a new tensor.

    Attributes:
        device: The device.
        dtype: Dtype of input and output: float32, or float64 on a CPU if the description's weights are float64.
        backend: 'cuda' (the CUDA kernels) or 'gemm' (plain torch).
        precision: 'fp32', 'tf32' or 'bf16'; always 'fp32' on a CPU.
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the network.

        Args:
            x: [batch, in_channels, *grid] of `dtype` on `device`, in physical units.

        Returns:
            [batch, out_channels, *grid] in physical units; on another grid if layers change the resolution.

        Raises:
            TypeError: x is no tensor of `dtype`.
            ValueError: The shape or device of x does not fit the network, or a gradient with respect to x is wanted.
            ChainRefused: The grid is not supported (`refusal` tells in advance).
            torch.OutOfMemoryError: A graph or its buffers do not fit; try a smaller batch.
        """
        return self._apply(x, tuple(x.shape[2:]))

    def run_within(self, around: Around, batch: int, size: Size) -> None:
        """Run a function that calls the network, with it as one CUDA graph. It is queued on the current stream.

        The graph is captured at the first call with this function, batch and grid, and again if it was evicted (`holds`).
        Only then `around` is called, once to warm up and once in the capture. Later calls repeat what it queued: its inputs
        and results are always in the same memory, which it keeps. The graphs of `around` functions of a device run in
        sequence. On a CPU `around` is called each time.

        Args:
            around: Called as `around(network)`; `network(x)` applies the network to [batch, in_channels, *size], as a call
                of this object. May only queue work on the current stream. PyTorch records an event there when pinned memory
                that it copied is freed: do not free such memory while another thread captures a graph.
            batch: Batch size, at most the largest of `buckets()`.
            size: Grid points along each axis.

        Raises:
            ChainRefused: The grid, or a batch of that size on it, is not supported.
            CaptureFailed: `around` does something that a CUDA graph cannot contain.
            torch.OutOfMemoryError: The graph or its buffers do not fit. No other graph is freed for lack of memory.

        Example:
            >>> given = torch.zeros(1, 1, 64, 64, pin_memory=True)  # doctest: +SKIP
            >>> result = torch.zeros(1, 1, 64, 64, pin_memory=True)  # doctest: +SKIP
            >>> def around(network):  # doctest: +SKIP
            ...     result.copy_(network(given.to("cuda", non_blocking=True)), non_blocking=True)
            >>> given.normal_()  # doctest: +SKIP
            >>> compiled.run_within(around, 1, (64, 64))  # doctest: +SKIP
            >>> torch.cuda.synchronize()  # doctest: +SKIP
        """
        size = grid_of("the network", size)
        refused = self.refusal(size)
        if refused is None and not 1 <= batch <= self._grid_check(size).largest_bucket:
            refused = (
                f"on this grid a graph takes 1 to {self._grid_check(size).largest_bucket} "
                f"fields, not {batch}"
            )
        if refused is not None:
            raise ChainRefused(refused)
        if self.backend != "cuda":
            around(self)
            return
        with self._graphs.lock:
            graph = self._graphs.get(
                self._owner,
                (batch, size, around),
                lambda: self._capture(batch, size, around),
                retry=False,
            )
            graph.replay()

    def holds(self, around: Around, batch: int, size: Size) -> bool:
        """Return True if `run_within` has a graph for these arguments; else it captures one."""
        return self._graphs.holds(self._owner, (batch, size, around))


class _Surrounded:
    """A pass within a function that calls it, reads its input and writes its result; `Capturable`."""

    def __init__(self, around: Around, network: Pass) -> None:
        self._around, self._network = around, network
        self.nbytes = network.nbytes
        self.buffer, self.input_view, self.load = network.buffer, network.input_view, network.load

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        def network(x: torch.Tensor) -> torch.Tensor:
            given = self.input_view(buffer)
            if x.shape != given.shape or x.dtype != given.dtype:
                raise ValueError(
                    f"x must be {given.dtype} {list(given.shape)}, got {x.dtype} {list(x.shape)}"
                )
            self.load(x, given)
            return self._network.run(buffer).to(x.dtype).contiguous()

        self._around(network)
        return buffer


def _has_rows(product: MixOnGrid) -> bool:
    """True if slabs of a product have at least as many rows as modes are kept along them."""
    return product.modes[0] <= min(product.size[0], product.out_size[0])


def _holds_modes(product: MixOnGrid) -> bool:
    """True if the grids of a product hold its modes. Modes of the other axes may alias in the result."""
    limits = axis_limits((*product.size[:-1], min(product.size[-1], product.out_size[-1])))
    return min(product.out_size) > 0 and all(
        k <= limit for k, limit in zip(product.modes, limits, strict=True)
    )


def compile_fno(
    description: FNODescription,
    *,
    device: torch.device | str,
    precision: str = "fp32",
    max_batch: int = 64,
    graphs: GraphCache | None = None,
) -> CompiledFNO:
    """Compile a Fourier neural operator for one device: fold, cast and move its weights.

    Captures no CUDA graph yet; that happens at the first call with each (batch bucket, grid).

    Args:
        description: The network, for example from `turbofno.models.core.fno.FNO.description()`.
        device: A CUDA device or the CPU.
        precision: 'fp32', 'tf32' or 'bf16', as in `fourier_layer`. Spectra and their weights are float32 in all three.
        max_batch: The largest batch bucket.
        graphs: The cache of the CUDA graphs, to share or bound it; by default a new one.

    Returns:
        The network as a function of [batch, in_channels, *grid].

    Raises:
        ChainRefused: The description is inconsistent, or the device cannot run it. Run the module itself instead.
        TypeError: `description` is no FNODescription.
        ValueError: Unknown precision, or `max_batch` below 1.

    Example:
        >>> from turbofno_ops import Activate, AddMap, FNODescription, PointwiseMap, Spectral
        >>> weight = torch.randn(8, 8, 12, 7, dtype=torch.complex64)
        >>> layer = (Spectral(weight), AddMap(torch.randn(8, 8)))
        >>> network = FNODescription(
        ...     in_channels=1,
        ...     lifting=(PointwiseMap(torch.randn(8, 1)),),
        ...     blocks=((*layer, Activate("gelu")),) * 3 + (layer,),
        ...     projection=(PointwiseMap(torch.randn(32, 8)), PointwiseMap(torch.randn(1, 32))),
        ... )
        >>> compile_fno(network, device="cpu")(torch.randn(2, 1, 33, 64)).shape
        torch.Size([2, 1, 33, 64])
    """
    chain, target, precision = lowered(description, device, precision, max_batch)
    graphs = GraphCache() if graphs is None else graphs
    return CompiledFNO(chain, target, precision, batch_buckets(max_batch), graphs)


def lowered(
    description: FNODescription, device: torch.device | str, precision: str, max_batch: int
) -> tuple[Chain, torch.device, str]:
    """Check the arguments of `compile_fno`; return the chain on its device, the device, and the precision used there."""
    check_precision("compile_fno", precision)
    if max_batch < 1:
        raise ValueError(f"compile_fno: max_batch must be at least 1, got {max_batch}")
    check(description)
    target = torch.device(device)
    if target.type == "cuda":
        target = _supported_gpu(target, description)
    elif target.type == "cpu":
        # an index would differ from that of tensors, which have none
        target, precision = torch.device("cpu"), "fp32"
    else:
        raise ChainRefused(f"only CUDA devices and CPUs are supported, got {target}")
    # what folding makes of its own is on the CPU, whatever torch's default device is
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        if target.type == "cuda" and device_limits(target).warpgroups:
            description = with_zero_channels(description)
        return lower(description, target), target, precision


def _supported_gpu(device: torch.device, description: FNODescription) -> torch.device:
    """Return the GPU with its index; raise ChainRefused if the kernels do not run the network there."""
    if not torch.cuda.is_available():
        raise ChainRefused(f"there is no GPU; {native_status().detail}")
    index = torch.cuda.current_device() if device.index is None else device.index
    device = torch.device("cuda", index)
    refused = gpu_refusal(device)
    if refused is not None:
        raise ChainRefused(f"the CUDA kernels are not available: {refused}")
    weights = [s.weight for block in description.blocks for s in block if isinstance(s, Spectral)]
    if weights[0].dtype == torch.complex128:
        raise ChainRefused("the CUDA kernels compute in float32, the network's weights are float64")
    return device
