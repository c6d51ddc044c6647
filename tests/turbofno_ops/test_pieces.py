"""Splitting of tile programs into kernels, and their launches, recorded without a GPU."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.random_program import draw_program
from tests.turbofno_ops.split_field import split_field
from turbofno_ops import PRECISIONS, _cuda, _cuda_programs, _cuda_tables, _native
from turbofno_ops._cuda import CudaStages
from turbofno_ops._cuda_programs import TilePrograms
from turbofno_ops._slab import Slab
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Analyze,
    Operands,
    Project,
    Restore,
    Results,
    Save,
    Source,
    Store,
    Synthesis,
)
from turbofno_ops._support import A100, Device, program_refusal
from turbofno_ops._tile_program import (
    ChannelsLast,
    Shape,
    cached_operand_bytes,
    pieces,
    plan_kernel,
    widths,
)
from turbofno_ops._torch_stages import TorchStages
from turbofno_ops._wide_maps import stored_channels
from turbofno_ops.description import PointwiseMap
from turbofno_ops.fft import _plan as _fft_plan
from turbofno_ops.fft._transform import Transform

pytestmark = pytest.mark.usefixtures("served_shapes")

LOAD, STORE = 0, 7
H100 = Device(132, 227 * 1024, True)
DEVICE = torch.device("cpu")


def linear(out: int, channels: int) -> PointwiseMap:
    return PointwiseMap(torch.randn(out, channels))


def shape_of(**changes: Any) -> Shape:
    base = Shape(32, (128, 128), 64, 64, 12, 12, "fp32", *A100)
    return base._replace(**changes)


def test_a_program_that_fits_is_one_kernel() -> None:
    steps = (Synthesis(), AddMap(torch.empty(64, 64, device="meta")), Store(), Analyze())
    (piece,) = pieces(steps, shape_of())
    assert (piece.steps, piece.shape, piece.refusal) == (steps, shape_of(), None)


def test_an_analysis_of_many_modes_is_a_separate_kernel() -> None:
    steps = (Synthesis(), Activate("gelu"), Store(), Analyze())
    first, second = pieces(steps, shape_of(next_modes=48))
    assert first.steps == steps[:-1]
    assert [type(step) for step in second.steps] == [Restore, Analyze]
    assert (first.refusal, second.refusal) == (None, None)


def test_a_program_too_large_for_shared_memory_is_split_before_a_map() -> None:
    wide = MLP(linear(128, 128), "gelu", linear(128, 128))
    steps = (Synthesis(), Activate("gelu"), wide, Store())
    shape = shape_of(channels=128, modes=64)
    found = list(pieces(steps, shape))
    assert [piece.refusal for piece in found] == [None, None]
    assert [type(step) for step in found[0].steps] == [Synthesis, Activate, Save]
    assert [type(step) for step in found[1].steps] == [Restore, MLP, Store]


def test_a_program_that_fits_is_split_where_two_kernels_cost_less() -> None:
    """The weights of a wide channel MLP and a map leave shared memory for few warps."""
    for channels, kernels in ((128, 2), (64, 1)):
        square, wide = torch.randn(channels, channels), linear(channels, channels)
        steps = (
            Synthesis(),
            Activate("gelu"),
            MLP(wide, "gelu", wide),
            AddMap(square),
            Store(),
            Analyze(),
        )
        grid = {"batch": 8, "grid": (44, 44, 44), "channels": channels, "x_channels": channels}
        shape = shape_of(**grid, modes=4, next_modes=4, **H100._asdict())
        whole, found = plan_kernel(steps, shape), list(pieces(steps, shape))
        assert whole.refusal is None
        assert len(found) == kernels
        costs = [plan_kernel(piece.steps, piece.shape).plan.cost for piece in found]
        assert sum(costs) < 0.9 * whole.plan.cost or kernels == 1
    (whole_again,) = found
    assert whole_again.steps == steps


def test_other_channels_are_analysed_by_a_separate_kernel() -> None:
    narrower = MLP(linear(32, 64), "relu", linear(16, 32))
    first, second = pieces((Synthesis(), narrower, Analyze()), shape_of())
    assert [type(step) for step in first.steps] == [Synthesis, MLP, Save]
    assert [type(step) for step in second.steps] == [Restore, Analyze]
    assert (first.refusal, second.refusal) == (None, None)


def test_a_program_without_shared_memory_is_supported() -> None:
    steps = (Source(), Activate("gelu"), Store())
    shape = shape_of(modes=0, x_channel_first=True)
    assert [piece.refusal for piece in pieces(steps, shape)] == [None]


def test_a_piece_that_does_not_fit_is_refused() -> None:
    wide = MLP(linear(64, 32), "gelu", linear(300, 64))
    program: dict[str, Any] = {
        "batch": 2,
        "channels": 32,
        "channels_of_x": 0,
        "size": (64, 64),
        "precision": "fp32",
    }
    # the analysis is a separate kernel, because it has other channels than the mixed spectra
    refused = program_refusal((Synthesis(), wide, Analyze()), **program, modes=12, next_modes=12)
    assert refused == "the channels are not in 1 .. 256"


WIDE = {
    "channel MLP": (Synthesis(), AddMap(torch.randn(200, 20)), MLP(linear(300, 200), "gelu", linear(200, 300)), Activate("relu"), Store(), Analyze()),
    "channel MLP and gate": (Synthesis(), MLP(linear(520, 200), "gelu", linear(20, 520)), AddGate(torch.randn(20)), Store(), Analyze()),
    "channel MLP and gate of a wide field": (Synthesis(), MLP(linear(300, 200), "gelu", linear(100, 300)), AddGate(torch.randn(100)), Activate("tanh"), Store(), Analyze()),
    "two channel MLPs": (Restore(), MLP(linear(256, 200), "tanh", linear(180, 256)), MLP(linear(64, 180), "gelu", linear(8, 64)), Store()),
    "narrower channel MLP behind": (Synthesis(), MLP(linear(320, 200), "gelu", linear(100, 320)), MLP(linear(32, 100), "gelu", linear(24, 32)), AddMap(torch.randn(24, 20)), Store(), Analyze()),
    "lifting": (Source(), MLP(linear(400, 20), "gelu", linear(200, 400)), Store(), Analyze()),
    "projection": (Synthesis(), Activate("gelu"), Project((linear(400, 200), linear(3, 400)), "gelu")),
    "projection by one map": (Restore(), Project((linear(3, 200),), "none")),
    "projection of the input": (Source(), Store(), Project((linear(512, 20), linear(40, 512)), "gelu")),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDE)
def test_wide_channel_mlps_go_through_blocks_of_hidden_channels(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces, each run by plain PyTorch, make the results of the whole program."""
    monkeypatch.setattr(_cuda, "device_limits", lambda _: H100)
    monkeypatch.setattr(_cuda, "device_clusters", lambda _: 0)
    monkeypatch.setattr(_cuda, "bytes_of", lambda *_: 16)
    monkeypatch.setattr(_cuda_programs, "bytes_of", lambda *_: 16)
    steps, size, modes = WIDE[name], (6, 18), (4, 5)
    plain = TorchStages(size, modes, size)
    x_channels = 100 if "wide field" in name else 20
    given = Operands(
        x=torch.randn(2, x_channels, *size),
        saved=torch.randn(2, 200, *size),
        mixed=torch.randn(2, 200, 6, 6, dtype=torch.complex64),
    )
    if not isinstance(steps[0], Synthesis):
        given = replace(given, mixed=None)

    def launch_all(_: CudaStages, kernels: Any, given: Operands, *__: Any, **how: bool) -> Results:
        steps, shape = kernels[0].steps, kernels[0].shape
        if isinstance(steps[0], Restore | Source):
            first = given.saved if isinstance(steps[0], Restore) else given.x
            assert first is not None
            assert first.shape[1] == shape.channels
        if any(isinstance(step, AddMap | AddGate) for step in steps):
            assert given.x is not None
            assert given.x.shape[1] == shape.x_channels
        done = plain.tile(steps, given)
        assert how["channel_first"] == (done.x is not None and kernels[0].steps[-1] is stores[-1])
        return done

    def analyze(_: CudaStages, __: Any, field: torch.Tensor) -> torch.Tensor:
        spectra = plain.tile((Restore(), Analyze()), Operands(saved=field)).spectra
        assert spectra is not None
        return spectra

    stages = CudaStages(size, modes, device=DEVICE, precision="fp32")
    shape = stages.shape(
        batch=2, channels=20 if isinstance(steps[0], Source) else 200, x_channels=x_channels,
        x_channel_first=isinstance(steps[0], Source), modes=6,
    )  # fmt: skip
    program = stages.programs.prepare(steps, shape)
    stores = [piece.steps[-1] for piece, _ in program.pieces if piece.to == "out"] or [None]
    assert {piece.x for piece, _ in program.pieces} != {"x"}, "a kernel holds none of these"
    monkeypatch.setattr(CudaStages, "_launch_all", launch_all)
    monkeypatch.setattr(CudaStages, "_analyze", analyze)
    done, expected = stages.run(program, given), plain.tile(steps, given)
    for field in ("x", "saved", "spectra", "out"):
        whole = getattr(expected, field)
        if whole is not None:
            # as a whole, since a value in which large ones cancel has fewer digits
            assert relative_l2(getattr(done, field), whole) < 1e-5, field


def test_stored_channels_are_those_of_the_blocks_of_a_wide_step() -> None:
    shape = shape_of(channels=128, modes=64, next_modes=64)
    for channels, hidden, out in (
        (32, 64, 32),
        (64, 128, 64),
        (64, 256, 3),
        (128, 128, 128),
        (96, 192, 96),
        (200, 100, 200),
        (256, 1024, 7),
    ):
        step = MLP(linear(hidden, channels), "gelu", linear(out, hidden))
        found = list(pieces((Restore(), step, Store()), shape._replace(channels=channels)))
        blocks = [widths(piece.steps, 0)[-1] for piece in found if piece.to == "hidden"]
        # a kernel may begin with a wide step
        held = channels if hidden * channels >= 8192 else 0
        fields = max(blocks) + min(len(blocks), 2) * out if blocks else held
        assert stored_channels(step) == fields, (channels, hidden, out)


@pytest.mark.parametrize("limits", [A100, H100])
def test_hidden_channels_that_are_stored_are_counted(limits: Device) -> None:
    rng = random.Random(torch.initial_seed())
    stored = 0
    for _ in range(60):
        channels, out = rng.choice([1, 3, 16, 20, 64, 128]), rng.choice([1, 3, 8, 16, 32, 64, 128])
        hidden = rng.choice([32, 96, 128, 256, 480, 640, 960, 1024, 1184])
        shape = shape_of(channels=channels)._replace(**limits._asdict())
        for step in (
            MLP(linear(hidden, channels), "gelu", linear(out, hidden)),
            Project((linear(hidden, channels), linear(min(out, 16), hidden)), "gelu"),
        ):
            last = (Store(),) if isinstance(step, MLP) else ()
            found = pieces((Restore(), step, *last), shape)
            blocks = [widths(piece.steps, 0)[-1] for piece in found if piece.to == "hidden"]
            assert stored_channels(step) >= max(blocks, default=0), (channels, hidden, out)
            stored += bool(blocks)
    assert stored


def test_a_cut_behind_a_wide_channel_mlp_leaves_its_maps_together() -> None:
    """A program too long for one kernel: what maps the hidden channels reads these, not the program's x."""
    steps = (Restore(), MLP(linear(200, 100), "gelu", linear(100, 200)), AddGate(torch.randn(100)))
    acts = (Activate("tanh"),) * 14
    shape = shape_of(channels=100, x_channels=100)
    # 200 hidden channels of 100 are held by no kernel on a small card
    small = shape._replace(shared_bytes=100 * 1024)
    found = list(pieces((*steps, *acts, Store(), Analyze()), small))
    assert any(piece.to == "hidden" for piece in found)
    assert len(found) > 2
    for piece in found:
        reads = [step for step in piece.steps if isinstance(step, AddMap)]
        assert all(step.weight.shape[1] == piece.shape.x_channels for step in reads)
        assert not reads or piece.x in ("hidden", "saved")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[_native.Tile]:
    """Recorded tile programs, as on an A100."""
    tiles: list[_native.Tile] = []
    monkeypatch.setattr(_cuda, "device_limits", lambda _: A100)
    monkeypatch.setattr(_cuda, "device_clusters", lambda _: 0)

    def launch(name: str, *arguments: Any) -> None:
        if name != "tile_program":
            return
        tile, plan = arguments
        # pointers do not change the plan
        again = _native.TilePlan()
        assert _native.refusal("tile_prepare", tile, again) is None
        assert bytes(again) == bytes(plan)
        tiles.append(tile)

    monkeypatch.setattr(_cuda, "launch", launch)
    monkeypatch.setattr(_native, "bytes_of", lambda *_: 16)
    monkeypatch.setattr(_cuda, "bytes_of", lambda *_: 16)
    monkeypatch.setattr(_cuda_programs, "bytes_of", lambda *_: 16)
    monkeypatch.setattr(_native, "launch", lambda *_: None)  # of operands, and of FFTs
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    return tiles


def slabs_of(count: int) -> list[Slab]:
    """Slabs of processes that never communicate."""
    return [Slab(None, rank, count) for rank in range(count)]  # type: ignore[arg-type]


def programs_of(slab: Slab, points: int) -> TilePrograms:
    return TilePrograms(
        device=DEVICE, precision="fp32", limits=H100, settled=True, slab=slab, points=points
    )


@pytest.mark.parametrize("supported", [range(3), range(3, 9)], ids=["short", "long"])
def test_all_slabs_analyse_the_input_by_one_kernel(
    supported: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slabs of 4, 4 and 2 rows, with a transform that supports some of these numbers only."""
    refused = _fft_plan.refusal

    def refusal(x: torch.Tensor, transform: Transform) -> str | None:
        return refused(x, transform) if x.shape[2] in supported else "unsupported"

    monkeypatch.setattr(_fft_plan, "refusal", refusal)
    by_transform = set()
    for slab in slabs_of(3):
        programs = programs_of(slab, 10)
        shape = Shape(8, slab.local((10, 64)), 2, 2, 0, 16, "fp32", *H100, x_channel_first=True)
        ((_, launches),) = programs.prepare((Source(), Analyze()), shape).pieces
        by_transform.add(isinstance(launches, Transform))
    assert by_transform == {4 in supported}


def test_all_slabs_cut_a_program_alike() -> None:
    """Rows of two slabs, of which one alone would cut the block."""
    c, grid = 48, (83, 96)
    mlp = MLP(linear(c, c), "gelu", linear(c, c))
    block = (
        *(Synthesis(), Affine(None, torch.randn(c)), AddMap(torch.randn(c, c)), Activate("gelu")),
        *(mlp, AddGate(torch.randn(c)), Activate("gelu"), Store(), Analyze()),
    )
    slabs = slabs_of(2)
    shapes = [Shape(16, slab.local(grid), c, c, 18, 18, "fp32", *H100) for slab in slabs]
    alone = [[len(piece.steps) for piece in pieces(block, shape)] for shape in shapes]
    assert alone[0] != alone[1]
    for slab, shape in zip(slabs, shapes, strict=True):
        planned = programs_of(slab, grid[0]).prepare(block, shape).pieces
        assert [len(piece.steps) for piece, _ in planned] == alone[0]
        assert {piece.shape.grid for piece, _ in planned} == {shape.grid}


def test_only_the_last_kernel_stores_channel_first(
    launched: list[_native.Tile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "device_limits", lambda _: A100._replace(shared_bytes=99 * 1024))
    stages = CudaStages((300,), (128,), device=torch.device("cpu"), precision="fp32")
    steps = (Synthesis(), AddMap(torch.randn(256, 256)), Store())
    mixed = torch.zeros(1, 256, 128, dtype=torch.complex64)
    given = Operands(x=torch.zeros(1, 256, 300), mixed=mixed)
    program = stages.programs.prepare(steps, stages._shape(steps, given))
    y = stages.run(program, given, channel_first=True).x
    assert isinstance(y, torch.Tensor)
    assert y.shape == (1, 256, 300)
    first, second = launched
    saved, taken, stored = first.step[1], second.step[0], second.step[2]
    assert (saved.kind, taken.kind, stored.kind) == (STORE, LOAD, STORE)
    assert (saved.channel_first, taken.channel_first, stored.channel_first) == (0, 0, 1)
    assert saved.field == taken.field
    assert stored.field == y.data_ptr()


@pytest.mark.parametrize("channels", [32, 64])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_common_layer_passes_its_field_split_to_the_next(
    precision: str, channels: int, launched: list[_native.Tile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "device_limits", lambda _: H100)
    stages = CudaStages((6, 70), (1, 9), device=DEVICE, precision=precision)
    skip, offset = AddMap(torch.randn(channels, channels)), Affine(None, torch.randn(channels))
    layer = (Synthesis(), offset, skip, Activate("gelu"), Store(), Analyze())
    mixed = torch.zeros(2, channels, 6, 10, dtype=torch.complex64)
    x = stages.convert(torch.zeros(2, channels, 6, 70))
    middle = stages.tile(layer, Operands(x=x, mixed=mixed)).x
    last = stages.tile(layer[:-1], Operands(x=middle, mixed=mixed)).x
    assert isinstance(middle, ChannelsLast)
    assert isinstance(last, ChannelsLast)
    assert last.scales is None  # nothing else splits it
    if precision != "fp32":
        assert middle.scales is None
        assert not any(tile.scales or tile.x_scales for tile in launched)
        return
    assert middle.scales is not None
    assert middle.scales.shape == (2, 6, 5)  # 70 points are five tiles
    scales = middle.scales.data_ptr()
    assert [tile.scales for tile in launched] == [scales, None]
    assert [tile.x_scales for tile in launched] == [None, scales]

    def launch(name: str, tile: _native.Tile, plan: _native.TilePlan) -> None:
        assert plan.stores_split
        assert tile.scales is None  # as it is channel first
        assert tile.x_scales == scales

    monkeypatch.setattr(_cuda, "launch", launch)
    given = Operands(x=middle, mixed=mixed)
    program = stages.programs.prepare(layer, stages._shape(layer, given))
    assert isinstance(stages.run(program, given, channel_first=True).x, torch.Tensor)


@pytest.mark.usefixtures("launched")
def test_a_split_field_has_the_values_of_the_field() -> None:
    stages = CudaStages((3, 37), (1, 4), device=DEVICE, precision="fp32")
    x = torch.randn(2, 10, 3, 37) * torch.logspace(-20, 20, 37)
    split = split_field(stages.convert(x))
    assert split.scales is not None
    assert not torch.equal(split.data, stages.convert(x).data)
    # 22 bits of the largest value of a tile
    for first in range(0, 37, 16):
        exact, found = (
            y[..., first : first + 16].movedim(1, -1).flatten(-2) for y in (x, stages.plain(split))
        )
        assert ((found - exact).abs() <= 2**-22 * exact.abs().amax(-1, keepdim=True)).all()


@pytest.mark.usefixtures("launched")
def test_kernels_that_read_values_refuse_a_split_field() -> None:
    stages = CudaStages((3, 37), (1, 4), device=DEVICE, precision="fp32")
    split = split_field(stages.convert(torch.randn(2, 32, 3, 37)))
    for steps in ((Restore(), Analyze()), (Restore(), Save(moments=True))):
        with pytest.raises(ValueError, match="float16 parts"):
            stages.tile(steps, Operands(saved=split))


def test_an_analysis_of_many_modes_is_split_by_modes(launched: list[_native.Tile]) -> None:
    stages = CudaStages((200,), (70,), device=torch.device("cpu"), precision="tf32")
    mixed = torch.zeros(2, 20, 30, dtype=torch.complex64)
    done = stages.tile((Synthesis(), Activate("gelu"), Store(), Analyze()), Operands(mixed=mixed))
    assert done.spectra is not None
    assert done.spectra.shape == (2, 20, 70)
    assert stages.plain(done.x).shape == (2, 20, 200)
    assert [tile.next_modes for tile in launched] == [0, 32, 32, 6]
    assert {tile.step[0].field for tile in launched[1:]} == {launched[0].step[2].field}


@pytest.mark.parametrize("modes", [1, 12, 70])
def test_a_stored_field_is_analysed_by_one_launch_where_there_is_wgmma(
    modes: int, launched: list[_native.Tile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "device_limits", lambda _: H100)
    analysed: list[_native.RowAnalysis] = []

    def launch(name: str, arguments: _native.RowAnalysis) -> None:
        assert name == "analyze_rows"
        analysed.append(arguments)

    monkeypatch.setattr(_cuda, "launch", launch)
    stages = CudaStages((4, 200), (1, modes), device=DEVICE, precision="tf32")
    bytes_before = stages.nbytes
    saved = stages.convert(torch.zeros(2, 20, 4, 200))
    done = stages.tile((Restore(), Analyze()), Operands(saved=saved))
    (arguments,) = analysed
    assert done.spectra is not None
    assert done.spectra.shape == (2, 20, 4, modes)
    assert arguments.spectra == done.spectra.data_ptr()
    assert arguments.field == saved.data.data_ptr()
    sizes = (arguments.batch, arguments.outer, arguments.points, arguments.channels)
    assert sizes == (2, 4, 200, 20)
    table = _cuda_tables.field_analysis(200, modes, "tf32", DEVICE)
    assert stages.nbytes - bytes_before == table.nbytes
    assert not launched


def test_operands_are_packed_once_per_step_and_counted(launched: list[_native.Tile]) -> None:
    stages = CudaStages((32,), (5,), device=torch.device("cpu"), precision="fp32")
    steps = (Synthesis(), AddMap(torch.randn(16, 16)), Store())
    assert cached_operand_bytes(steps) == 0
    for batch in (2, 2, 3):
        mixed = torch.zeros(batch, 16, 5, dtype=torch.complex64)
        stages.tile(steps, Operands(x=torch.zeros(batch, 16, 32), mixed=mixed))
    assert len({tile.step[1].first for tile in launched}) == 1
    assert cached_operand_bytes(steps) == 16


@pytest.mark.parametrize("draw", range(40))
def test_drawn_programs_are_launched_as_planned_or_refused(
    draw: int, launched: list[_native.Tile]
) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    drawn, precision = draw_program(rng), rng.choice(PRECISIONS)
    stages = CudaStages(drawn.size, drawn.modes, device=torch.device("cpu"), precision=precision)
    saved = None if drawn.saved is None else stages.convert(drawn.saved)
    given = Operands(
        x=drawn.x if isinstance(drawn.steps[0], Source) else stages.convert(drawn.x),
        saved=saved,
        moments=None if saved is None else torch.zeros(len(drawn.x), saved.channels, 2),
        mixed=drawn.mixed,
    )
    shape = stages._shape(drawn.steps, given)
    refused = [piece.refusal for piece in pieces(drawn.steps, shape) if piece.refusal is not None]
    if refused:
        with pytest.raises(ValueError, match=refused[0]):
            stages.tile(drawn.steps, given)
        assert not launched
    else:
        stages.tile(drawn.steps, given)
        program = stages.programs.prepare(drawn.steps, shape)
        assert launched or all(isinstance(one, Transform) for _, one in program.pieces), "no FFT"
