"""`compile_fno`: a whole Fourier neural operator as one chain of stages, replayed as CUDA graphs."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import torch

from turbofno_ops._check import check
from turbofno_ops._cuda import CudaStages, field_dtype
from turbofno_ops._graphs import Graph, GraphCache
from turbofno_ops._lower import Chain, Mix, Tile, lower
from turbofno_ops._modes import axis_limits
from turbofno_ops._native import native_status
from turbofno_ops._pass import Frame, Leg, Pass, bytes_of_one, legs, size_after
from turbofno_ops._served import gpu_refusal, product_refusal, program_refusal
from turbofno_ops._stages import Stages
from turbofno_ops._tile_program import kept_bytes
from turbofno_ops._torch_stages import TorchStages
from turbofno_ops.description import PRECISIONS, ChainRefused, FNODescription, Size, Spectral

_MOST_VERDICTS = 4096


class _Verdict(NamedTuple):
    """Of a grid: why it does not run, or None; the result's grid; the largest bucket that fits the graphs' memory."""

    refusal: str | None
    out_size: Size = ()
    largest_bucket: int = 0


class CompiledFNO:
    """A Fourier neural operator ready to run on one device; made by `compile_fno`. Gives no gradients.

    On a GPU a batch is padded up to the next of `buckets()`, and every (bucket, grid) is a CUDA graph,
    captured when it is first met. Larger batches run in pieces of the largest bucket, or of a smaller one
    on grids so large that it would not fit into the graphs' memory. On a CPU the stages run as they are.

    Any thread and any CUDA stream may call it: work is queued on the caller's current stream, calls that
    share a graph run one after the other. The result is a tensor of the caller's own.

    Attributes:
        device: Where it runs.
        dtype: Of input and output: float32; float64 on a CPU if the description's weights are.
        backend: 'cuda' (our kernels) or 'gemm' (plain torch).
        precision: What products are computed in; on a CPU always 'fp32', which is never coarser.
    """

    def __init__(
        self,
        chain: Chain,
        device: torch.device,
        precision: str,
        buckets: tuple[int, ...],
        graphs: GraphCache,
    ) -> None:
        self.device = device
        self.dtype = chain.dtype
        self.backend = "cuda" if device.type == "cuda" else "gemm"
        self.precision = precision
        self._chain = chain
        self._buckets, self._graphs = buckets, graphs
        self._owner = object()
        self._verdicts: dict[Size, _Verdict] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, in_channels, *grid] -> [batch, out_channels, *grid], physical units, on `device`.

        The grids differ only where layers change the resolution.

        Raises:
            TypeError: x is not of `dtype`.
            ValueError: its shape or device does not fit the network.
            ChainRefused: its grid does not run as a chain (`refusal` tells in advance).
            torch.OutOfMemoryError: a graph or its buffers do not fit; a smaller batch may.
        """
        self._check(x)
        if x.shape[0] == 0:
            return self._empty(x)
        with torch.no_grad():
            if self.backend == "cuda":
                with torch.cuda.device(self.device):
                    return self._replayed(x)
            return self._directly(x)

    def refusal(self, size: Size) -> str | None:
        """Why a grid does not run as a chain, in words, or None if it does."""
        return self._verdict(size).refusal

    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that graphs are made for."""
        return self._buckets

    def device_bytes(self) -> int:
        """Bytes held on the device: weights, operands made of them, and its own graphs with their buffers."""
        steps = [s for item in self._chain.items if isinstance(item, Tile) for s in item.steps]
        return self._chain.nbytes + kept_bytes(steps) + self._graphs.bytes_of(self._owner)

    def clear(self) -> None:
        """Let all of its graphs and their memory go; later calls capture them anew."""
        with self._graphs.lock:
            self._graphs.drop(self._owner)

    def _check(self, x: torch.Tensor) -> None:
        channels = self._chain.in_channels
        if x.dtype != self.dtype:
            raise TypeError(f"the network was compiled for {self.dtype}, x is {x.dtype}")
        if x.device != self.device:
            raise ValueError(f"the network is on {self.device}, x on {x.device}; move x")
        if x.ndim < 3 or x.shape[1] != channels or min(x.shape[2:]) < 1:
            raise ValueError(
                f"x must be [batch, {channels}, *grid] with a point or more on every axis, "
                f"got shape {list(x.shape)}"
            )
        refused = self.refusal(tuple(x.shape[2:]))
        if refused is not None:
            raise ChainRefused(refused)

    def _verdict(self, size: Size) -> _Verdict:
        found = self._verdicts.get(size)
        if found is None:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            found = self._verdicts[size] = self._judge(size)
        return found

    def _judge(self, size: Size) -> _Verdict:
        chain = self._chain
        grid = "x".join(map(str, size))
        if len(size) != chain.n_dim:
            return _Verdict(f"the network has {chain.n_dim} grid axes, the grid {grid} has not")
        if chain.grid not in (None, size):
            return _Verdict(f"its normalisation is a field of another grid than {grid}")
        frame = Frame.of(chain, size)
        on_grid = legs(chain, frame.padded, shapes_only=True)
        if not all(_holds_modes(leg) for leg in on_grid):
            return _Verdict(f"the grid {grid} does not hold the network's modes")
        mixes = [item for item in chain.items if isinstance(item, Mix)]
        between = zip(mixes, ({*leg.size, *leg.out_size} for leg in on_grid), strict=True)
        # such a resampling need not keep constants, and maps and biases are taken past it
        if any(mix.resamples_x and 1 in points for mix, points in between):
            return _Verdict(f"on the grid {grid} a layer resamples an axis of one point")
        one = bytes_of_one(chain, on_grid, field_dtype(self.precision))
        fitting = [bucket for bucket in self._buckets if bucket * one <= self._graphs.most_bytes]
        largest = fitting[-1] if fitting else 1
        on_gpu = self.backend == "cuda"
        refused = self._kernels_refusal(on_grid, largest) if on_gpu else None
        return _Verdict(refused, size_after(frame, on_grid), largest)

    def _kernels_refusal(self, on_grid: list[Leg], batch: int) -> str | None:
        """Why the kernels do not run the chain on some grid, in words, or None if they do."""
        layers, done, size, mixed_modes = len(on_grid), 0, on_grid[0].size, 0
        for item in self._chain.items:
            leg = on_grid[min(done, layers - 1)]
            if isinstance(item, Tile):
                where = "after" if done == layers else "before"
                refused = program_refusal(
                    item.steps,
                    batch=batch,
                    channels=item.channels,
                    channels_of_x=item.channels_of_x,
                    size=size,
                    modes=mixed_modes,
                    next_modes=leg.modes[-1],
                    precision=self.precision,
                    device=self.device,
                )
            else:
                where = "in"
                c_in, c_out = leg.weights[0].shape[-2:]
                refused = product_refusal(
                    batch, c_in, c_out, leg.size, leg.out_size, leg.modes, self.precision
                )
            if refused is not None:
                return f"{where} layer {min(done + 1, layers)} of {layers}: {refused}"
            if isinstance(item, Mix):
                size, done, mixed_modes = leg.out_size, done + 1, leg.modes[-1]
        return None

    def _pass(self, size: Size) -> Pass:
        return Pass(self._chain, size, self._stages, device=self.device)

    def _stages(self, size: Size, modes: Size, out_size: Size) -> Stages:
        if self.backend != "cuda":
            return TorchStages(size, modes, out_size)
        return CudaStages(
            size, modes, device=self.device, precision=self.precision, out_size=out_size
        )

    def _directly(self, x: torch.Tensor) -> torch.Tensor:
        forward = self._pass(tuple(x.shape[2:]))
        buffer = forward.buffer(x.shape[0])
        forward.load(x, forward.slot(buffer))
        return forward.run(buffer).contiguous()

    def _replayed(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, *grid = x.shape
        size, out = tuple(grid), self._empty(x)
        largest = self._verdict(size).largest_bucket
        if batch <= largest:
            self._run(x, out, size)
        else:
            for piece, part in zip(x.split(largest), out.split(largest), strict=True):
                self._run(piece, part, size)
        return out

    def _empty(self, x: torch.Tensor) -> torch.Tensor:
        """Room for the result."""
        out_size = self._verdict(tuple(x.shape[2:])).out_size
        return x.new_empty(x.shape[0], self._chain.out_channels, *out_size)

    def _run(self, x: torch.Tensor, out: torch.Tensor, size: Size) -> None:
        bucket = self._buckets[bisect_left(self._buckets, x.shape[0])]
        with self._graphs.lock:
            graph = self._graphs.get(
                self._owner, (bucket, size), lambda: self._captured(bucket, size)
            )
            graph.run(x, out)

    def _captured(self, bucket: int, size: Size) -> Graph:
        # its buffers are written to in later calls, whatever mode the caller of this one is in
        with torch.inference_mode(False), torch.no_grad():
            return Graph(self._pass(size), bucket, self.device)


def _holds_modes(leg: Leg) -> bool:
    """True if the grids of a product hold its modes; those of the other axes may fold over in the result."""
    limits = axis_limits((*leg.size[:-1], min(leg.size[-1], leg.out_size[-1])))
    return min(leg.out_size) > 0 and all(
        k <= limit for k, limit in zip(leg.modes, limits, strict=True)
    )


def _buckets(most: int) -> tuple[int, ...]:
    """Powers of two below `most`, and `most`."""
    return (*(2**i for i in range((most - 1).bit_length())), most)


def compile_fno(
    description: FNODescription,
    *,
    device: torch.device | str,
    precision: str = "fp32",
    max_batch: int = 64,
    graphs: GraphCache | None = None,
) -> CompiledFNO:
    """Fold, cast and move a network's weights, for one chain of stages on `device`. Captures nothing yet.

    Args:
        description: The network (`turbofno.models.core.fno.FNO.description()` gives one).
        device: A CUDA device, or a CPU.
        precision: 'fp32', 'tf32' or 'bf16', as `fourier_layer` takes it. Weights of the spectral mix and
            spectra are float32 under all of them.
        max_batch: The largest bucket.
        graphs: Keeps and bounds the graphs; one that others share, or with other bounds. By default one of its own.

    Raises:
        ChainRefused: the description contradicts itself, or the device cannot run it; run the module itself.
        ValueError: unknown precision, or `max_batch` under 1.

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
    if precision not in PRECISIONS:
        raise ValueError(f"compile_fno: precision must be one of {PRECISIONS}, got {precision!r}")
    if max_batch < 1:
        raise ValueError(f"compile_fno: max_batch must be at least 1, got {max_batch}")
    check(description)
    target = torch.device(device)
    if target.type == "cuda":
        target = _usable_gpu(target, description)
    elif target.type == "cpu":
        precision = "fp32"
    else:
        raise ChainRefused(f"chains run on CUDA devices and CPUs, not on {target}")
    with torch.inference_mode(False), torch.no_grad():
        chain = lower(description, target)
    graphs = GraphCache() if graphs is None else graphs
    return CompiledFNO(chain, target, precision, _buckets(max_batch), graphs)


def _usable_gpu(device: torch.device, description: FNODescription) -> torch.device:
    """The GPU by its index, if the kernels run the network there."""
    if not torch.cuda.is_available():
        raise ChainRefused(f"there is no GPU; {native_status().detail}")
    index = torch.cuda.current_device() if device.index is None else device.index
    device = torch.device("cuda", index)
    refused = gpu_refusal(device)
    if refused is not None:
        raise ChainRefused(f"the CUDA kernels do not run: {refused}")
    weights = [s.weight for block in description.blocks for s in block if isinstance(s, Spectral)]
    if weights[0].dtype == torch.complex128:
        raise ChainRefused("the CUDA kernels compute in float32, the network's weights are float64")
    return device
