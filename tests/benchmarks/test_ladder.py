"""benchmarks.gpu.ladder on a CPU: cases, floors, the composition of each rung, supported shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import fusion
from benchmarks.gpu import ladder, picture, published, shared_weight
from benchmarks.gpu.device import floor_ms
from benchmarks.gpu.layers import Inputs
from benchmarks.gpu.published_kernel import printed_milliseconds, published_milliseconds
from benchmarks.ops import Layer
from tests.turbofno_ops.fourier_truth import relative_l2, spectral_conv_truth
from turbofno_ops import (
    _channels,
    _cuda,
    _cuda_product,
    _cuda_programs,
    _gemm,
    _native,
    spectral_conv,
)
from turbofno_ops._stages import AddMap, Analyze, Operands, Results, Source, Step, Store, Synthesis
from turbofno_ops._support import A100, Device, product_refusal, program_refusal
from turbofno_ops._torch_stages import TorchStages

H200 = Device(132, 227 * 1024, True)
LAYERS = [Layer(2, 8, (20,), (6,)), Layer(3, 8, (16, 20), (6, 4)), Layer(2, 4, (9, 11), (5, 3))]


class TorchKernels:
    """The stages of the rungs in plain PyTorch."""

    def __init__(self, layer: Layer) -> None:
        self._stages = TorchStages(layer.size, layer.modes, layer.size)
        self.tile, self.mix = self._stages.tile, self._stages.mix
        self.convert, self.plain = self._stages.convert, self._stages.plain

    def fused(self, steps: tuple[Step, ...], operands: Operands) -> Results:
        return self.tile(steps, operands)

    def points(self, field: torch.Tensor) -> torch.Tensor:
        return field.movedim(1, -1)

    def field(self, points: torch.Tensor) -> torch.Tensor:
        return points.movedim(-1, 1)

    def mix_by_torch(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        *others, last = self._stages.modes
        z = _gemm.analyze_others(spectra, others)  # [*others, last, batch, c_in]
        z = z.reshape(-1, *z.shape[-3:]).permute(0, 2, 3, 1)
        count, batch, _, _ = z.shape
        # some columns more, as between the kernels' modes
        whole = z.new_empty(count, batch * weight.shape[-1] * last + 5)
        out = whole[:, :-5].unflatten(1, (batch, weight.shape[-1], last))
        ladder.multiply_by_torch(z, weight, out)
        mixed = out.permute(0, 3, 1, 2).reshape(*others, last, batch, weight.shape[-1])
        return _gemm.synthesize_others(mixed, self._stages.size[:-1])


def draw(layer: Layer) -> Inputs:
    n, c = len(layer.modes), layer.channels
    weight = torch.randn(*layer.modes, c, c, dtype=torch.complex64) / math.sqrt(c)
    return Inputs(
        [torch.randn(layer.batch, c, *layer.size)],
        ladder.hermitian(weight).permute(n, n + 1, *range(n)),
        torch.randn(c, c) / math.sqrt(c),
        torch.randn(c),
    )


@pytest.mark.parametrize("rung", range(5))
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.label)
def test_every_rung_is_the_layer(layer: Layer, rung: int) -> None:
    inputs = draw(layer)
    rungs = ladder.Rungs(inputs, TorchKernels(layer), published.pointwise)
    x = inputs.fields[0]
    results = rungs.results(rung, rungs.run(rung, rungs.state(rung, x)))
    assert (results[1] is not None) == (rung == 4)
    assert ladder.error_of(results, ladder.truth(inputs)) < 1e-6


def test_a_chain_of_rung_four_continues_with_its_spectra() -> None:
    layer = LAYERS[1]
    inputs = draw(layer)
    rungs = ladder.Rungs(inputs, TorchKernels(layer), _channels.pointwise)
    x = inputs.fields[0]
    twice = rungs.run(4, rungs.run(4, rungs.state(4, x)))
    by_torch = rungs.run(0, rungs.run(0, x))
    assert relative_l2(rungs.results(4, twice)[0], by_torch) < 1e-6


def test_a_wrong_field_or_spectrum_is_an_error() -> None:
    truth = torch.randn(1, 3, 16, dtype=torch.float64)
    field, spectra = truth.float(), torch.fft.rfft(truth, norm="forward")[..., :4].cfloat()
    assert ladder.error_of((field, spectra), truth) < 1e-6
    assert ladder.error_of((field, spectra * 1.01), truth) == pytest.approx(0.01, rel=1e-3)
    assert ladder.error_of((field * 1.01, spectra), truth) == pytest.approx(0.01, rel=1e-3)
    assert math.isnan(ladder.error_of((field * math.nan, spectra), truth))


@pytest.mark.parametrize("modes", [(5,), (6, 4), (5, 3)])
def test_the_spectra_of_hermitian_weights_are_those_of_real_fields(modes: tuple[int, ...]) -> None:
    size = tuple(2 * count + 1 for count in modes)
    n = len(modes)
    weight = ladder.hermitian(torch.randn(*modes, 3, 3, dtype=torch.complex128))
    corners = published.corners_of(weight.permute(n, n + 1, *range(n)))
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    y = published.spectral_conv(x, corners)
    # the transform of the result is the product itself, also in the zeroth column
    axes = tuple(range(2, 2 + n))
    kept = torch.fft.rfftn(x, dim=axes)[:, :, *(slice(0, 2) for _ in modes)]
    mixed = torch.fft.rfftn(y, dim=axes)[:, :, *(slice(0, 2) for _ in modes)]
    where = tuple(slice(0, 2) for _ in modes)
    by_hand = torch.einsum("bi...,...io->bo...", kept, weight[where])
    torch.testing.assert_close(mixed, by_hand)


def test_cases_fit_the_memory_and_cover_batches_and_channels() -> None:
    cases = ladder.cases()
    assert len(set(cases)) == len(cases)
    assert {c.batch for c in cases} == set(ladder.BATCHES)
    assert {c.channels for c in cases} == set(ladder.CHANNELS)
    assert max(ladder.field_bytes(c) for c in cases) < 5e9
    assert ladder.field_bytes(Layer(2, 3, (4, 5), (2, 2))) == 480
    assert len(cases) < 125
    few = ladder.cases(quick=True)
    assert set(few) < set(cases)
    assert {len(c.size) for c in few} == {1, 2}


def test_the_floor_is_one_read_and_one_write() -> None:
    values = 16 * 64 * 1024
    assert floor_ms(values, 4, 4e12) == pytest.approx(2 * values * 4 / 4e12 * 1e3)


@pytest.fixture
def as_on(
    served_shapes: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Device], list[str]]:
    """Plan as on a device. Launches do nothing; their names are returned."""

    def plan(limits: Device) -> list[str]:
        launched: list[str] = []
        for module in (_cuda, ladder):
            monkeypatch.setattr(module, "device_limits", lambda _: limits)
        monkeypatch.setattr(_cuda, "device_clusters", lambda _: 0)
        for module in (_cuda, _cuda_programs, _native):
            monkeypatch.setattr(module, "bytes_of", lambda *_: 4096)
        for module in (_cuda, _cuda_product, _native):
            monkeypatch.setattr(module, "launch", lambda name, *_: launched.append(name))
        return launched

    return plan


@pytest.mark.parametrize("limits", [A100, H200], ids=["A100", "H200"])
def test_the_kernels_serve_every_case(as_on: Callable[[Device], list[str]], limits: Device) -> None:
    as_on(limits)
    fused = {}
    for layer in ladder.cases():
        c = layer.channels
        assert (
            product_refusal(layer.batch, c, c, layer.size, layer.size, layer.modes, "fp32") is None
        )
        kernels = ladder.CudaKernels(layer, torch.device("cpu"))
        skip, bias = torch.empty(c, c, device="meta"), torch.empty(c, device="meta")
        weight = torch.empty(c, c, *layer.modes, dtype=torch.complex64, device="meta")
        rungs = ladder.Rungs(Inputs([], weight, skip, bias), kernels, published.pointwise)
        for steps in (ladder.SYNTHESIS, rungs.layer_steps, rungs.chained_steps):
            assert kernels.refusal(steps) is None, layer.label
        fused[c, layer.modes] = kernels.fused_in_networks(rungs.chained_steps)
    # compiled networks fuse the analysis of up to 1024 sums
    assert fused == {(c, modes): c * modes[-1] <= 1024 for c, modes in fused}


ROWS, TILE = "analyze_rows", "tile_program"
AXIS, PRODUCT = "transform_axis", "multiply_modes"
LAUNCHES_2D = [
    [],
    [ROWS, AXIS, AXIS, TILE],
    [ROWS, AXIS, PRODUCT, AXIS, TILE],
    [ROWS, AXIS, PRODUCT, AXIS, TILE],
    [AXIS, PRODUCT, AXIS, TILE],
]


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.parametrize("rung", range(5))
def test_launches_of_the_rungs(as_on: Callable[[Device], list[str]], axes: int, rung: int) -> None:
    launched = as_on(H200)
    # 128 channels, of which networks do not fuse the analysis
    layer = Layer(1, 128, (128,), (64,)) if axes == 1 else Layer(1, 128, (24, 32), (8, 12))
    inputs = draw(layer)
    rungs = ladder.Rungs(
        inputs, ladder.CudaKernels(layer, torch.device("cpu")), published.pointwise
    )
    state = rungs.state(rung, inputs.fields[0])
    rungs.run(rung, state)
    launched.clear()
    field, spectra = rungs.results(rung, rungs.run(rung, state))
    expected = [name for name in LAUNCHES_2D[rung] if axes == 2 or name != AXIS]
    assert launched == expected
    assert field.shape == inputs.fields[0].shape
    if rung == 4:
        assert spectra is not None
        assert spectra.shape == (1, 128, *layer.size[:-1], layer.modes[-1])


def test_a_shared_weight_is_a_real_convolution_of_twice_the_channels() -> None:
    x = torch.randn(3, 4, 32, dtype=torch.complex128)
    weight = torch.randn(4, 5, dtype=torch.complex128)
    expected = shared_weight.convolved(x, weight, 10)
    field = spectral_conv(shared_weight.planar(x), shared_weight.real_weight(weight, 10))
    assert relative_l2(shared_weight.interleaved(field), expected) < 1e-12
    # by its definition: a sum over frequencies
    points = torch.arange(32, dtype=torch.float64)
    wave = torch.exp(2j * math.pi * torch.outer(points[:10], points) / 32)
    by_hand = torch.einsum("bin,kn,io,km->bom", x, wave.conj() / 32, weight, wave)
    assert relative_l2(expected, by_hand) < 1e-12


@pytest.mark.usefixtures("served_shapes")
def test_shared_weights_are_the_papers_cases() -> None:
    cases = shared_weight.cases()
    assert {c.points for c in cases} == {128, 256, 512, 1024}
    assert {c.batch * c.points for c in cases} == {2**21}
    assert shared_weight.SharedWeight(16384, 64, 128) in cases
    for c in cases:
        real, size = 2 * c.channels, (c.points,)
        skip = AddMap(torch.empty(real, real, device="meta"))
        assert product_refusal(c.batch, real, real, size, size, (64,), "fp32") is None
        for steps in ((Source(), Analyze()), (Synthesis(), skip, Store())):
            refused = program_refusal(
                steps,
                batch=c.batch,
                channels=real,
                channels_of_x=real,
                size=size,
                modes=64,
                next_modes=64,
                precision="fp32",
            )
            assert refused is None


def test_the_stages_of_a_convolution() -> None:
    layer = LAYERS[1]
    inputs = draw(layer)
    weight = _channels.mode_major(inputs.weight)
    y = ladder.convolution(TorchKernels(layer), weight, inputs.fields[0])
    assert relative_l2(y, spectral_conv_truth(inputs.fields[0], inputs.weight)) < 1e-6


def test_the_published_program_is_asked_for_one_case(tmp_path: Path) -> None:
    case = {"batch": 16384, "channels": 64, "points": 128}
    line = "1D_D, bs=16384, dimX=1   , DY=128 , N=64  , K=64  , TIME=   3.720ms\n"
    assert (
        printed_milliseconds(
            "1D_D, bs=1   , dimX=1   , DY=128 , N=64  , K=64  , TIME=0.1ms\n" + line, **case
        )
        == 3.72
    )
    with pytest.raises(RuntimeError, match="printed no time"):
        printed_milliseconds("", **case)
    with pytest.raises(RuntimeError, match="not built"):
        published_milliseconds(tmp_path, **case)
    program = tmp_path / "fusion_variants/1D_D_exp_fused_fft_cgemm_ifft/build/TurboFNO_1D_D"
    config = tmp_path / "benchmark_config/problem_size_1d.txt"
    for file in (program, config):
        file.parent.mkdir(parents=True)
    config.write_text("bs_list = 1\n")
    program.write_text(
        f"#!/bin/sh\ngrep -q 'bs_list = 16384' {config} && printf '{line.strip()}\\n'\n"
    )
    program.chmod(0o755)
    assert published_milliseconds(tmp_path, **case) == 3.72
    assert config.read_text() == "bs_list = 1\n"


WHERE = {"gpu": "GPU", "torch": "2.11", "cuda": "13.0", "commit": "abc", "at": "2026-11-21T00:00"}


def ladder_rows(
    batch: int, channels: int, grid: list[int], ms: list[float]
) -> list[dict[str, object]]:
    """The rows of a layer with the times of rungs 0 to 4; networks fuse the analysis of 16 channels."""
    fused = channels == 16
    shared = {
        "layer": f"B{batch} C{channels} {grid}",
        "batch": batch,
        "channels": channels,
        "grid": grid,
        "modes": [4] * len(grid),
        "floor ms": 0.1,
        "relative L2 error": 1e-7,
        **WHERE,
    }
    rows = [{**shared, "rung": i, "what": ladder.RUNGS[i], "ms": t} for i, t in enumerate(ms)]
    last = {"ms": ms[4 if fused else 3], "calls ms": 3.0, "analysis fused in networks": fused}
    return [*rows, {**shared, "rung": 5, "what": ladder.RUNGS[5], **last}]


def result_rows() -> list[dict[str, object]]:
    rows = [
        *ladder_rows(1, 16, [128], [16.0, 8.0, 4.0, 2.0, 1.0]),
        *ladder_rows(16, 16, [128], [16.0, 8.0, 4.0, 2.0, 1.0]),
        *ladder_rows(1, 32, [128], [16.0, 8.0, 4.0, 2.0, 4.0]),
        *ladder_rows(1, 16, [64, 64], [27.0, 9.0, 9.0, 3.0, 3.0]),
    ]
    for what, ms in (
        ("cuFFT+cuBLAS", 3.0),
        ("cuFFT+cuBLAS without copies", 2.0),
        ("turbofno", 1.25),
        ("turbofno, channels last", 1.0),
    ):
        rows.append(
            {
                **rows[0],
                "layer": "shared",
                "rung": None,
                "what": what,
                "ms": ms,
                "grid": [128],
                **WHERE,
            }
        )
    return rows


def cells(page: str, begin: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_gains_are_over_the_rung_before() -> None:
    page = "\n".join(fusion.section(result_rows()))
    by_grid = cells(page, "128, 4 kept")
    assert by_grid[1] == "3"
    assert by_grid[2] == "2x (2x to 2x)"
    assert by_grid[5] == "2x (0.5x to 2x)"
    # of 32 channels networks run rung 3
    assert by_grid[6] == "16x (8x to 16x)"
    assert by_grid[7] == "3x (1.5x to 3x)"
    assert cells(page, "networks fuse it")[1:] == ["3", "2x (1x to 2x)"]
    assert cells(page, "networks run it as")[1:] == ["1", "0.5x (0.5x to 0.5x)"]
    assert cells(page, "A: ")[4:] == ["4x (4x to 4x)", "3x (3x to 3x)"]
    assert cells(page, "E: ")[4:] == ["16x (8x to 16x)", "9x (9x to 9x)"]
    assert "rung 2) 4x, truncated" in page
    assert "fusion is 50% of the whole" in page
    assert cells(page, "128 | 16 | 1")[4:] == [
        *("3 (30x)", "2 (20x)", "1.25 (12.5x)", "1 (10x)", "", "3x", "2x")
    ]
    assert "left out" in page
    assert "(../ladder_1d.png)" in page


def test_the_page_without_results_claims_nothing_of_ours(tmp_path: Path) -> None:
    page = fusion.document(tmp_path)
    assert cells(page, "E: ")[4:] == ["not measured", "not measured"]
    assert ".png" not in page
    (tmp_path / fusion.RESULT).write_text("".join(json.dumps(row) + "\n" for row in result_rows()))
    measured = fusion.document(tmp_path)
    assert "16x (8x to 16x)" in measured
    before, after = "## How it is measured", "## How to read it"
    assert measured.index(before) < measured.index("## By itself") < measured.index(after)


def test_gains_are_in_their_cells_and_drawn(tmp_path: Path) -> None:
    found = fusion.ladders(result_rows())
    of = [x for x in found if x.axes == 1]
    batches, channels, table = picture.gain_table(of, fusion.GAINS["4: next analysis fused"])
    assert (batches, channels) == ([1, 16], [16, 32])
    np.testing.assert_array_equal(table, [[2, 2], [0.5, np.nan]])
    picture.draw_ladder(of, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
