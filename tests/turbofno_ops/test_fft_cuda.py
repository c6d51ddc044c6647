"""`turbofno_ops.fft` on the CUDA kernels: drawn transforms against float64 in poisoned memory, and the kernels' promises."""

from __future__ import annotations

import math
import random
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.on_gpu import needs_kernels, poison
from tests.turbofno_ops.random_transform import Case, relative_error
from turbofno_ops import _gemm, used_tables
from turbofno_ops import fft as ours
from turbofno_ops._torch_fft import _ordered

pytestmark = [needs_kernels, pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")]

ROUNDING = torch.finfo(torch.float32).eps
SMOOTH = [
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    11,
    13,
    16,
    36,
    64,
    85,
    120,
    128,
    256,
    500,
    512,
    1000,
    1024,
    2048,
    4096,
]
UNEVEN = [17, 19, 23, 31, 47, 61, 101, 141, 211, 421, 509, 641, 1009, 1023]


def size(rng: random.Random) -> int:
    return rng.choice([rng.choice(SMOOTH), rng.choice(UNEVEN), rng.randint(2, 128)])


def small(rng: random.Random) -> int:
    return rng.randint(2, 48)


def checked(case: Case, precision: str) -> None:
    """Assert that the kernels err at most twice as much as torch in float32, or as rounding may; in float16 as rounding."""
    half = precision == "fp16"
    dtype = torch.float16 if half else torch.float32
    x = case.x.to(dtype.to_complex() if case.x.is_complex() else dtype)
    wide = x.to(torch.complex64 if x.is_complex() else torch.float32)
    # the passes over the axes round independently of each other
    rounding = ROUNDING * math.sqrt(len(case.dims))
    limit = 2 * max(case.error(case.call(wide, backend="torch"), wide), rounding)
    poison()
    on_gpu = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda").copy_(x)
    found = case.call(on_gpu, precision=precision, backend="kernels")
    error = case.error(found.cpu(), wide)
    # every pass over an axis rounds what it stores
    assert error < (1.2e-3 * len(case.dims) if half else limit), (case, error)


def in_range(case: Case) -> bool:
    """True if float16 holds the result: unscaled sums of a whole axis may be too large."""
    return np.abs(case.expected(case.x.to(case.x.dtype))).max() < 3e4


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("points", [256, 512, 1024, 2048, 4096])
def test_columns_of_large_fields(points: int, inverse: bool) -> None:
    """Against float64: fields so large that an axis which is not the last takes a kernel of columns."""
    columns = 2**22 // (3 * points) + 6
    x = torch.randn(3, points, columns, dtype=torch.complex64)
    poison()
    transform, truth = (ours.ifft, torch.fft.ifft) if inverse else (ours.fft, torch.fft.fft)
    found = transform(x.cuda(), dim=1, backend="kernels")
    expected = truth(x.to(torch.complex128), dim=1).numpy()
    assert relative_error(found.cpu(), expected) < 2e-6


@pytest.mark.parametrize("draw", range(tried(120, 1000)))
def test_drawn_lines_equal_float64(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    names = [name for name in ours.NAMES if name.endswith("t")]
    checked(Case(rng, sizes=size, names=names), "fp32")


@pytest.mark.parametrize("draw", range(tried(80, 800)))
def test_drawn_fields_equal_float64(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    names = [name for name in ours.NAMES if not name.endswith("t")]
    checked(Case(rng, sizes=small, names=names), "fp32")


@pytest.mark.parametrize("draw", range(tried(80, 800)))
def test_drawn_transforms_in_float16(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    case = Case(rng, sizes=size if draw % 2 else small, names=ours.NAMES[: 4 if draw % 2 else None])
    case.norm = "ortho"
    if not in_range(case):
        pytest.skip("the result does not fit float16")
    checked(case, "fp16")


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_every_size(name: str) -> None:
    """Batches that fill some blocks in part; rows, and lines beside each other."""
    rng = random.Random(torch.initial_seed())
    real, half = name == "rfft", "r" in name
    for points in [*range(2, 130), *rng.sample(range(130, 1025), tried(60, 895)), *SMOOTH[-4:]]:
        values = points // 2 + 1 if name == "irfft" else points
        shape = (rng.randint(1, 300), values) if points % 2 else (3, values, rng.randint(1, 70))
        x = torch.randn(shape, dtype=torch.float32 if real else torch.complex64, device="cuda")
        count = points if half else None
        found = getattr(ours, name)(x, n=count, dim=1, backend="kernels")
        field = x.cpu().numpy().astype(np.float64 if real else np.complex128)
        expected = getattr(np.fft, name)(field, n=count, axis=1)
        assert relative_error(found.cpu(), expected) < 6e-7, (points, shape)


@pytest.mark.parametrize("points", [2018, 4098, 8192, 12 * 1013, 2**14, 2**17, 2**20])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_long_axes(points: int, precision: str) -> None:
    for name, modes in (("fft", None), ("ifft", None), ("fft", 100)):
        x = torch.randn(3, points, dtype=torch.complex64)
        x = x.to(torch.complex32) if precision == "fp16" else x
        field = x.to(torch.complex64).numpy().astype(np.complex128)
        expected = getattr(np.fft, name)(field, norm="ortho")
        if modes is not None:
            expected = np.concatenate([expected[:, :50], expected[:, -50:]], axis=1)
        poison()
        found = getattr(ours, name)(
            x.cuda(), norm="ortho", modes=modes, precision=precision, backend="kernels"
        )
        limit = 2e-3 if precision == "fp16" else 1e-6
        assert relative_error(found.cpu(), expected) < limit


@pytest.mark.parametrize(
    "shape",
    [
        *((3, points) for points in (128, 8192, 16384, 96, 1000, 9, 85, 421, 2187, 3003, 10007)),
        *((2, 1024, 256), (2, 256, 256), (2, 64, 85), (2, 6, 35, 128)),
    ],
)
def test_imaginary_parts_of_own_mirror_images_are_ignored(shape: tuple[int, ...]) -> None:
    """cuFFT takes them in at many powers of two."""
    *others, last = shape
    z = torch.randn(*others, last // 2 + 1, dtype=torch.complex128)
    expected = np.fft.irfftn(z.numpy(), s=shape[1:], axes=range(1, len(shape)))
    for backend, dtype in (
        ("auto", torch.complex64),
        ("torch", torch.complex64),
        ("torch", torch.complex128),
    ):
        given = z.to("cuda", dtype)
        found = ours.irfftn(given, s=shape[1:], backend=backend)
        assert relative_error(found.cpu(), expected) < 1e-6
        assert torch.equal(given, z.to("cuda", dtype)), "the argument is not written to"


@pytest.mark.parametrize(
    ("name", "points"),
    [*product(["fft", "rfft", "irfft"], [64, 61, 419, 1000, 8192]), ("fft", 421)],
)
def test_nan_stays_in_its_line(name: str, points: int) -> None:
    others, expected = beside_lines_with_nan_and_infinity(name, points)
    assert torch.equal(others, expected)


@pytest.mark.parametrize(
    ("name", "points"), [("rfft", 211), ("rfft", 225), ("rfft", 421), ("irfft", 421)]
)
def test_nan_stays_in_its_line_of_a_pair(name: str, points: int) -> None:
    """Real lines of odd sizes are transformed in pairs, beside one that is not finite alone: rounded differently."""
    others, expected = beside_lines_with_nan_and_infinity(name, points)
    assert relative_error(others.cpu(), expected.cpu().numpy()) < 5e-7


def beside_lines_with_nan_and_infinity(name: str, points: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Transform lines of which two are not finite; return the others, and what they are beside finite lines."""
    dtype = torch.float32 if name == "rfft" else torch.complex64
    values = points // 2 + 1 if name == "irfft" else points
    x = torch.randn(50, values, dtype=dtype, device="cuda")
    transform = partial(getattr(ours, name), n=points)
    expected = transform(x, backend="kernels")
    x[17, points // 3] = math.nan
    x[31, 0] = math.inf
    found = transform(x, backend="kernels")
    # a value that others take with the factor 0 may leave them finite
    assert not found[[17, 31], 0].isfinite().any()
    others = [line for line in range(50) if line not in (17, 31)]
    return found[others], expected[others]


def test_real_lines_that_begin_at_any_value() -> None:
    """Pairs of real values are read at once where memory allows it."""
    for dtype, precision, limit in ((torch.float32, "fp32", 1e-6), (torch.float16, "fp16", 2e-3)):
        stored = torch.randn(7001).to(dtype)
        for x in (
            stored[1:6401].view(100, 64),
            stored[3:6403].view(64, 100)[:, 1:65],
            torch.as_strided(stored, (5, 6, 64), (1001, 100, 1)),
        ):
            expected = np.fft.rfft(x.numpy().astype(np.float64), norm="ortho")
            on_gpu = torch.as_strided(stored.cuda(), x.shape, x.stride(), x.storage_offset())
            found = ours.rfft(on_gpu, norm="ortho", precision=precision, backend="kernels")
            assert relative_error(found.cpu(), expected) < limit


@pytest.mark.parametrize("name", ["fft", "ifft"])
@pytest.mark.parametrize("points", [2**k for k in range(7, 15)])
def test_float16_in_whole_words(points: int, name: str) -> None:
    """Rows, of an odd number, and columns; the sums of the inverse with its factor alone would exceed float16."""
    for shape, dim in (((1031, points), 1), ((3, points, 48), 1)):
        x = (200 * torch.randn(shape, dtype=torch.complex64)).to(torch.complex32)
        norm = "backward" if name == "ifft" else "ortho"
        expected = getattr(np.fft, name)(x.to(torch.complex128).numpy(), axis=dim, norm=norm)
        poison()
        found = getattr(ours, name)(
            x.cuda(), dim=dim, norm=norm, precision="fp16", backend="kernels"
        )
        assert relative_error(found.to(torch.complex64).cpu(), expected) < 8e-4


@pytest.mark.parametrize("points", [128, 256, 512, 2048, 8192])
def test_infinity_of_float16_stays_in_its_line(points: int) -> None:
    """Lines beside one that is not finite are bitwise what they are without it."""
    for shape in ((50, points), (points, 64)):
        dim = shape.index(points)
        x = torch.randn(shape, dtype=torch.complex64).to(torch.complex32).cuda()
        clean = ours.fft(x, dim=dim, norm="ortho", precision="fp16", backend="kernels")
        at = [17, 17]
        at[dim] = points - 1
        x[at[0], at[1]] = math.inf
        found = ours.fft(x, dim=dim, norm="ortho", precision="fp16", backend="kernels")
        bits, of_clean = (torch.view_as_real(y).movedim(dim, 0) for y in (found, clean))
        assert not bits[:, 17].isfinite().any()
        others = [line for line in range(bits.shape[1]) if line != 17]
        assert torch.equal(bits[:, others], of_clean[:, others])


def test_batches_larger_than_the_cache() -> None:
    x = torch.randn(700, 85, 141, device="cuda")
    found = ours.rfft2(x, backend="kernels")
    back = ours.irfft2(found, s=(85, 141), backend="kernels")
    for at in (0, 350, 699):
        expected = np.fft.rfft2(x[at].cpu().numpy().astype(np.float64))
        assert relative_error(found[at].cpu(), expected) < 1e-6
    assert float((back - x).abs().max()) < 1e-5


def test_arrays_beyond_32_bit_offsets() -> None:
    if torch.cuda.mem_get_info()[0] < 20 * 2**30:
        pytest.skip("needs 20 GiB of free memory")
    lines, points = 2**31 // 64 + 3, 64
    x = torch.zeros(lines, points, dtype=torch.float16, device="cuda")
    x[-3:] = torch.randn(3, points).half().cuda()
    found = ours.rfft(x, precision="fp16", backend="kernels")
    expected = np.fft.rfft(x[-3:].cpu().numpy().astype(np.float64))
    assert relative_error(found[-3:].cpu(), expected) < 1e-3
    assert not torch.view_as_real(found[:1000]).any()


def test_graphs_replay_transforms() -> None:
    x = torch.randn(40, 85, 141, device="cuda")

    def chain() -> torch.Tensor:
        z = ours.rfft2(x, modes=(24, 12), backend="kernels")
        return ours.irfft2(z, s=(85, 141), modes=(24, 12), backend="kernels")

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain()
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, chain())


def test_a_graph_keeps_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 421, device="cuda")
    expected = ours.rfft(x, modes=24, backend="kernels")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with used_tables() as tables, torch.cuda.graph(graph):
        found = ours.rfft(x, modes=24, backend="kernels")
    monkeypatch.setattr(_gemm, "MAX_TABLE_BYTES", 0)
    ours.rfft(x[:, :211], backend="kernels")  # evicts all tables
    poison()
    graph.replay()
    assert torch.equal(found, expected)
    assert tables


def test_the_stream_is_that_of_the_call() -> None:
    x = torch.randn(64, 421, device="cuda")
    later = torch.randn_like(x)
    expected = ours.rfft(later, backend="kernels")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        # a kernel on another stream would read x before it is written
        torch.cuda._sleep(100_000_000)
        x.copy_(later)
        found = ours.rfft(x, backend="kernels")
    stream.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_is_that_of_the_tensor() -> None:
    x = torch.randn(64, 421, device="cuda:0")
    expected = ours.rfft(x, backend="kernels")
    found = ours.rfft(x.to("cuda:1"), backend="kernels")
    assert found.device == torch.device("cuda", 1)
    assert torch.equal(found.cpu(), expected.cpu())


def test_gradients_equal_those_of_torch() -> None:
    for name, shape, sizes, modes in (
        ("rfft2", (3, 85, 64), None, (24, 12)),
        ("irfft2", (3, 24, 12), (85, 64), (24, 12)),
        ("fft", (3, 61), None, None),
        ("rfft", (3, 128), None, None),
        ("irfft", (3, 65), None, None),
    ):
        dtype = torch.float32 if name.startswith("r") else torch.complex64
        x = torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)
        of_kernels, of_torch = (
            first_and_second(
                x, getattr(ours, name)(x, sizes, norm="ortho", modes=modes, backend=backend)
            )
            for backend in ("kernels", "torch")
        )
        for found, expected in zip(of_kernels, of_torch, strict=True):
            largest = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * largest)


def first_and_second(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of a cubic function of y, and that of the gradient's square."""
    (first,) = torch.autograd.grad(y.abs().pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.abs().square().sum(), x)
    return first.detach(), second


def test_auto_takes_the_kernels_where_they_are_faster() -> None:
    real, values = torch.randn(4, 421, device="cuda"), torch.randn(4, 256, device="cuda") + 0j
    assert ours.explain("rfft", real).backend == "kernels"
    assert ours.explain("fft", values).backend == "torch"
    assert ours.explain("irfft", values).backend == "kernels"
    assert "float64" in ours.explain("rfft", real.double()).reason


def test_torch_fft_runs_in_the_default_stream_but_in_a_capture() -> None:
    ran: list[torch.cuda.Stream] = []

    def transform(x: torch.Tensor) -> torch.Tensor:
        ran.append(torch.cuda.current_stream())
        return x + 1

    ordered, default, side = _ordered(transform), torch.cuda.default_stream(), torch.cuda.Stream()
    x = torch.zeros(2**22, device="cuda")
    torch.cuda.synchronize()
    ordered(x)
    with torch.cuda.stream(side):
        for _ in range(50):
            # each reads what the one before wrote on the other stream, to memory that is freed meanwhile
            x = ordered(x) + 1
    side.synchronize()
    assert (x == 100).all()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        ordered(x)
    assert ran == [*[default] * 51, side]
