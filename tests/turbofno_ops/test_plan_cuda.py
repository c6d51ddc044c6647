"""`compile_fno` on a GPU: every precision against float64, and its graphs with streams, threads and little memory."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import pytest
import torch

from tests.models.importers.random_canonical import draw_canonical
from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.on_gpu import needs_kernels, poison
from tests.turbofno_ops.random_fno import (
    amplification,
    draw_architecture,
    draw_normalization,
    draw_size,
    field,
    network,
    truth,
)
from turbofno.models.core.architecture import ChannelMLP, FNOArchitecture
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.config import Normalization
from turbofno.models.core.fno import FNO
from turbofno.models.zoo import TRAINED
from turbofno_ops import (
    PRECISIONS,
    CaptureFailed,
    ChainRefused,
    CompiledFNO,
    GraphCache,
    compile_fno,
)

pytestmark = [needs_kernels, pytest.mark.usefixtures("strict_float32")]

# relative L2 error of whole networks against float64
LIMITS = {"fp32": 5e-6, "tf32": 5e-3, "bf16": 3e-2}
ZOO_LIMITS = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-2}

PLAIN = FNOArchitecture(
    in_channels=2,
    out_channels=3,
    hidden_channels=32,
    n_layers=4,
    modes=(12, 8),
    positional_grid="endpoint_excluded",
)
NORMALIZATION = Normalization(
    input_mean=(300.0, 0.0), input_std=(1.0, 2.0), output_mean=(1.0,) * 3, output_std=(0.5,) * 3
)
SIZE = (45, 64)


def compiled(
    module: FNO, precision: str = "fp32", *, max_batch: int = 8, graphs: GraphCache | None = None
) -> CompiledFNO:
    description = module.description()
    return compile_fno(
        description, device="cuda", precision=precision, max_batch=max_batch, graphs=graphs
    )


def limits(module: FNO, x: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """Return the limits for a random network, which is moved to the GPU."""
    # low precision rounds parameters; a few networks nearly cancel what they multiply
    amplified = amplification(module, x, expected) / 3
    # the error of PyTorch shows what float32 loses, as in a small field on a large mean
    own = relative_l2(module.cuda()(x.cuda()).cpu(), expected) / 5e-7
    return {
        precision: limit * max(1.0, own, 0.0 if precision == "fp32" else amplified)
        for precision, limit in LIMITS.items()
    }


def kept(chain: CompiledFNO) -> list[tuple[int, tuple[int, ...]]]:
    """Return buckets and grids of its graphs, least recently used first."""
    return [key for _, key in chain._graphs._kept]


@pytest.fixture(scope="module")
def plain() -> FNO:
    return network(PLAIN, NORMALIZATION)


@pytest.mark.parametrize("draw", range(tried(15, 60)))
def test_random_networks_equal_float64(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    arch = draw_architecture(rng, n_dim=1 + draw % 3)
    module = network(arch, draw_normalization(rng, arch))
    x = field(module, rng.choice([1, 2, 3, 5, 8, 11]), draw_size(rng, arch))
    expected = truth(module, x)
    for precision, limit in limits(module, x, expected).items():
        poison()
        result = compiled(module, precision)(x.cuda())
        assert result.dtype == torch.float32
        error = relative_l2(result.cpu(), expected)
        assert error < limit, (arch, precision)


@pytest.mark.parametrize("draw", range(tried(15, 60)))
def test_imported_networks_are_chains_on_any_grid(draw: int) -> None:
    """Covers mode placements, resolution scaling, paddings and step orders."""
    rng = random.Random(torch.initial_seed() + draw)
    arch = draw_canonical(rng)
    # a norm of a field of one mode, a constant, has only rounding to scale up
    while (arch.resolution_scaling and arch.n_dim == 3) or (
        arch.norm != "none" and max(arch.modes) == 1
    ):
        arch = draw_canonical(rng)
    module = network(arch, draw_normalization(rng, arch))
    # longer than any padding, odd and even
    size = tuple(max(6, k + rng.randint(0, 9)) for k in arch.modes)
    x = field(module, rng.choice([1, 3, 8]), size)
    refused = compiled(module).refusal(size)
    if refused is not None:
        assert "does not hold" in refused
        return
    expected = truth(module, x)
    for precision, limit in limits(module, x, expected).items():
        poison()
        error = relative_l2(compiled(module, precision)(x.cuda()).cpu(), expected)
        assert error < limit, (arch, size, precision)


@pytest.mark.parametrize("draw", range(tried(10, 40)))
def test_imported_networks_run_at_every_precision(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    module = network(draw_canonical(rng))
    x = field(module, 2, tuple(max(2 * k, 12) + rng.randint(0, 9) for k in module.arch.modes))
    expected = truth(module, x)
    for precision, limit in limits(module, x, expected).items():
        result = module.compute_in(precision)(x.cuda())
        assert result.dtype == torch.float32
        error = relative_l2(result.cpu(), expected)
        assert error < limit, (module.arch, precision)


@pytest.mark.parametrize("outputs", [1, 4, 5, 16])
@pytest.mark.parametrize("channels", [16, 32, 64])
def test_wide_maps_of_small_fields_equal_float64(channels: int, outputs: int) -> None:
    """A warp alone copies the weights of up to 1024 hidden channels; up to four outputs are dot products."""
    arch = FNOArchitecture(
        in_channels=2,
        out_channels=outputs,
        hidden_channels=channels,
        n_layers=2,
        modes=(3, 4),
        projection_channels=(min(256, 16384 // channels),),
        channel_mlp=ChannelMLP(hidden_channels=16384 // channels, skip="linear"),
    )
    module = network(arch)
    for batch, size in ((1, (4, 9)), (40, (12, 33))):
        x = field(module, batch, size)
        expected = truth(module, x)
        for precision, limit in LIMITS.items():
            poison()
            error = relative_l2(compiled(module, precision)(x.cuda()).cpu(), expected)
            assert error < limit, (batch, precision)


@pytest.mark.parametrize("name", sorted(p.name for p in TRAINED.iterdir()))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_zoo_models_agree_with_float64(name: str, precision: str) -> None:
    module = load_model(TRAINED / name).module
    x = field(module, 3, (128,) * module.arch.n_dim)
    expected = truth(module, x)
    chain = compiled(module, precision)
    assert relative_l2(chain(x.cuda()).cpu(), expected) < ZOO_LIMITS[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_replays_equal_direct_runs_to_the_bit(plain: FNO, precision: str) -> None:
    chain = compiled(plain, precision)
    for _ in range(3):
        x = field(plain, 8, SIZE).cuda()
        with torch.no_grad():
            direct = chain._run_eager(x, SIZE)
        assert torch.equal(chain(x), direct)


def test_every_batch_up_to_and_beyond_the_largest_bucket(plain: FNO) -> None:
    chain = compiled(plain)
    x = field(plain, 21, SIZE)
    expected = truth(plain, x)
    # a full bucket first: its data must not affect smaller batches
    for batch in (8, 1, 2, 3, 5, 7, 9, 21):
        assert relative_l2(chain(x[:batch].cuda()).cpu(), expected[:batch]) < LIMITS["fp32"]
    assert len(chain._graphs) == 4, "buckets 1, 2, 4, 8"


def test_nan_stays_in_its_batch_element_and_call(plain: FNO) -> None:
    chain = compiled(plain)
    x = field(plain, 4, SIZE).cuda()
    expected = chain(x)
    spoilt = x.clone()
    spoilt[1, 0, 3, 3] = math.nan
    result = chain(spoilt)
    assert result[1].isnan().all()
    assert torch.equal(result[[0, 2, 3]], expected[[0, 2, 3]])
    assert torch.equal(chain(x), expected)


def test_graphs_are_bounded_in_number_and_evicted_by_last_use(plain: FNO) -> None:
    chain = compiled(plain, graphs=GraphCache(2))
    sizes = [(32, 32), (40, 40), (48, 33)]
    fields = [field(plain, 2, size).cuda() for size in sizes]
    first = [chain(x) for x in fields]
    assert [size for _, size in kept(chain)] == sizes[1:]
    again = [chain(x) for x in reversed(fields)][::-1]
    assert [size for _, size in kept(chain)] == sizes[1::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_graphs_are_bounded_in_bytes_and_their_memory_is_freed(plain: FNO) -> None:
    # PyTorch reserves at least 22 MiB per graph; tables and packed weights take another one or two segments of 20 MiB
    bound, slack = 100 * 2**20, 48 * 2**20
    chain = compiled(plain, graphs=GraphCache(50, bound))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for n in range(40, 60):
        chain(field(plain, 8, (n, n)).cuda())
        assert chain._graphs.nbytes <= bound
    assert 1 < len(chain._graphs) < 20
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() - before
    assert abs(held - chain._graphs.nbytes) < slack
    assert chain.device_bytes() > chain._graphs.nbytes
    chain.clear()
    torch.cuda.empty_cache()
    assert chain._graphs.nbytes == 0
    assert torch.cuda.memory_reserved() - before < slack


def test_batches_too_large_for_the_bound_are_split(plain: FNO) -> None:
    chain = compiled(plain, graphs=GraphCache(max_bytes=64 * 2**20))
    x = field(plain, 8, (256, 256))
    assert relative_l2(chain(x.cuda()).cpu(), truth(plain, x)) < LIMITS["fp32"]
    assert max(bucket for bucket, _ in kept(chain)) < 8


def test_calls_on_different_streams_are_independent(plain: FNO) -> None:
    chain = compiled(plain)
    fields = [field(plain, 8, SIZE).cuda() for _ in range(6)]
    expected = [chain(x) for x in fields]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in fields]
    for _ in range(20):
        results = []
        for stream, x in zip(streams, fields, strict=True):
            with torch.cuda.stream(stream):
                results.append(chain(x))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_threads_may_call_capture_and_evict_concurrently(plain: FNO) -> None:
    # two networks, each with a cache for fewer graphs than its callers need
    chains = [
        compiled(plain, graphs=GraphCache(2)),
        compiled(plain, "tf32", graphs=GraphCache(2)),
    ] * 2
    given = [field(plain, 1 + i, (30 + i, 40)).cuda() for i in range(len(chains))]
    others = [field(plain, 8, (64 - i, 33)).cuda() for i in range(len(chains))]
    expected = [chain(x) for chain, x in zip(chains, given, strict=True)]
    torch.cuda.synchronize()
    wrong: list[int] = []
    finished: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(6):
                chains[i](others[i])
                if not torch.equal(chains[i](given[i]), expected[i]):
                    wrong.append(i)
        finished.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(chains))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sorted(finished) == list(range(len(chains)))


def test_what_others_launch_is_not_captured(plain: FNO) -> None:
    # all of PyTorch's streams, as a caller with many threads has them
    streams = {stream.cuda_stream: stream for stream in (torch.cuda.Stream() for _ in range(128))}
    chain, x = compiled(plain), field(plain, 8, SIZE).cuda()
    total, rounds = torch.zeros(1, device="cuda"), 0
    torch.cuda.synchronize()
    done = threading.Event()

    def capture() -> None:
        for points in range(30, 60):
            chain(field(plain, 1, (points, 40)).cuda())
        done.set()

    thread = threading.Thread(target=capture)
    thread.start()
    while not done.is_set():
        for stream in streams.values():
            with torch.cuda.stream(stream):
                total.add_(1)
            stream.synchronize()
            rounds += 1
    thread.join()
    assert total.item() == rounds
    assert torch.equal(chain(x), chain(x))


def test_later_calls_do_not_overwrite_a_result(plain: FNO) -> None:
    chain = compiled(plain)
    first = chain(field(plain, 4, SIZE).cuda())
    kept = first.clone()
    with torch.inference_mode():
        chain(field(plain, 4, SIZE).cuda())
    assert torch.equal(first, kept)


class Surrounding:
    """Reads x from pinned memory, and writes the network's output and its sums there."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x.clone().pin_memory()
        self.y = self.sums = torch.empty(0)
        self.calls = 0

    def __call__(self, network: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.calls += 1
        y = network(self.x.to("cuda", non_blocking=True))
        sums = y.sum((-2, -1))
        if self.calls == 1:
            self.y, self.sums = (torch.empty(of.shape, pin_memory=True) for of in (y, sums))
        self.y.copy_(y, non_blocking=True)
        self.sums.copy_(sums, non_blocking=True)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_surrounds_a_network_runs_in_its_graph(plain: FNO, precision: str) -> None:
    chain = compiled(plain, precision)
    surroundings = [Surrounding(field(plain, 3, SIZE)) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in surroundings]
    for round_ in range(6):
        if round_ == 3:
            chain.clear()
        expected = []
        for of in surroundings:
            of.x.copy_(field(plain, 3, SIZE))
            expected.append(chain(of.x.cuda()).cpu())
        torch.cuda.synchronize()
        for of, stream in zip(surroundings, streams, strict=True):
            with torch.cuda.stream(stream):
                assert chain.holds(of, 3, SIZE) == (round_ not in {0, 3})
                chain.run_within(of, 3, SIZE)
        torch.cuda.synchronize()
        for of, y in zip(surroundings, expected, strict=True):
            assert relative_l2(of.y, y) < (1e-6 if precision == "fp32" else LIMITS[precision])
            torch.testing.assert_close(of.sums, of.y.sum((-2, -1)), rtol=1e-4, atol=1e-2)
            assert of.calls == (2 if round_ < 3 else 4), "again only after the graphs were freed"


def test_what_cannot_surround_a_network_is_refused(plain: FNO) -> None:
    chain = compiled(plain)
    x = field(plain, 2, SIZE).cuda()

    def waits(network: Callable[[torch.Tensor], torch.Tensor]) -> None:
        network(x).sum().item()

    with pytest.raises(CaptureFailed):
        chain.run_within(waits, 2, SIZE)
    with pytest.raises(
        ValueError,
        match=r"x must be torch.float32 \[4, 2, 45, 64\], got torch.float32 \[2, 2, 45, 64\]",
    ):
        chain.run_within(lambda network: network(x), 4, SIZE)
    with pytest.raises(ChainRefused, match="a graph takes 1 to 8 fields, not 9"):
        chain.run_within(lambda network: network(x), 9, SIZE)
    with pytest.raises(ChainRefused, match="does not hold the network's modes"):
        chain.run_within(lambda network: network(x), 2, (4, 4))
    assert relative_l2(chain(x).cpu(), truth(plain, x.cpu())) < LIMITS["fp32"]


def test_for_what_surrounds_the_network_no_other_graph_is_freed(plain: FNO) -> None:
    x, chain, calls = field(plain, 2, SIZE).cuda(), compiled(plain), 0
    expected, held = chain(x), chain.device_bytes()

    def around(_: object) -> None:
        nonlocal calls
        calls += 1
        raise torch.OutOfMemoryError("none left")

    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        chain.run_within(around, 2, SIZE)
    assert (calls, chain.device_bytes()) == (1, held)
    assert torch.equal(chain(x), expected)


def test_autocast_of_the_caller_changes_nothing(plain: FNO) -> None:
    x = field(plain, 4, SIZE).cuda()
    expected, chain = compiled(plain)(x), compiled(plain)
    with torch.autocast("cuda", torch.bfloat16):
        results = [chain(x.clone()) for _ in range(2)]
    for result in results:
        assert torch.equal(result, expected)
        assert not result.requires_grad


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_network_runs_on_its_card_whatever_the_current_one_is(plain: FNO) -> None:
    x = field(plain, 5, SIZE)
    chain = compile_fno(plain.description(), device="cuda:1", max_batch=8)
    with torch.cuda.device(0):
        results = [chain(x.to("cuda:1")) for _ in range(3)]
    assert {result.device.index for result in results} == {1}
    assert all(relative_l2(y.cpu(), truth(plain, x)) < LIMITS["fp32"] for y in results)


def test_out_of_memory_is_raised_and_recoverable(plain: FNO) -> None:
    chain = compiled(plain, max_batch=64, graphs=GraphCache(max_bytes=2**40))
    x = field(plain, 4, SIZE).cuda()
    expected = chain(x)
    large, stream = torch.zeros(64, 2, 512, 512, device="cuda"), torch.cuda.current_stream()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**30) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            chain(large)
        assert torch.cuda.current_stream() == stream
        assert torch.equal(chain(x), expected)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    chain.clear()
    assert torch.equal(chain(x), expected)


def test_unsupported_networks_are_refused_with_a_reason() -> None:
    wide = PLAIN.model_copy(update={"hidden_channels": 300})
    refused = compiled(network(wide)).refusal(SIZE)
    assert refused is not None
    assert "channel" in refused
    with pytest.raises(ChainRefused, match="float64"):
        compiled(network(PLAIN).double())
