"""Networks and FFTs on fields cut over 1, 2, 4 .. GPUs: time, efficiency, communication's share, memory a card.

`python -m benchmarks.distributed` starts one process a card by itself and writes results/distributed.jsonl. Without a GPU it
runs on CPUs (gloo), which `--small` makes quick; such a run writes no file.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing as mp
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from queue import Empty
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist

from benchmarks.gpu.device import in_graph, machine
from benchmarks.page import read
from benchmarks.timing import RESULTS, print_table, save
from turbofno.service.runtime.slabs import Slabs
from turbofno_ops import (
    Activate,
    AddMap,
    Affine,
    FNODescription,
    PointwiseMap,
    Spectral,
    compile_fno,
    distributed,
)
from turbofno_ops.distributed.slabs import slab_of

Row = dict[str, Any]

_TRIAL_SECONDS = 240
_COLLECTIVE_SECONDS = 60
_SLABS, _PLAIN = "slabs", "plain PyTorch"
_STEP = 64  # of the search for the largest grid
_PUBLISHED = (
    # forward and back, single precision, 1024^3: table 4 of Verma et al. 2022, in ms by cards
    ("cuFFTXT, A100 (Verma et al. 2022)", {2: 27.0, 4: 15.0, 8: 11.0}),
    ("GPU-FFT, A100 (Verma et al. 2022)", {2: 44.0, 4: 28.0, 8: 17.6}),
)


@dataclass(frozen=True)
class Network:
    """Hidden channels, points of each of three axes, modes of the last axis (twice as many on the others)."""

    channels: int
    points: int
    modes: int

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"C{self.channels} {self.points}^3 m{self.modes}"

    @property
    def kept(self) -> tuple[int, int, int]:
        """Kept modes of the axes."""
        return 2 * self.modes, 2 * self.modes, self.modes

    def description(self, layers: int, device: torch.device) -> FNODescription:
        """A network of `layers` with random weights, the same on all processes."""
        torch.manual_seed(layers)
        c = self.channels

        def matrix(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=device) / math.sqrt(shape[-1])

        def spectral() -> Spectral:
            weight = torch.randn(*self.kept, c, c, dtype=torch.complex64, device=device)
            return Spectral(weight.mul_(1 / math.sqrt(c)).permute(3, 4, 0, 1, 2))

        def block() -> tuple[Any, ...]:
            return spectral(), AddMap(matrix(c, c)), Affine(None, matrix(c)), Activate("gelu")

        return FNODescription(
            in_channels=1,
            lifting=(PointwiseMap(matrix(c, 1)),),
            blocks=tuple(block() for _ in range(layers)),
            projection=(PointwiseMap(matrix(1, c)),),
        )


NETWORKS = (Network(32, 512, 16), Network(20, 256, 24))
FFT_POINTS = 1024
SMALL = (Network(4, 32, 4),)
SMALL_FFT_POINTS = 48


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _ms(call: Callable[[], object], device: torch.device, rounds: int = 11) -> float:
    """Median milliseconds of a call that all processes make together; that of the slowest process."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(rounds):
        _synchronize(device)
        dist.barrier()
        began = time.perf_counter()
        call()
        _synchronize(device)
        taken.append(time.perf_counter() - began)
    slowest = torch.tensor([1e3 * median(taken)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _reserved_gib(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


_IN_A_ROW = 8


def _network_ms(
    network: Network, layers: int, device: torch.device
) -> tuple[float, float, float | None]:
    """Milliseconds of a prediction alone and of one of several in a row, and GiB in use on a card."""
    count, n = dist.get_world_size(), network.points
    description = network.description(layers, device)
    call: Callable[[torch.Tensor], torch.Tensor]
    if count == 1:
        whole = compile_fno(description, device=device, max_batch=1)
        call, clear = whole, whole.clear
    else:
        slabs = distributed.compile_fno(description, device=device)
        call, clear = partial(slabs, size=(n, n, n)), slabs.clear
    del description
    x = torch.randn(1, 1, len(distributed.slab_rows(n)), n, n, device=device)
    ms = _ms(lambda: call(x), device)
    row_ms = _ms(lambda: [call(x) for _ in range(_IN_A_ROW)], device) / _IN_A_ROW
    memory = _reserved_gib(device)
    clear()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return ms, row_ms, memory


def _served(network: Network, device: torch.device) -> tuple[float, float | None]:
    """As `_network_ms` of 4 layers for whole fields in page-locked memory, which an engine of these cards predicts in a row."""
    description, n = network.description(4, device), network.points
    loaded = SimpleNamespace(
        module=SimpleNamespace(description=lambda: description),
        config=SimpleNamespace(statistics=None),
    )
    slabs = Slabs(device)
    slabs.add(1, cast("Any", loaded), "fp32")
    x, y = (torch.zeros(1, 1, n, n, n, pin_memory=device.type == "cuda") for _ in range(2))
    x.normal_()
    inputs, outputs = ([one.numpy()] * _IN_A_ROW for one in (x, y))
    ms = _ms(lambda: slabs.predict(1, inputs, outputs), device) / _IN_A_ROW
    memory = _reserved_gib(device)
    rows = distributed.slab_rows(n)
    own = slice(rows.start, rows.stop)
    expected = slabs.network(1)(x[:, :, own].to(device), (n, n, n))
    assert torch.equal(y[:, :, own], expected.cpu())
    slabs.clear(1)
    return ms, memory


_EXCHANGES = 8  # of a graph


def _exchange_ms(network: Network, device: torch.device) -> float:
    """Milliseconds that a layer's kept modes take between the cards, without the product that they may be a part of."""
    slab = slab_of("benchmark", None)
    if slab.count == 1:
        return 0.0
    *others, last = network.kept
    modes, c = math.prod(others), network.channels
    sums = torch.zeros(modes, c * last, dtype=torch.complex64, device=device)
    replicated = modes * last * c * c * sums.itemsize <= distributed.network.REPLICATED_BYTES
    share = modes if replicated else slab.share(modes)
    memory = (
        None if replicated else slab.peer_memory(2 * slab.count * share * sums[0].nbytes, device)
    )
    if memory is None:
        weight = torch.empty(share, 1, 1, 1, device=device)
        return _ms_in_graph(lambda: slab.on_sum(sums, weight, lambda z, _: z), device)

    def shares(first: int) -> list[torch.Tensor]:
        at = (first * slab.count + slab.rank) * share * sums[0].nbytes
        shape = share, sums.shape[1]
        return [memory.of(rank, shape, sums.dtype, at) for rank in range(slab.count)]

    parts, products = shares(0), shares(1)

    def exchange() -> None:
        memory.barrier()
        own = torch.stack(parts).sum(0)
        for product in products:
            product.copy_(own)
        memory.barrier()

    return _ms_in_graph(exchange, device)


def _ms_in_graph(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        return _ms(call, device)

    def called(x: torch.Tensor) -> torch.Tensor:
        call()
        return x

    return _ms(in_graph(called, [torch.empty(0)] * _EXCHANGES), device) / _EXCHANGES


def _networks(networks: tuple[Network, ...], device: torch.device) -> Iterator[Row]:
    for network in networks:
        _, two, _ = _network_ms(network, 2, device)
        _, six, _ = _network_ms(network, 6, device)
        four, row, memory = _network_ms(network, 4, device)
        exchange, layer = _exchange_ms(network, device), (six - two) / 4
        measured = [
            ("layer", layer, 1, memory),
            ("network of 4 layers", four, 4, memory),
            (f"network of 4 layers, each of {_IN_A_ROW} fields in a row", row, 4, memory),
        ]
        if dist.get_world_size() > 1:
            ms, memory = _served(network, device)
            measured.append((f"{_IN_A_ROW} fields from and to the host, each", ms, 4, memory))
        for what, ms, exchanges, gib in measured:
            yield {
                "what": f"{what}, {network.name}",
                "ms": ms,
                "exchange_ms": exchanges * exchange,
                "communication": exchanges * exchange / ms,
                "gib_a_card": gib,
            }


def _plain_pair(x: torch.Tensor, points: int) -> torch.Tensor:
    """FFT and inverse by torch.fft and all_to_all_single, in evenly cut slabs."""
    count = dist.get_world_size()
    if count == 1:
        return torch.fft.ifftn(torch.fft.fftn(x))
    rows, others = x.shape[0], points // count
    y = torch.fft.fft2(x).view(rows, count, others, points).transpose(0, 1).contiguous()
    z = torch.empty_like(y)
    dist.all_to_all_single(torch.view_as_real(z), torch.view_as_real(y))
    spectrum = torch.fft.fft(z.view(points, others, points), dim=0)
    back = torch.fft.ifft(spectrum, dim=0).contiguous()
    dist.all_to_all_single(torch.view_as_real(y), torch.view_as_real(back))
    return torch.fft.ifft2(y.transpose(0, 1).reshape(rows, points, points))


def _plain_real_pair(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfftn(torch.fft.rfftn(x), s=x.shape)


def _exchanges_ms(points: int, dtype: torch.dtype, device: torch.device) -> float:
    """Milliseconds of the exchanges of a pair alone, by all_to_all_single."""
    count = dist.get_world_size()
    if count == 1:
        return 0.0
    last = points // 2 + 1 if dtype == torch.float32 else points
    y = torch.zeros(count, points // count, points // count, last, 2, device=device)
    z = torch.empty_like(y)
    return 2 * _ms(lambda: dist.all_to_all_single(z, y), device)


def _ffts(points: int, device: torch.device) -> Iterator[Row]:
    size = (points, points, points)
    there: dict[str, Any] = {"size": size, "output_order": "transposed"}
    back: dict[str, Any] = {"size": size, "input_order": "transposed"}
    rows = len(distributed.slab_rows(points))
    for name, dtype in (("complex", torch.complex64), ("real", torch.float32)):
        x = torch.randn(rows, points, points, dtype=dtype, device=device)
        forward, inverse = (
            (distributed.fftn, distributed.ifftn)
            if dtype.is_complex
            else (distributed.rfftn, distributed.irfftn)
        )

        def ours(
            x: torch.Tensor = x, forward: Any = forward, inverse: Any = inverse
        ) -> torch.Tensor:
            result: torch.Tensor = inverse(forward(x, **there), **back)
            return result

        error = torch.stack([(ours() - x).abs().square().sum(), x.abs().square().sum()])
        dist.all_reduce(error)
        what = f"{name} FFT and back, {points}^3"
        exchange = _exchanges_ms(points, dtype, device)
        if dist.get_world_size() > 1:
            ms = _ms(ours, device)
            yield {
                "what": f"{what}, {_SLABS}",
                "ms": ms,
                "exchange_ms": exchange,
                "error": float((error[0] / error[1]).sqrt()),
                "gib_a_card": _reserved_gib(device),
            }
        if dtype.is_complex and points % dist.get_world_size() == 0:
            plain = partial(_plain_pair, x, points)
            yield {"what": f"{what}, {_PLAIN}", "ms": _ms(plain, device)}
        elif dist.get_world_size() == 1:
            plain = partial(_plain_real_pair, x)
            yield {"what": f"{what}, {_PLAIN}", "ms": _ms(plain, device)}


def _fits(network: Network, device: torch.device) -> Iterator[Row]:
    ms, _, memory = _network_ms(network, 4, device)
    what = f"largest grid, C{network.channels} m{network.modes}, 4 layers"
    yield {"what": what, "grid": f"{network.points}^3", "ms": ms, "gib_a_card": memory}


Measure = Callable[[torch.device], Iterator[Row]]


def _work(rank: int, count: int, port: int, measure: Measure, rows: mp.Queue[Row]) -> None:
    """One process: join the group, measure, and on rank 0 send the rows."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    # so that an exchange begins while transforms fill the card
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True) if on_gpu else None
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://localhost:{port}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=_COLLECTIVE_SECONDS),
        pg_options=options,
        device_id=device if on_gpu else None,
    )
    for row in measure(device):
        if rank == 0:
            rows.put(row)
    dist.destroy_process_group()


def _measured(count: int, measure: Measure) -> list[Row] | None:
    """Measure with `count` processes; None if one of them failed."""
    context = mp.get_context("spawn")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    queue: mp.Queue[Row] = context.Queue()
    workers = [
        context.Process(target=_work, args=(rank, count, port, measure, queue))
        for rank in range(count)
    ]
    for worker in workers:
        worker.start()
    found, end = [], time.monotonic() + _TRIAL_SECONDS
    while time.monotonic() < end and any(worker.is_alive() for worker in workers):
        with suppress(Empty):
            found.append(queue.get(timeout=0.2))
        if any(worker.exitcode for worker in workers):
            break
    for worker in workers:
        worker.join(5)
        worker.kill()
        worker.join()
    with suppress(Empty):
        while True:
            found.append(queue.get(timeout=0.2))
    failed = any(worker.exitcode for worker in workers)
    return None if failed else [{"cards": count, **row} for row in found]


def _largest(count: int, network: Network) -> list[Row]:
    """Search the largest cubic grid from where two fields fill the cards, downwards."""
    memory = torch.cuda.get_device_properties(0).total_memory
    most = (count * memory / (2 * 4 * network.channels)) ** (1 / 3)
    for points in range(int(most) // _STEP * _STEP, 0, -_STEP):
        tried = Network(network.channels, points, network.modes)
        found = _measured(count, partial(_fits, tried))
        if found is not None:
            return found
        print(f"{points}^3 does not fit {count} cards", flush=True)
    return []


def _with_efficiency(rows: list[Row]) -> list[Row]:
    """Add to each row the time of one card of its kind, by cards and time; an FFT of slabs is compared with plain PyTorch's."""
    alone = {
        (row.get("gpu"), row["what"]): row["ms"]
        for row in rows
        if row["cards"] == 1 and "grid" not in row
    }
    alone |= {(gpu, what.replace(_PLAIN, _SLABS)): ms for (gpu, what), ms in alone.items()}
    return [
        {**row, "efficiency": alone[of] / (row["cards"] * row["ms"])}
        if (of := (row.get("gpu"), row["what"])) in alone
        else row
        for row in rows
    ]


def main() -> None:
    """Measure by numbers of cards, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cards", type=int, nargs="+", help="numbers of cards (default: 1, 2, 4, 8)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=["networks", "fft", "largest"],
        help="the last results of the others are kept",
    )
    parser.add_argument("--small", action="store_true", help="small grids, to see that it runs")
    parser.add_argument("--commit", help="name of the commit, if the tree is no git checkout")
    parser.add_argument("--fft-points", type=int, help=f"of each axis (default: {FFT_POINTS})")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    there = torch.cuda.device_count() if on_gpu else 2
    counts = given.cards or [count for count in (1, 2, 4, 8) if count <= there]
    only = given.only or ["networks", "fft", "largest"]
    networks = SMALL if given.small else NETWORKS
    points = given.fft_points or (SMALL_FFT_POINTS if given.small else FFT_POINTS)
    rows: list[Row] = []
    for count in counts:
        if "networks" in only:
            for network in networks:
                rows += _reported(count, partial(_networks, (network,)))
        if "fft" in only:
            rows += _reported(count, partial(_ffts, points))
        if "largest" in only and on_gpu and not given.small:
            rows += _largest(count, networks[0])
    if points == FFT_POINTS and "fft" in only:
        rows += [
            {
                "cards": cards,
                "what": f"complex FFT and back, {points}^3, {who}",
                "ms": ms,
                "gpu": None,
            }
            for who, times in _PUBLISHED
            for cards, ms in times.items()
        ]
    if on_gpu and not given.small:
        where = asdict(machine(given.commit))
        rows = [{**where, **row} for row in rows]
        rows = _with_efficiency(rows + _others(rows))
        print(f"\nwritten to {save('distributed', rows, named=given.commit)}")
    else:
        rows = _with_efficiency(rows)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print_table("Cut over cards", [{key: row.get(key) for key in columns} for row in rows])


def _others(found: list[Row]) -> list[Row]:
    """Rows of the last results that were not measured again on GPUs of this kind."""

    def measured(row: Row) -> tuple[str | None, int, str]:
        return row["gpu"], row["cards"], row["what"]

    file, again = RESULTS / "distributed.jsonl", set(map(measured, found))
    last = read(file)[1:] if file.is_file() else []
    return [row for row in last if measured(row) not in again]


def _reported(count: int, measure: Measure) -> list[Row]:
    found = _measured(count, measure)
    if found is None:
        print(f"a process failed, with {count} cards; its error is above", flush=True)
        return []
    for row in found:
        print(row, flush=True)
    return found


if __name__ == "__main__":
    main()
