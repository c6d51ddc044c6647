"""Timing on a GPU: device events, CUDA graphs, the card's own copy bandwidth, and what a figure depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median

import torch

from benchmarks.timing import commit as current_commit
from turbofno_ops import native_status

Call = Callable[[torch.Tensor], torch.Tensor]

_LEAST_ROUNDS = 7


def require_gpu() -> None:
    """Raises SystemExit, with what to do, where there is no GPU or no library of kernels."""
    if not torch.cuda.is_available():
        raise SystemExit(f"nothing measured: PyTorch {torch.__version__} sees no GPU here")
    status = native_status()
    if not status.loaded:
        raise SystemExit(f"nothing measured: the CUDA kernels are not loaded: {status.detail}")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the figures of one run depend on; part of every row."""

    gpu: str
    torch: str
    cuda: str
    commit: str
    at: str


def machine(commit: str | None) -> Machine:
    """This machine; the commit is asked of git where the caller does not know it."""
    return Machine(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        cuda=torch.version.cuda or "none",
        commit=commit or current_commit(),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def described(rows: Iterable[Mapping[str, object]], where: Machine) -> Iterator[dict[str, object]]:
    """The rows as they come, each with the machine it was measured on."""
    return ({**row, **asdict(where)} for row in rows)


def floor_ms(values: int, bytes_each: int, bandwidth: float, *, weight_bytes: int = 0) -> float:
    """Milliseconds to read a field of `values` once and write it once (and read the weights), bandwidth in bytes/s."""
    return (2 * values * bytes_each + weight_bytes) / bandwidth * 1e3


def copy_bandwidth() -> float:
    """Bytes read and written each second by a large copy on the device."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    (ms,) = milliseconds([lambda: target.copy_(source)], seconds=0.05)
    return 2 * source.nbytes / (ms / 1e3)


def rotating(shape: tuple[int, ...], *, most: int = 32) -> list[torch.Tensor]:
    """Random float32 fields, enough of them that their turns do not find them in the L2 cache."""
    one = torch.randn(shape, device="cuda")
    cache: int = torch.cuda.get_device_properties(one.device).L2_cache_size
    count = min(most, -(-2 * cache // one.nbytes))
    return [one, *(torch.randn_like(one) for _ in range(count - 1))]


def each(call: Call, fields: list[torch.Tensor]) -> Callable[[], object]:
    """`call` on every field, issued from Python."""

    def run() -> None:
        for x in fields:
            call(x)

    return run


def in_graph(call: Call, fields: list[torch.Tensor]) -> Callable[[], object]:
    """`call` on every field as one CUDA graph."""
    for x in fields[:2]:
        call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in fields:
            call(x)

    def run(owner: Call = call) -> None:
        # the graph reads memory of `call`, which has to live as long
        del owner
        graph.replay()

    return run


def milliseconds(
    runs: Sequence[Callable[[], object]], *, seconds: float, least_rounds: int = _LEAST_ROUNDS
) -> list[float]:
    """Median device time of each run, in turn so that all see the same machine, for about `seconds` together."""
    taken: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    torch.cuda.synchronize()
    spent = 0.0
    while spent < seconds or len(taken[0]) < least_rounds:
        for run, times in zip(runs, taken, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
            spent += times[-1] / 1e3
    return [median(times) for times in taken]


def ends(x: torch.Tensor) -> torch.Tensor:
    """First and last batch element: what is checked against float64."""
    return x[:1] if len(x) == 1 else torch.stack([x[0], x[-1]])


def relative_l2(value: torch.Tensor, truth: torch.Tensor) -> float:
    """||value - truth|| / ||truth|| of the checked batch elements, in float64 on the CPU."""
    return float((ends(value).cpu().double() - truth).norm() / truth.norm())


def strict_float32(call: Call) -> Call:
    """`call` with convolutions and matrix products in plain float32; PyTorch's default convolves in TF32."""

    def run(x: torch.Tensor) -> torch.Tensor:
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            return call(x)
        finally:
            torch.backends.cudnn.allow_tf32 = before

    return run
