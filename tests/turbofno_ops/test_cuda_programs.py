"""Random tile programs on the CUDA kernels, against float64 and plain float32."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.on_gpu import needs_kernels, poison
from tests.turbofno_ops.packed_operand import packed_operand
from tests.turbofno_ops.random_program import Drawn, draw_program
from tests.turbofno_ops.split_field import split_field
from turbofno_ops import PRECISIONS
from turbofno_ops._cuda import CudaStages
from turbofno_ops._fold import to_device
from turbofno_ops._modes import Rows
from turbofno_ops._spectral_product import row_modes
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Analyze,
    Normalize,
    Operands,
    Project,
    Restore,
    Results,
    Save,
    Source,
    Stages,
    Step,
    Store,
    Synthesis,
    Window,
    part_of,
)
from turbofno_ops._tile_program import _MOST_SPLIT, _packed, pieces
from turbofno_ops._torch_stages import TorchStages
from turbofno_ops.description import PointwiseMap, Size

pytestmark = pytest.mark.usefixtures("strict_float32")

DRAWS = tried(60, 150)
# limit of the error, and a multiple of the error of plain float32 on top, because programs may amplify rounding
LIMITS = {"fp32": (4e-7, 3), "tf32": (3e-3, 3e4), "bf16": (3e-2, 4e5)}
# or twice the change by weights that are rounded to this: a sign or a clipped value may turn on them. float16 has tf32's digits
WEIGHTS = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.bfloat16}
REFUSALS = ("do not fit in shared memory",)
RESULTS = ("x", "saved", "spectra", "out")


def ready_moments(stages: Stages, saved: object, drawn: Drawn) -> torch.Tensor | None:
    """Return the moments of `saved` in the stages' layout, if the program begins with its norm."""
    if saved is None or len(drawn.steps) < 2 or not isinstance(drawn.steps[1], Normalize):
        return None
    return stages.tile((Restore(), Save(moments=True)), Operands(saved=saved)).moments


def plain_results(drawn: Drawn, dtype: torch.dtype, device: torch.device) -> Results:
    """Run a program in plain torch."""
    stages = TorchStages(drawn.size, drawn.modes, drawn.size)
    x = drawn.x.to(device, dtype)
    saved = None if drawn.saved is None else drawn.saved.to(device, dtype)
    mixed = None if drawn.mixed is None else drawn.mixed.to(device, dtype.to_complex())
    given = Operands(x=x, saved=saved, moments=ready_moments(stages, saved, drawn), mixed=mixed)
    return stages.tile(to_device(drawn.steps, device, dtype), given)


def channels_last(spectra: torch.Tensor) -> torch.Tensor:
    """Return the spectra with the channels last in memory."""
    return spectra.movedim(1, -1).contiguous().movedim(-1, 1)


def stages_of(size: Size, modes: Size, precision: str, *, last: bool = False) -> CudaStages:
    """Return the stages; with `last`, all spectra of an even number of channels have them last in memory."""
    stages = CudaStages(size, modes, device=torch.device("cuda"), precision=precision)
    if last:
        stages.mix.wants_channels_last = lambda _, channels: channels % 2 == 0
    return stages


def as_kernels_see(
    drawn: Drawn,
    stages: CudaStages,
    *,
    split_x: bool = False,
    last: bool = False,
    channel_first: bool = False,
) -> tuple[Drawn, Operands]:
    """Return the program with its fields rounded as the kernels store them, and its operands on the GPU.

    `channel_first`: x is the network's input also for a program that does not begin with it.
    """
    x, saved = drawn.x.cuda(), drawn.saved
    of_input = channel_first or isinstance(drawn.steps[0], Source)
    field = x if of_input else stages.convert(x)
    if split_x:
        field = split_field(field)
    saved_field = None if saved is None else stages.convert(saved.cuda())
    rounded = replace(
        drawn,
        x=stages.plain(field).float(),
        saved=None if saved_field is None else stages.plain(saved_field).float(),
        steps=drawn.steps,
    )
    mixed = None if drawn.mixed is None else drawn.mixed.cuda()
    if mixed is not None and last:
        mixed = channels_last(mixed)
    moments = ready_moments(stages, saved_field, drawn)
    return rounded, Operands(x=field, saved=saved_field, moments=moments, mixed=mixed)


def kernel_results(drawn: Drawn, stages: CudaStages, given: Operands) -> dict[str, torch.Tensor]:
    """Return the results of the kernels, fields as [batch, channels, *grid], spectra without the mode that makes rows even."""
    steps = to_device(drawn.steps, torch.device("cuda"), torch.float32)
    poison()
    done = stages.tile(steps, given)
    found = {name: getattr(done, name) for name in RESULTS}
    fields = {name: stages.plain(found[name]) for name in ("x", "saved") if found[name] is not None}
    if found["spectra"] is not None:
        found["spectra"] = found["spectra"][..., : drawn.modes[-1]]
    return {name: t for name, t in {**found, **fields}.items() if t is not None}


def check(
    drawn: Drawn,
    precision: str,
    *,
    split_x: bool = False,
    last: bool = False,
    channel_first: bool = False,
) -> None:
    stages = stages_of(drawn.size, drawn.modes, precision, last=last)
    rounded, given = as_kernels_see(
        drawn, stages, split_x=split_x, last=last, channel_first=channel_first
    )
    ours = kernel_results(drawn, stages, given)
    truth = plain_results(rounded, torch.float64, torch.device("cuda"))
    single = plain_results(rounded, torch.float32, torch.device("cuda"))
    rounded_weights = to_device(drawn.steps, torch.device("cpu"), WEIGHTS[precision])
    coarse = plain_results(
        replace(rounded, steps=rounded_weights), torch.float64, torch.device("cuda")
    )
    least, times = LIMITS[precision]
    wanted = [name for name in RESULTS if getattr(truth, name) is not None]
    assert sorted(ours) == sorted(wanted)
    for name in wanted:
        exact = getattr(truth, name)
        if not exact.any():
            assert not ours[name].any()
            continue
        # the rounding of a few values, and what the program makes of it
        rounding = least + times * relative_l2(getattr(single, name), exact)
        allowed = max(rounding, 2 * relative_l2(getattr(coarse, name), exact))
        found = relative_l2(ours[name], exact)
        assert found <= allowed, f"{name} of {drawn} in {precision}: {found:.1e} > {allowed:.1e}"


def draw_served(rng: random.Random, precision: str) -> Drawn:
    """Draw a program that the kernels support; check the reasons of refused ones."""
    while True:
        drawn = draw_program(rng)
        refused = refusal(drawn, precision)
        if refused is None:
            return drawn
        assert any(words in refused for words in REFUSALS), refused


def refusal(drawn: Drawn, precision: str) -> str | None:
    stages = CudaStages(drawn.size, drawn.modes, device=torch.device("cuda"), precision=precision)
    shape = stages._shape(drawn.steps, as_kernels_see(drawn, stages)[1])
    return next((piece.refusal for piece in pieces(drawn.steps, shape) if piece.refusal), None)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("draw", range(DRAWS))
def test_drawn_programs_equal_float64(draw: int, precision: str) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    drawn = draw_served(rng, precision)
    # as in a first layer into which the lifting is folded
    channel_first = isinstance(drawn.steps[0], Synthesis) and rng.random() < 0.3
    of_input = channel_first or isinstance(drawn.steps[0], Source)
    may_split = precision == "fp32" and not of_input and drawn.x.shape[1] <= _MOST_SPLIT
    check(
        drawn,
        precision,
        split_x=may_split and rng.random() < 0.5,
        last=rng.random() < 0.5,
        channel_first=channel_first,
    )


def identity(out: int, channels: int) -> PointwiseMap:
    matrix = torch.randn(out, channels, dtype=torch.float64) / math.sqrt(channels)
    return PointwiseMap(matrix, torch.randn(out, dtype=torch.float64))


MIXED = torch.randn(2, 128, 6, 64, dtype=torch.complex64)
WIDE = MLP(identity(128, 128), "gelu", identity(128, 128))
LARGE = {
    "two channel MLPs": (Synthesis(), WIDE, Activate("gelu"), WIDE, Store()),
    "an MLP and a projection": (Synthesis(), WIDE, Project((identity(128, 128), identity(3, 128)), "gelu")),
    "many modes": (Synthesis(), AddMap(identity(128, 20).weight), Store(), Analyze()),
    "other channels behind an MLP": (Synthesis(), MLP(identity(32, 128), "relu", identity(16, 32)), Analyze()),
}  # fmt: skip


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", LARGE)
def test_programs_in_pieces_equal_float64(name: str, precision: str) -> None:
    drawn = Drawn(LARGE[name], (6, 130), (4, 64), torch.randn(2, 20, 6, 130), mixed=MIXED)
    stages = CudaStages(drawn.size, drawn.modes, device=torch.device("cuda"), precision=precision)
    shape = stages._shape(drawn.steps, as_kernels_see(drawn, stages)[1])
    if precision == "fp32":
        assert len(list(pieces(drawn.steps, shape))) > 1
    for last in (False, True):
        check(drawn, precision, last=last)


_INPUTS = 3  # channels of the network's input


# The last programs of networks, of which kernels may compute a window of the grid.
LAST = ("last layer", "last layer projected by one map", "last block", "after the last norm")


def common_programs(channels: int) -> dict[str, tuple[Step, ...]]:
    """Return the programs that have kernels of their own (csrc/plan/tile_programs.h)."""
    offset = Affine(None, torch.randn(channels, dtype=torch.float64))
    scaled = Affine(torch.rand(channels, dtype=torch.float64), offset.shift)
    skip, act = AddMap(identity(channels, channels).weight), Activate("gelu")
    mlp = MLP(identity(channels // 2, channels), "gelu", identity(channels, channels // 2))
    gate = AddGate(torch.randn(channels, dtype=torch.float64))
    lifting = MLP(identity(2 * channels, _INPUTS), "gelu", identity(channels, 2 * channels))
    projection = Project((identity(128, channels), identity(2, 128)), "gelu")
    norm = Normalize(channels // 2, 1e-5, scaled.scale, scaled.shift, None)
    before = (Synthesis(), offset, skip, act, mlp, gate)
    of_input = AddMap(identity(channels, _INPUTS).weight)
    return {
        "layer": (Synthesis(), offset, skip, act, Store(), Analyze()),
        "layer with a norm": (Synthesis(), norm, skip, act, Store(), Analyze()),
        "first layer": (Synthesis(), offset, of_input, act, Store(), Analyze()),
        "first layer without analysis": (Synthesis(), scaled, of_input, act, Store()),
        "scaled layer without analysis": (Synthesis(), scaled, skip, act, Store()),
        "last layer": (Synthesis(), offset, skip, projection),
        "last layer projected by one map": (
            Synthesis(),
            offset,
            skip,
            Activate("silu"),
            Project((identity(2, channels),), "none"),
        ),
        "block": (*before, act, Store(), Analyze()),
        "block without analysis": (*before, act, Store()),
        "last block": (Synthesis(), offset, skip, mlp, gate, projection),
        "block of norms": (Synthesis(), norm, skip, act, mlp, gate, Save(moments=False)),
        "last block of norms": (Synthesis(), norm, skip, mlp, gate, Save(moments=False)),
        "after a norm": (Restore(), norm, act, Store(), Analyze()),
        "after the last norm": (Restore(), norm, projection),
        "lifting": (Source(), lifting, Store(), Analyze()),
    }


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("batch", "size", "kept"),
    [
        (1, (5, 64), 9),
        (3, (40, 130), 9),
        (17, (1000,), 9),
        (1, (4096,), 9),
        (9, (128, 128), 9),
        (32, (66, 66), 11),
        # of 20 and 32 channels at fp32 these take kernels of many modes (tests/csrc/tile_plan_check.cpp)
        (1, (5, 64), 17),
        (17, (1000,), 21),
        (8, (128, 128), 29),
        (1, (128, 2048), 23),
    ],
)
@pytest.mark.parametrize("channels", [20, 32, 64, 128])
@pytest.mark.parametrize("name", common_programs(16))
def test_common_programs_equal_float64(
    name: str, channels: int, batch: int, size: tuple[int, ...], kept: int, precision: str
) -> None:
    steps = common_programs(channels)[name]
    of_input = name.startswith(("first layer", "lifting"))
    x = torch.randn(batch, _INPUTS if of_input else channels, *size)
    # batch elements of different sizes, which a norm makes equal
    x *= torch.arange(1, batch + 1).view(-1, *(1 for _ in x.shape[1:]))
    row = row_modes((kept,), size, size)
    mixed = torch.randn(batch, channels, *size[:-1], row, dtype=torch.complex64)
    mixed[..., kept:] = 0
    # spectra of a real field, as a norm expects
    mixed[..., 0].imag.zero_()
    modes = (*(1 for _ in size[1:]), kept)
    first = steps[0]
    drawn = Drawn(
        steps,
        size,
        modes,
        x,
        saved=x if isinstance(first, Restore) else None,
        mixed=mixed if isinstance(first, Synthesis) else None,
    )
    may_split = precision == "fp32" and drawn.mixed is not None and not of_input
    check(drawn, precision, channel_first=of_input)
    check(drawn, precision, split_x=may_split, last=True, channel_first=of_input)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("batch", "size", "first", "counts", "served"),
    [
        (2, (40,), (0,), (33,), True),
        (3, (17, 130), (2, 0), (11, 121), True),
        (33, (12, 72), (0, 0), (8, 64), True),
        (32, (66, 66), (0, 0), (64, 64), True),
        (32, (130, 130), (0, 0), (128, 128), True),
        (2, (6, 9, 40), (1, 2, 0), (4, 5, 32), True),
        (1, (4, 4096), (0, 0), (3, 4000), True),
        (2, (3, 1, 4, 40), (1, 0, 1, 0), (2, 1, 3, 33), True),
        (2, (9, 40), (1, 3), (7, 33), False),
        (2, (3, 2, 4, 40), (0, 1, 0, 0), (3, 1, 4, 40), False),
    ],
)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [16, 20, 32, 64])
@pytest.mark.parametrize("name", LAST)
def test_a_window_is_part_of_the_whole(
    name: str,
    channels: int,
    batch: int,
    size: tuple[int, ...],
    first: tuple[int, ...],
    counts: tuple[int, ...],
    served: bool,
    last: bool,
    precision: str,
) -> None:
    """Also where all else is NaN; `served`: the kernels compute it, else the whole is cropped."""
    steps = to_device(common_programs(channels)[name], torch.device("cuda"), torch.float32)
    modes = (*(1 for _ in size[1:]), 9)
    window = tuple(map(Rows, first, counts, size))
    stages = stages_of(size, modes, precision)
    field = torch.randn(batch, channels, *size, device="cuda")
    mixed = torch.randn(batch, channels, *size[:-1], 10, dtype=torch.complex64, device="cuda")
    mixed[..., 9:] = 0
    mixed[..., 0].imag.zero_()
    norm = isinstance(steps[0], Restore)
    saved = stages.convert(field)
    moments = stages.tile((Restore(), Save(moments=True)), Operands(saved=saved)).moments

    def given(field: torch.Tensor, mixed: torch.Tensor) -> Operands:
        x = stages.convert(field)
        if norm:
            return Operands(saved=x, moments=moments)
        x = split_field(x) if precision == "fp32" and field.isfinite().all() else x
        return Operands(x=x, mixed=channels_last(mixed) if last else mixed)

    def outside(values: torch.Tensor, of: Window) -> torch.Tensor:
        hidden = torch.full_like(values, math.nan)
        part_of(hidden, of).copy_(part_of(values, of))
        return hidden

    whole = given(field, mixed)
    expected = part_of(stages.tile(steps, whole).out, window)
    shape = stages._shape(steps, whole)
    planned = stages.programs.prepare_part(steps, shape, window)
    at_once = name == "last layer" or (
        channels != 20 and (name != "last layer projected by one map" or channels == 32)
    )
    assert (planned is not None) == (at_once and served)
    # a part whose kernel reads nothing else
    hidden = given(outside(field, window), outside(mixed, window[:-1]))
    for operands in (whole, hidden) if planned else (whole,):
        poison()
        part = stages.tile(steps, operands, window).out
        assert part.shape == expected.shape
        # kernels of other plans round otherwise
        least = {"fp32": 1e-6, "tf32": 1e-3, "bf16": 1e-2}[precision]
        assert relative_l2(part, expected) <= least


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("channels", [20, 32, 64])
def test_a_common_layer_also_stores_channel_first(channels: int, precision: str) -> None:
    """The prepared program is the common one, its kernel another, and each group takes several rows."""
    steps = to_device(common_programs(channels)["layer"], torch.device("cuda"), torch.float32)
    stages = CudaStages((128, 128), (1, 12), device=torch.device("cuda"), precision=precision)
    x = stages.convert(torch.randn(16, channels, 128, 128, device="cuda"))
    mixed = torch.randn(16, channels, 128, 12, dtype=torch.complex64, device="cuda")
    given = Operands(x=x, mixed=mixed)
    program = stages.programs.prepare(steps, stages._shape(steps, given))
    expected = stages.run(program, given)
    poison()
    found = stages.run(program, given, channel_first=True)
    assert isinstance(found.x, torch.Tensor)
    least = {"fp32": 2e-6, "tf32": 2e-3, "bf16": 2e-2}[precision]
    for ours, theirs in (
        (found.x, stages.plain(expected.x)),
        (found.spectra, expected.spectra),
    ):
        assert relative_l2(ours, theirs) <= least


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("of", ["x", "mixed"])
@pytest.mark.parametrize("channels", [20, 32, 64])
@pytest.mark.parametrize("name", ["layer", "block", "block of norms"])
def test_nan_of_a_common_program_stays_in_its_batch_element(
    name: str, channels: int, of: str, precision: str
) -> None:
    steps = to_device(common_programs(channels)[name], torch.device("cuda"), torch.float32)
    stages = CudaStages((40, 190), (1, 9), device=torch.device("cuda"), precision=precision)
    x = torch.randn(5, channels, 40, 190, device="cuda")
    row = row_modes((9,), (190,), (190,))
    mixed = torch.randn(5, channels, 40, row, dtype=torch.complex64, device="cuda")

    def results() -> tuple[torch.Tensor, ...]:
        field = stages.convert(x)
        split = split_field(field) if precision == "fp32" else field
        done = stages.tile(steps, Operands(x=split, mixed=mixed))
        fields = [stages.plain(y) for y in (done.x, done.saved) if y is not None]
        return (*fields, *(s for s in (done.spectra,) if s is not None))

    expected = results()
    {"x": x, "mixed": mixed}[of][3, channels - 3, 2, 5] = math.inf
    poison()
    for found, finite in zip(results(), expected, strict=True):
        assert found[3].isnan().any()
        others = [0, 1, 2, 4]
        assert torch.equal(found[others], finite[others])


# batch, channels, grid, modes of the last axis
ANALYSES = (
    (1, 1, (1,), 1),
    (2, 7, (2,), 2),
    (3, 64, (64,), 1),
    (40, 64, (256,), 64),
    (2, 128, (20, 256), 64),
    (3, 64, (33, 128), 32),
    (5, 64, (1024,), 17),
    (5, 64, (1024,), 33),
    (1, 20, (101,), 33),
    (5, 96, (3, 130), 48),
    (2, 130, (65,), 33),
    (1, 200, (3, 4, 77), 39),
    (2, 256, (2, 260), 128),
    (1, 64, (16384,), 128),
)


def draw_analysis(rng: random.Random) -> tuple[int, int, tuple[int, ...], int]:
    """Draw batch, channels, grid and modes of an analysis."""
    points, outer = rng.choice([rng.randint(1, 300), rng.randint(1, 5000)]), rng.randint(1, 9)
    channels = rng.choice([16, 64, 128, rng.randint(1, 256)])
    modes = rng.choice([rng.randint(1, 128), 64])
    return rng.choice([1, 2, 5, 33]), channels, (outer, points), min(points // 2 + 1, modes)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [*ANALYSES, *range(DRAWS // 2)])
def test_an_analysis_of_a_stored_field_equals_float64(
    shape: tuple[int, int, tuple[int, ...], int] | int, precision: str
) -> None:
    if isinstance(shape, int):
        shape = draw_analysis(random.Random(torch.initial_seed() + shape))
    batch, channels, size, modes = shape
    saved = torch.randn(batch, channels, *size)
    kept = (*(1 for _ in size[1:]), modes)
    for last in (False, True):
        check(Drawn((Restore(), Analyze()), size, kept, saved, saved=saved), precision, last=last)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_value_spoils_its_row_only(value: float, precision: str) -> None:
    stages = CudaStages((3, 130), (1, 40), device=torch.device("cuda"), precision=precision)
    saved = stages.convert(torch.randn(4, 100, 3, 130, device="cuda"))
    steps = (Restore(), Analyze())
    expected = stages.tile(steps, Operands(saved=saved)).spectra
    saved.data[1, 2, 77, 5] = value
    poison()
    found = stages.tile(steps, Operands(saved=saved)).spectra
    assert found[1, 5, 2].isnan().all()
    found[1, :, 2] = expected[1, :, 2] = 0
    assert torch.equal(found, expected)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("draw", range(DRAWS // 3))
def test_drawn_mixes_equal_float64(draw: int, precision: str) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    axes = rng.choice([1, 2, 3, 4])
    most = {1: 400, 2: 130, 3: 20, 4: 8}[axes]
    size = tuple(rng.randint(1, most) for _ in range(axes))
    out_size = tuple(rng.choice([n, rng.randint(1, most)]) for n in size)
    fits = [min(n, m, 40) for n, m in zip(size, out_size, strict=True)]
    modes = (*(rng.randint(1, n) for n in fits[:-1]), rng.randint(1, fits[-1] // 2 + 1))
    batch, c_in, c_out = (
        rng.choice([1, 2, 5, 17, 40]),
        rng.randint(1, 40),
        rng.choice([1, 8, 33, 64]),
    )
    last = modes[-1]
    row = row_modes(modes, size, out_size)
    spectra = torch.randn(batch, c_in, *size[:-1], row, dtype=torch.complex64, device="cuda")
    if rng.random() < 0.5:  # the channels last in memory
        spectra = channels_last(spectra)
    weight = torch.randn(*modes, c_in, c_out, dtype=torch.complex64, device="cuda")
    ours = CudaStages(
        size, modes, device=torch.device("cuda"), precision=precision, out_size=out_size
    )
    poison()
    found, surplus = ours.mix(spectra, weight).split([last, row - last], dim=-1)
    assert not surplus.any()
    spectra = spectra[..., :last]
    plain = TorchStages(size, modes, out_size)
    truth = plain.mix(spectra.to(torch.complex128), weight.to(torch.complex128))
    least, times = LIMITS[precision]
    # of a few results the norm may be small by chance, their error is not
    many = torch.randn(*modes, c_in, 64, dtype=torch.complex64, device="cuda")
    norm = max(float(truth.norm()), float(plain.mix(spectra, many).norm()) * (c_out / 64) ** 0.5)
    of_ours, of_plain = (
        float((y - truth).norm()) / norm for y in (found, plain.mix(spectra, weight))
    )
    allowed = max(1.5 * least, times * of_plain)
    assert of_ours <= allowed, (size, out_size, modes, batch, c_in, c_out)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("columns", "terms", "multiple"),
    [
        (1, 1, 16),
        (16, 32, 16),
        (3, 5, 32),
        (20, 33, 48),
        (64, 64, 64),
        (33, 100, 128),
        (256, 256, 256),
    ],
)
def test_operands_are_packed_to_the_bit(
    columns: int, terms: int, multiple: int, precision: str
) -> None:
    for largest in (1e-30, 1.0, 1e25):
        matrix = torch.randn(columns, terms) * largest
        matrix[:16, :32] *= random.choice([0.0, 1e-6, 1.0])
        padded = torch.nn.functional.pad(matrix, (0, 0, 0, -columns % multiple))
        poison()
        ours = _packed(matrix.cuda(), multiple, precision)
        assert torch.equal(ours.cpu(), packed_operand(padded, precision))


@needs_kernels
def test_non_finite_weights_make_nan() -> None:
    for precision in PRECISIONS:
        for value in (math.nan, math.inf, -math.inf):
            weight = torch.randn(32, 32, device="cuda")
            weight[3, 5] = value
            stages = CudaStages((16,), (3,), device=weight.device, precision=precision)
            given = Operands(x=stages.convert(torch.randn(2, 32, 16, device="cuda")))
            saved = stages.tile((AddMap(weight), Save(moments=False)), given).saved
            assert stages.plain(saved)[:, 3].isnan().all()


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_moments_of_more_batch_elements_than_blocks_in_grid_y(precision: str) -> None:
    saved = torch.randn(65536, 3, 4)
    steps = (Restore(), Normalize(3, 1e-5), Affine(None, torch.randn(3).double()), Store())
    check(Drawn(steps, (4,), (2,), torch.randn(65536, 3, 4), saved=saved), precision)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
def test_moments_of_a_field_with_a_large_mean(precision: str) -> None:
    saved = torch.randn(3, 20, 33, 17) + 300.0
    steps = (Restore(), Normalize(20, 1e-5), Affine(None, torch.randn(20).double()), Store())
    check(Drawn(steps, (33, 17), (5, 4), torch.randn(3, 20, 33, 17), saved=saved), precision)


@needs_kernels
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("draw", range(DRAWS // 5))
def test_nan_stays_in_its_batch_element(draw: int, precision: str) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    drawn = draw_served(rng, precision)
    while drawn.x.shape[0] < 2:
        drawn = draw_served(rng, precision)
    stages = CudaStages(drawn.size, drawn.modes, device=torch.device("cuda"), precision=precision)
    expected = kernel_results(drawn, stages, as_kernels_see(drawn, stages)[1])
    for read in (drawn.x, drawn.saved, drawn.mixed):
        if read is not None:
            read[0] = math.nan
    found = kernel_results(drawn, stages, as_kernels_see(drawn, stages)[1])
    for name, result in found.items():
        assert result[0].isnan().all(), f"{name} of {drawn}"
        torch.testing.assert_close(result[1:], expected[name][1:], rtol=0, atol=0)


@pytest.mark.parametrize("draw", range(40))
def test_drawn_programs_are_right_in_plain_float32(draw: int) -> None:
    """Float32 in the torch stages, the baseline of the kernels' error, is close to float64."""
    drawn = draw_program(random.Random(torch.initial_seed() + draw))
    single, exact = (
        plain_results(drawn, dtype, torch.device("cpu")) for dtype in (torch.float32, torch.float64)
    )
    compared = [name for name in RESULTS if getattr(exact, name) is not None]
    assert compared
    for name in compared:
        want = getattr(exact, name)
        assert want.isfinite().all()
        assert want.norm() == 0 or relative_l2(getattr(single, name), want) < 1e-3, str(drawn)
