"""What the processes of a group check together; test_distributed.py starts them and reads their outcomes.

`python -m tests.turbofno_ops.slab_checks BACKEND COUNT FOLDER` forks them. Every process draws the same whole fields, gives its slab
and compares its slab of the result with one process's in float64: the PyTorch module, numpy, torch.fft.
"""

from __future__ import annotations

import doctest
import importlib
import itertools
import json
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.draws import seeded
from tests.models.importers.random_canonical import field_normalised
from tests.thorough import tried
from tests.turbofno_ops import fft_contract
from tests.turbofno_ops.fourier_truth import relative_l2, spectral_conv_truth
from tests.turbofno_ops.random_fno import (
    draw_architecture,
    draw_normalization,
    draw_size,
    field,
    network,
    truth,
)
from turbofno.models.core.architecture import ChannelMLP, DomainPadding, FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno_ops import (
    AddMap,
    ChainRefused,
    FNODescription,
    PointwiseMap,
    Spectral,
    _native,
    distributed,
)
from turbofno_ops._exchange import Pack
from turbofno_ops._modes import Rows
from turbofno_ops.distributed import _passes, fft, slab_rows
from turbofno_ops.distributed import network as slab_network
from turbofno_ops.fft import _kernels
from turbofno_ops.fft._transform import Transform

Size = tuple[int, ...]
ON_GPU = sys.argv[1:2] == ["nccl"]
DTYPE = torch.float32 if ON_GPU else torch.float64
LIMIT = 5e-6 if ON_GPU else 1e-11

PLAIN = FNOArchitecture(
    in_channels=2,
    out_channels=3,
    hidden_channels=8,
    n_layers=3,
    modes=(6, 5),
    activation="gelu",
    positional_grid="endpoint_excluded",
)


def device() -> torch.device:
    """This process's device."""
    return torch.device("cuda", dist.get_rank()) if ON_GPU else torch.device("cpu")


def own(whole: torch.Tensor, axis: int) -> torch.Tensor:
    """Return this process's slab of a whole tensor on the CPU."""
    rows = slab_rows(whole.shape[axis])
    return whole.narrow(axis, min(rows.start, whole.shape[axis]), len(rows))


def given(whole: torch.Tensor, axis: int = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return this process's slab as input on its device."""
    dtype = DTYPE if dtype is None else dtype
    return own(whole, axis).to(device(), dtype.to_complex() if whole.is_complex() else dtype)


def compare(found: torch.Tensor, whole: torch.Tensor, axis: int, limit: float, why: object) -> None:
    """Fail unless `found` is this process's slab of `whole`."""
    expected = own(whole, axis)
    assert found.shape == expected.shape, (found.shape, expected.shape, why)
    error = (found.cpu() - expected).abs().square().sum().sqrt() / whole.abs().square().sum().sqrt()
    assert error < limit, (float(error), why)


def tall(size: Size) -> Size:
    """Return a grid whose slabs have as many rows as the grid has, which the CUDA kernels need."""
    count = dist.get_world_size()
    # the last slab of a padded grid may have fewer rows than the others, by less than their number
    return ((size[0] + count) * count, *size[1:]) if ON_GPU else size


def check_network(module: FNO, x: torch.Tensor, weights: str, why: object) -> None:
    """Compare one network on one whole field, called twice."""
    size = tuple(x.shape[2:])
    expected = truth(module, x)
    noise = relative_l2(module(x), expected)
    if not ON_GPU:
        module.double()
    compiled = distributed.compile_fno(
        module.description(), device=device(), weights=weights, max_batch=2
    )
    assert compiled.refusal(size) is None, (compiled.refusal(size), why)
    limit = LIMIT * max(1.0, noise / 5e-7)
    for _ in range(2):
        compare(compiled(given(x), size), expected, 2, limit, why)
    compiled.clear()


def drawn_networks() -> None:
    for draw in range(tried(12, 120)):
        rng = random.Random(torch.initial_seed() + draw)
        arch = draw_architecture(rng, n_dim=2 + draw % 2)
        module = network(arch, draw_normalization(rng, arch))
        weights = rng.choice(["replicated", "sharded"])
        x = field(module, rng.randint(1, 3), tall(draw_size(rng, arch)))
        check_network(module, x, weights, arch)


def layers_on_other_grids() -> None:
    for scales in ((2.0, 2.0), (0.5, 1.0), (0.7, 1.5)):
        for skip in ("linear", "soft-gating", "none"):
            back = tuple(1 / scale for scale in scales)
            update: dict[str, Any] = {"skip": skip, "norm": "instance_norm"}
            update |= {"resolution_scaling": (scales, (1.0, 1.0), back)}
            update |= {"channel_mlp": ChannelMLP(hidden_channels=4)}
            module = network(PLAIN.model_copy(update=update))
            check_network(module, torch.randn(2, 2, *tall((20, 21))), "replicated", update)


def mode_placements() -> None:
    for placement in ("centred", "floor_window", "corners_overwrite", "corners_add"):
        count = 6 if placement.startswith("corners") else 5
        for rolled in (False, True):
            update = {"modes": (count, 4), "mode_placement": placement, "odd_axes_rolled": rolled}
            module = network(PLAIN.model_copy(update=update))
            check_network(module, torch.randn(2, 2, *tall((9, 9))), "replicated", update)


def normalisation_by_fields() -> None:
    size = tall((12, 13))
    module = field_normalised(network(PLAIN), size)
    check_network(module, torch.randn(2, 2, *size), "replicated", size)


def sharded_weights() -> None:
    size, description = tall((11, 12)), network(PLAIN).description()

    def shared_out(weights: str) -> list[bool]:
        compiled = distributed.compile_fno(description, device=device(), weights=weights)
        modes = [len(product.weights[0].flatten(0, -4)) for product in compiled._pass(size)._mixes]
        return [count < PLAIN.modes[0] for count in modes]

    shared = [dist.get_world_size() > 1] * 3
    assert shared_out("sharded") == shared
    assert shared_out("replicated") == shared_out("auto") == [False] * 3
    before, slab_network.REPLICATED_BYTES = slab_network.REPLICATED_BYTES, 1000
    assert shared_out("auto") == shared
    slab_network.REPLICATED_BYTES = before
    moved = PLAIN.model_copy(update={"modes": (6, 4), "mode_placement": "corners_add"})
    for arch in (PLAIN, moved):
        check_network(network(arch), torch.randn(1, 2, *size), "sharded", arch)


def drawn_layers() -> None:
    rng = random.Random(torch.initial_seed())
    for _ in range(tried(20, 100)):
        n_dim, c_in, c_out = rng.choice([2, 3]), rng.randint(1, 5), rng.randint(1, 5)
        size = tall(tuple(rng.randint(2, 13) for _ in range(n_dim)))
        most = size[0] // dist.get_world_size() if ON_GPU else size[0]
        modes = (
            rng.randint(1, most),
            *(rng.randint(1, n) for n in size[1:-1]),
            rng.randint(1, size[-1] // 2 + 1),
        )
        x = torch.randn(2, c_in, *size, dtype=torch.float64)
        weight = torch.randn(c_in, c_out, *modes, dtype=torch.complex128)
        skip = torch.randn(c_out, c_in, dtype=torch.float64) if rng.random() < 0.5 else None
        bias = torch.randn(c_out, dtype=torch.float64) if rng.random() < 0.5 else None
        activation = rng.choice(["none", "gelu"])
        expected = spectral_conv_truth(x, weight)
        if skip is not None:
            expected = expected + torch.einsum("oi,bi...->bo...", skip, x)
        if bias is not None:
            expected = expected + bias.view(-1, *[1] * n_dim)
        if activation == "gelu":
            expected = torch.nn.functional.gelu(expected)
        found = distributed.fourier_layer(
            given(x),
            weight.to(device(), DTYPE.to_complex()),
            size,
            skip_weight=None if skip is None else skip.to(device(), DTYPE),
            bias=None if bias is None else bias.to(device(), DTYPE),
            activation=activation,
        )
        compare(found, expected, 2, LIMIT, (size, modes))


def drawn_ffts() -> None:
    rng = random.Random(torch.initial_seed())
    for draw in range(tried(30 if ON_GPU else 15, 150)):
        # mostly in several pieces, small as the fields are
        with small_pieces() if draw % 4 else nullcontext():
            size = [rng.choice([1, 2, 3, 5, 7, 8, 9, 11]) for _ in range(rng.choice([2, 3, 3, 4]))]
            lead = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
            check_ffts(rng, tuple(size), lead)


def ffts_on_kernels() -> None:
    """Drawn transforms in float32: on a GPU by the kernels, on a CPU by launches that numpy executes."""
    rng = random.Random(torch.initial_seed())
    points = [1, 2, 3, 4, 8, 9, 16, 17, 19, 24]
    with counted() if ON_GPU else launched_on_cpu() as launches:
        for draw in range(tried(30 if ON_GPU else 15, 150)):
            with small_pieces() if draw % 4 else nullcontext():
                size = tuple(rng.choice(points) for _ in range(rng.choice([2, 3, 3, 3, 4])))
                lead = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 2)))
                check_ffts(rng, size, lead, torch.float32)
    assert len(launches) > 100


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield the names of the kernels that are launched."""
    names: list[str] = []

    def launch_and_count(name: str, *arguments: Any) -> None:
        names.append(name)
        launch(name, *arguments)

    launch = _native.launch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "launch", launch_and_count)
        yield names


@contextmanager
def launched_on_cpu() -> Iterator[list[str]]:
    """Run the kernels of FFTs on a CPU: numpy executes launches, in memory full of NaN. Yields the names of the launches."""
    names: list[str] = []

    def launch(name: str, fft: Any) -> None:
        names.append(name)
        fft_contract.execute(fft)

    def new_empty(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        found = empty(self, *args, **kwargs)
        (torch.view_as_real(found) if found.is_complex() else found).fill_(torch.nan)
        return found

    empty = torch.Tensor.new_empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", new_empty)
        patch.setattr(torch.cuda, "device", lambda _: nullcontext())
        patch.setattr(_native, "launch", launch)
        patch.setattr(_native, "refusal", fft_contract.refusal)
        patch.setattr(_kernels, "table_of", lambda *_: torch.empty(0))
        patch.setattr(_passes, "_has_kernels", lambda _: True)
        yield names


def ffts_of_many_rows() -> None:
    """Fields that are exchanged in pieces as they are, on a GPU; small ones on a CPU."""
    rng = random.Random(torch.initial_seed())
    sizes = [(96, 80, 72), (129, 64, 100), (70, 421, 33), (256, 3, 128)] if ON_GPU else [(24, 9, 8)]
    for size in sizes:
        for piece_bytes in (2**17, 2**20):
            with small_pieces(piece_bytes):
                for _ in range(tried(4, 20)):
                    check_ffts(rng, size, ())


@contextmanager
def small_pieces(piece_bytes: int = 1500) -> Iterator[None]:
    """Exchange small fields as large ones are: in pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fft, "_PIECE_BYTES", piece_bytes)
        yield


def check_ffts(
    rng: random.Random, size: Size, lead: Size, dtype: torch.dtype | None = None
) -> None:
    """Compare the four transforms of one shape, each in drawn orders and with a drawn norm."""
    limit = LIMIT if dtype is None else 5e-6
    real = torch.randn(*lead, *size, dtype=torch.float64)
    dims = tuple(range(len(lead), len(lead) + len(size)))
    noise = torch.randn(*lead, *size, dtype=torch.complex128)
    inputs = {
        "fftn": noise,
        "ifftn": noise,
        "rfftn": real,
        "irfftn": torch.fft.rfftn(real, dim=dims),
    }
    for name, whole in inputs.items():
        norm = rng.choice(["backward", "ortho", "forward"])
        at, to = rng.choice([0, 1]), rng.choice([0, 1])
        options: dict[str, Any] = {"s": size} if name == "irfftn" else {}
        expected = getattr(torch.fft, name)(whole, dim=dims, norm=norm, **options)
        found = getattr(distributed, name)(
            given(whole, len(lead) + at, dtype),
            size,
            norm=norm,
            input_order=fft.ORDERS[at],
            output_order=fft.ORDERS[to],
        )
        compare(found, expected, len(lead) + to, limit, (name, size, lead, norm, at, to))


def ffts_after_one_that_failed() -> None:
    """An error midway, on all processes, leaves nothing behind that the next transform takes for its own."""
    size = (48, 24, 16)
    x = torch.randn(size, dtype=torch.complex128)
    # pieces, before the exchange: two of three axes. Parts, after it: the last axis, while late columns are under way
    for axes, step, call in (
        *((2, "begin", call) for call in (1, 2, 3, 8)),
        *((2, "pack", call) for call in (1, 2, 5, 2 * dist.get_world_size() + 1)),
        *((1, step, call) for step in ("begin", "pack") for call in (1, 4)),
    ):
        with small_pieces():
            with (
                fails_at(axes, step, call),
                raises(RuntimeError, "made to fail") as failed,
            ):
                distributed.fftn(given(2 * x, 0), size, output_order="transposed")
            found = distributed.fftn(given(x, 0), size, output_order="transposed")
        # until here the error keeps what it refers to
        del failed
        compare(found, torch.fft.fftn(x), 1, LIMIT, (axes, step, call))


@contextmanager
def fails_at(axes: int, step: str, call: int) -> Iterator[None]:
    """Let one call fail: that begins, or packs columns of, the transform of a piece or part along so many axes."""
    calls = itertools.count(1)

    def checked(of: Transform, this: str) -> None:
        if (len(of.axes), this) == (axes, step) and next(calls) == call:
            raise RuntimeError("made to fail")

    def passes_of(x: torch.Tensor, transform: Transform) -> _passes.Begin:
        begin = _passes.passes_of(x, transform)

        def begin_or_fail(of: Transform, x: torch.Tensor, to: int) -> Pack:
            checked(of, "begin")
            pack = begin(of, x, to)

            def pack_or_fail(columns: Rows, out: torch.Tensor) -> None:
                checked(of, "pack")
                pack(columns, out)

            return pack_or_fail

        return begin_or_fail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fft, "passes_of", passes_of)
        yield


def real_input_of_fftn() -> None:
    x = torch.randn(7, 6, 5, dtype=torch.float64)
    found = distributed.fftn(given(x, 0), (7, 6, 5))
    compare(found, torch.fft.fftn(x), 0, LIMIT, "real input")


def layers_of_many_modes() -> None:
    """Axes of powers of two that keep many modes: on a GPU by FFTs, also an axis of two slabs that keeps half of its modes."""
    count = dist.get_world_size()
    rows = 64 * count if ON_GPU else 64
    first = 64 if ON_GPU and count == 2 else 33
    for size in ((rows, 64, 12), (rows, 65, 12), (rows + 1, 64, 12), (rows, 128)):
        modes = (first, *(33 for _ in size[1:-1]), 5)
        x = torch.randn(2, 4, *size, dtype=torch.float64)
        weight = torch.randn(4, 4, *modes, dtype=torch.complex128)
        expected = spectral_conv_truth(x, weight)
        found = distributed.fourier_layer(given(x), weight.to(device(), DTYPE.to_complex()), size)
        compare(found, expected, 2, LIMIT, size)


def rows_are_those_of_torch_chunk() -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    for points in range(14):
        chunks = torch.arange(points).chunk(count) if points else ()
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(slab_rows(points)) == expected


def a_mesh_names_the_axis() -> None:
    count = dist.get_world_size()
    mesh = init_device_mesh(device().type, (1, count), mesh_dim_names=("model", "slab"))
    x = torch.randn(12, 6, dtype=torch.float64)
    found = distributed.rfftn(given(x, 0), (12, 6), group=mesh["slab"])
    compare(found, torch.fft.rfftn(x), 0, LIMIT, "mesh")
    alone = distributed.rfftn(x.to(device(), DTYPE), (12, 6), group=mesh["model"])
    assert (alone.cpu() - torch.fft.rfftn(x)).abs().max() < 1e2 * LIMIT
    with raises(ValueError, r"dimensions ('model', 'slab')"):
        slab_rows(4, mesh)


def slabs_are_local_parts_of_dtensors() -> None:
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    whole = torch.randn(85, 12)
    given_out = distribute_tensor(whole.to(device()), mesh, [Shard(0)])
    assert torch.equal(given_out.to_local().cpu(), own(whole, 0))
    spectrum = distributed.rfftn(given_out.to_local(), whole.shape, group=mesh)
    expected = torch.fft.rfftn(whole.double())
    joined = DTensor.from_local(
        spectrum.contiguous(),
        mesh,
        [Shard(0)],
        run_check=False,
        shape=expected.shape,
        stride=expected.stride(),
    )
    assert (
        relative_l2(torch.view_as_real(joined.full_tensor().cpu()), torch.view_as_real(expected))
        < 5e-6
    )


def docstring_examples_run() -> None:
    names = {name: getattr(distributed, name) for name in distributed.__all__}
    # on the processes' default device the examples would need a GPU's name
    for name, function in ({} if ON_GPU else names).items():
        tests = doctest.DocTestFinder().find(function, name, globs={"torch": torch, **names})
        runner = doctest.DocTestRunner()
        for test in tests:
            runner.run(test)
        assert runner.summarize(verbose=False).failed == 0, name


def a_grid_that_arrives_as_a_tensor() -> None:
    """As from a broadcast. Its elements would round what is computed from them to float32."""
    size = tall((12, 9))
    arrived: Any = torch.tensor(size)
    module = network(PLAIN)
    x = field(module, 2, size)
    expected = truth(module, x)
    if not ON_GPU:
        module.double()
    compiled = distributed.compile_fno(module.description(), device=device())
    assert compiled.out_size(arrived) == size
    compare(compiled(given(x), arrived), expected, 2, LIMIT, size)
    compiled.clear()
    weight = torch.randn(2, 3, 4, 3, dtype=torch.complex128)
    found = distributed.fourier_layer(given(x), weight.to(device(), DTYPE.to_complex()), arrived)
    compare(found, spectral_conv_truth(x.double(), weight), 2, LIMIT, size)
    spectrum = distributed.rfftn(given(x), arrived)
    compare(spectrum, torch.fft.rfftn(x.double(), dim=(2, 3)), 2, LIMIT, size)


def slabs_without_rows() -> None:
    count = dist.get_world_size()
    if count == 1:
        return  # one alone has all rows
    module = network(PLAIN.model_copy(update={"modes": (1, 3), "norm": "instance_norm"}))
    size = (count - 1, 9)
    if ON_GPU:
        compiled = distributed.compile_fno(module.description(), device=device())
        with raises(ChainRefused, "use fewer processes"):
            compiled(torch.randn(1, 2, len(slab_rows(count - 1)), 9, device=device()), size)
        return
    check_network(module, torch.randn(2, 2, *size), "sharded", size)
    for mode in ("zeros", "replicate", "reflect", "circular"):
        padding = DomainPadding.model_validate({"points": (0, 2), "mode": mode})
        padded = network(module.arch.model_copy(update={"domain_padding": padding}))
        check_network(padded, torch.randn(2, 2, *size), "sharded", mode)


def an_empty_batch() -> None:
    size = tall((6, 9))
    compiled = distributed.compile_fno(network(PLAIN).description(), device=device())
    x = torch.randn(0, 2, len(slab_rows(size[0])), 9, device=device())
    assert compiled(x, size).shape == (0, 3, len(slab_rows(size[0])), 9)
    x = torch.empty(0, 2, 13, 9)
    weight = torch.randn(2, 3, 4, 3, dtype=DTYPE.to_complex(), device=device())
    found = distributed.fourier_layer(given(x), weight, (13, 9))
    assert found.shape == (0, 3, len(distributed.slab_rows(13)), 9)


def raises(kind: type[Exception], words: str) -> pytest.RaisesExc[Exception]:
    """Return a context that fails unless its body raises `kind` with these words."""
    return pytest.raises(kind, match=re.escape(words))


def errors_are_explained() -> None:
    """All of these are raised by every process."""
    description = network(PLAIN).description()
    where, rows, grid = device(), 12, (12 * dist.get_world_size(), 9)
    compiled = distributed.compile_fno(description, device=where)
    x = torch.randn(1, 2, rows, 9, device=where)
    weight = torch.randn(2, 2, 2, 2, dtype=torch.complex64, device=where)
    with raises(ValueError, "its slab"):
        compiled(torch.randn(1, 2, rows + 1, 9, device=where), grid)
    with raises(ValueError, "its slab"):
        compiled(x, (grid[0] + 12 * grid[0], 9))
    with raises(TypeError, "float64"):
        compiled(x.double(), grid)
    with raises(ValueError, "[batch, 2, *grid]"):
        compiled(x[:, :1], grid)
    with raises(ChainRefused, "2 grid axes"):
        compiled(x, (*grid, 4))
    with raises(TypeError, "size must be the points along each axis"):
        compiled(x, tuple(map(float, grid)))  # type: ignore[arg-type]
    with raises(ChainRefused, "does not hold"):
        compiled(x, (5, 9))
    with raises(ValueError, "'auto', 'replicated', 'sharded'"):
        distributed.compile_fno(description, device=where, weights="none")
    line = FNODescription(
        in_channels=2,
        lifting=(PointwiseMap(torch.randn(2, 2)),),
        blocks=((Spectral(torch.randn(2, 2, 3, dtype=torch.complex64)), AddMap(torch.eye(2))),),
        projection=(PointwiseMap(torch.randn(1, 2)),),
    )
    with raises(ChainRefused, "one grid axis"):
        distributed.compile_fno(line, device=where)
    with raises(ValueError, "does not serve"):
        distributed.compile_fno(description, device="cpu" if ON_GPU else "meta")
    for wrong in ("slab", 3):
        with raises(TypeError, "DeviceMesh or None"):
            distributed.fourier_layer(x, weight, grid, group=wrong)  # type: ignore[arg-type]
    alone = dist.new_group([0])
    if dist.get_rank() > 0:
        with raises(ValueError, "not in the group"):
            slab_rows(12, alone)
    with raises(ValueError, "its slab"):
        distributed.fourier_layer(x[:, :, 1:], weight, grid)
    with raises(ValueError, "two or more"):
        distributed.fourier_layer(x, weight, (12,))
    with raises(ValueError, "no gradients"):
        distributed.fourier_layer(x.clone().requires_grad_(), weight, grid)
    with raises(ValueError, "skip_weight"):
        distributed.fourier_layer(x, weight, grid, skip_weight=torch.eye(3, device=where))
    with raises(ValueError, f"keeps {grid[0] + 1} modes"):
        tall_weight = torch.randn(2, 2, grid[0] + 1, 2, dtype=torch.complex64, device=where)
        distributed.fourier_layer(x, tall_weight, grid)
    real = x[0, 0]
    with raises(ValueError, "its slab"):
        distributed.rfftn(real[1:], grid)
    with raises(TypeError, "fftn takes complex"):
        distributed.rfftn(real.to(torch.complex64), grid)
    with raises(TypeError, "complex64 or complex128"):
        distributed.irfftn(real, grid)
    with raises(TypeError, "must be a tensor"):
        distributed.rfftn([1.0], grid)  # type: ignore[arg-type]
    with raises(TypeError, "float16"):
        distributed.fftn(real.half(), grid)
    with raises(ValueError, "'natural', 'transposed'"):
        distributed.fftn(real, grid, input_order="rows")
    with raises(ValueError, "norm"):
        distributed.ifftn(real, grid, norm="none")
    with raises(ValueError, "two axes or more"):
        distributed.fftn(real, (12,))
    with raises(ValueError, "must have the 3 axes"):
        distributed.fftn(real, (*grid, 3))
    with raises(ValueError, "no gradients"):
        distributed.fftn(real.clone().requires_grad_(), grid)


def processes_that_differ() -> None:
    """All of them learn in what they differ, or that one failed, and go on. One alone is right."""
    where, rank, count = device(), dist.get_rank(), dist.get_world_size()
    rows, columns = 13 * count, 9 + rank % 2
    description = network(PLAIN).description()
    compiled = distributed.compile_fno(description, device=where)
    weight = torch.randn(2, 2, 2, 2, dtype=torch.complex64, device=where)
    x = torch.randn(1, 2, 13, columns, device=where)
    same = x[..., :9].contiguous()

    def refused(words: str) -> AbstractContextManager[object]:
        return raises(ValueError, words) if count > 1 else nullcontext()

    def refused_for(*names: str, given: str = "") -> AbstractContextManager[object]:
        words = "all processes of the group must call it alike, and they differ in "
        return refused(f"{words}{', '.join(names)}; rank {rank} of {count} gives {given}")

    def refused_for_weights() -> AbstractContextManager[object]:
        return refused("the weights of rank 1 are not those of rank 0; load the same")

    size = (rows, 9)
    with refused_for(
        "size", given=f"network {compiled._structure}, batch 1, size {(rows, columns)}"
    ):
        compiled(x, (rows, columns))
    with refused_for("batch"):
        compiled(same.expand(1 + rank % 2, -1, -1, -1), size)
    with refused_for("size"):
        distributed.fourier_layer(x, weight, (rows, columns))
    with refused_for("activation"):
        activation = ("none", "gelu")[rank % 2]
        distributed.fourier_layer(same, weight, size, activation=activation)
    with refused_for("skip_weight", "bias"):
        given = {"skip_weight": torch.eye(2, device=where), "bias": torch.ones(2, device=where)}
        distributed.fourier_layer(same, weight, size, **(given if rank % 2 else {}))
    with refused_for("size"):
        distributed.rfftn(x, (rows, columns))
    with refused_for("norm"):
        distributed.rfftn(same, size, norm=("forward", "backward")[rank % 2])
    with refused_for("function", "dtype"):
        (distributed.rfftn, distributed.fftn)[rank % 2](same, size, norm="ortho")

    with refused_for_weights():
        distributed.fourier_layer(same, weight * (1 + rank % 2), size)
    assert distributed.fourier_layer(same, weight, size).shape == same.shape
    lost = torch.full_like(weight, torch.nan)
    assert distributed.fourier_layer(same, lost, size, activation="relu").isnan().all()
    assert compiled(same, size).shape == (1, 3, 13, 9)
    with refused_for("network"):
        other = distributed.compile_fno(description, device=where, max_batch=1 + rank % 2)
        other(same, size)
    for factor, expected in (
        (1 + rank % 2, refused_for_weights()),
        (1 + 1e-7 * rank, nullcontext()),
    ):
        torch.manual_seed(0)
        module = network(PLAIN)
        for parameter in module.parameters():
            parameter.mul_(factor)
        with expected:
            distributed.compile_fno(module.description(), device=where)(same, size)

    # the last one gives a slab, channels or a dtype that are wrong: it learns it, and the others do not wait for it
    last = count - 1
    wrong = rank == last

    def failed(kind: type[Exception], words: str) -> AbstractContextManager[object]:
        own = f"rank {last} of {count} failed; its error says why"
        return raises(kind, words) if wrong else raises(ValueError, own)

    rows_missing = same[:, :, int(wrong) :]
    with failed(ValueError, "its slab"):
        compiled(rows_missing.expand(3, -1, -1, -1), size)
    with failed(ValueError, "x must be [batch, 2, *grid]"):
        compiled(same[:, int(wrong) :].expand(3, -1, -1, -1), size)
    with failed(TypeError, "the network was compiled for"):
        compiled(same.expand(3, -1, -1, -1).to(torch.float16 if wrong else same.dtype), size)
    with failed(ValueError, "its slab"):
        distributed.fourier_layer(rows_missing.expand(3, -1, -1, -1), weight, size)
    with failed(TypeError, "weight must be"):
        other = weight.to(torch.complex128) if wrong else weight
        distributed.fourier_layer(same.expand(3, -1, -1, -1), other, size)
    with failed(ValueError, "no gradients"):
        distributed.fourier_layer(same.expand(4, -1, -1, -1).requires_grad_(wrong), weight, size)
    with failed(ValueError, "its slab"):
        distributed.ifftn(rows_missing, size)
    with failed(TypeError, "must be float32 or float64"):
        distributed.rfftn(same.half() if wrong else same, size, norm="forward")
    assert compiled(same.expand(3, -1, -1, -1), size).shape == (3, 3, 13, 9)


CHECKS: tuple[Callable[[], None], ...] = (
    rows_are_those_of_torch_chunk,
    errors_are_explained,
    processes_that_differ,
    drawn_ffts,
    ffts_on_kernels,
    ffts_of_many_rows,
    ffts_after_one_that_failed,
    real_input_of_fftn,
    drawn_layers,
    sharded_weights,
    layers_of_many_modes,
    drawn_networks,
    layers_on_other_grids,
    mode_placements,
    normalisation_by_fields,
    a_grid_that_arrives_as_a_tensor,
    slabs_without_rows,
    an_empty_batch,
    a_mesh_names_the_axis,
    slabs_are_local_parts_of_dtensors,
    docstring_examples_run,
)
NAMES = [check.__name__ for check in CHECKS]


def main(backend: str, count: int, folder: Path) -> None:
    """Fork the processes of the group and wait for them: the imports, which take seconds, are done once."""
    importlib.import_module("torch._dynamo")  # which distribute_tensor imports
    ranks = []
    for rank in range(count):
        process = os.fork()
        if process == 0:
            log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(log, stream)
            status = 1
            try:
                run(backend, count, rank, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        ranks.append(process)
    for process in ranks:
        os.waitpid(process, 0)


def run(backend: str, count: int, rank: int, folder: Path) -> None:
    """Run all checks in order; write the outcome of each, None or a traceback. After a failure the others do not run."""
    torch.set_num_threads(1)
    if ON_GPU:
        torch.cuda.set_device(rank)
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group(
        backend,
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=60),
        device_id=device_of(rank),
    )
    outcomes: dict[str, str | None] = dict.fromkeys(NAMES, "not run, because another check failed")
    for check in CHECKS:
        outcomes[check.__name__] = outcome(check)
        (folder / f"{rank}.json").write_text(json.dumps(outcomes))
        if outcomes[check.__name__] is not None:
            # the others may wait for this process: do not wait for them
            os._exit(1)
    dist.destroy_process_group()


def device_of(rank: int) -> torch.device | None:
    """Return the device that the group is bound to."""
    return torch.device("cuda", rank) if ON_GPU else None


def outcome(check: Callable[[], None]) -> str | None:
    """Return None, or the traceback of a failure."""
    with seeded(check.__name__):
        try:
            check()
        except Exception:
            return traceback.format_exc()
    return None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
