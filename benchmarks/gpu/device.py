"""Timing on a GPU: device events, CUDA graphs, copy bandwidth, relative errors."""

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
    """Raise SystemExit if there is no GPU or the kernels are not loaded."""
    if not torch.cuda.is_available():
        raise SystemExit(f"nothing measured: PyTorch {torch.__version__} sees no GPU here")
    status = native_status()
    if not status.loaded:
        raise SystemExit(f"nothing measured: the CUDA kernels are not loaded: {status.detail}")


@dataclass(frozen=True, slots=True)
class Machine:
    """GPU, versions, commit and time of a run; part of every row."""

    gpu: str
    torch: str
    cuda: str
    commit: str
    at: str


def machine(commit: str | None) -> Machine:
    """This machine. Without `commit`, git is asked."""
    return Machine(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        cuda=torch.version.cuda or "none",
        commit=commit or current_commit(),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def described(rows: Iterable[Mapping[str, object]], where: Machine) -> Iterator[dict[str, object]]:
    """The rows, each with the machine that it was measured on."""
    return ({**row, **asdict(where)} for row in rows)


def floor_ms(values: int, bytes_each: int, bandwidth: float, *, modes: int = 0) -> float:
    """Milliseconds to read a field of `values` once and write it once (and `modes` complex64 ones) at `bandwidth` bytes/s."""
    return 2 * (values * bytes_each + modes * 8) / bandwidth * 1e3


def copy_bandwidth() -> float:
    """Bytes read and written a second by a large copy on the device."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    (ms,) = milliseconds([lambda: target.copy_(source)], seconds=0.05)
    return 2 * source.nbytes / (ms / 1e3)


def rotating(shape: tuple[int, ...], *, most: int = 32) -> list[torch.Tensor]:
    """Random float32 fields: so many that, used in turn, they are no longer in the L2 cache."""
    one = torch.randn(shape, device="cuda")
    cache: int = torch.cuda.get_device_properties(one.device).L2_cache_size
    count = min(most, -(-2 * cache // one.nbytes))
    return [one, *(torch.randn_like(one) for _ in range(count - 1))]


def each(call: Call, fields: list[torch.Tensor]) -> Callable[[], object]:
    """A function that calls `call` on every field."""

    def run() -> None:
        for x in fields:
            call(x)

    return run


def in_graph(call: Call, fields: list[torch.Tensor]) -> Callable[[], object]:
    """A function that replays a CUDA graph of `call` on every field."""
    for x in fields[:2]:
        call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for x in fields:
            call(x)

    def run(owner: Call = call) -> None:
        # the graph uses memory that `call` owns; this argument keeps it alive
        del owner
        graph.replay()

    return run


def milliseconds(
    runs: Sequence[Callable[[], object]], *, seconds: float, least_rounds: int = _LEAST_ROUNDS
) -> list[float]:
    """Median device time of each run, for about `seconds` in total.

    They are called in turn, each twice, of which the second call is timed: the first one is slow on the host, whose caches are
    full of the run before it, and the GPU waits for its launches.
    """
    taken: list[list[float]] = [[] for _ in runs]
    spent = 0.0
    while spent < seconds or len(taken[0]) < least_rounds:
        for run, times in zip(runs, taken, strict=True):
            run()
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
            spent += 2 * times[-1] / 1e3
    return [median(times) for times in taken]


def ends(x: torch.Tensor) -> torch.Tensor:
    """First and last batch element, which are checked against float64."""
    return x[:1] if len(x) == 1 else torch.stack([x[0], x[-1]])


def relative_l2(value: torch.Tensor, truth: torch.Tensor) -> float:
    """||value - truth|| / ||truth|| of the checked batch elements, in float64 on the CPU."""
    return float((ends(value).cpu().double() - truth).norm() / truth.norm())


def strict_float32(call: Call) -> Call:
    """`call` with convolutions in float32; by default PyTorch uses TF32 for them."""

    def run(x: torch.Tensor) -> torch.Tensor:
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            return call(x)
        finally:
            torch.backends.cudnn.allow_tf32 = before

    return run
