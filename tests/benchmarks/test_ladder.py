"""benchmarks.gpu.ladder on a CPU: cases, floors, the composition of each rung, supported shapes."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.gpu import ladder, published
from benchmarks.gpu.device import floor_ms
from benchmarks.gpu.layers import Inputs
from benchmarks.ops import Layer
from tests.turbofno_ops.conftest import plan_library, served_shapes
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno_ops import _channels, _cuda, _gemm, _native
from turbofno_ops._stages import Operands, Results, Step, Store, Synthesis
from turbofno_ops._support import A100, Device, product_refusal
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

    def synthesized(self, mixed: torch.Tensor) -> torch.Tensor:
        field = self.tile((Synthesis(), Store()), Operands(mixed=mixed)).x
        assert isinstance(field, torch.Tensor)
        return field

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


@pytest.mark.parametrize("limits", [A100, H200], ids=["A100", "H200"])
@pytest.mark.usefixtures("served_shapes")
def test_the_kernels_serve_every_case(limits: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (_cuda, ladder):
        monkeypatch.setattr(module, "device_limits", lambda _: limits)
    monkeypatch.setattr(_cuda, "device_clusters", lambda _: 0)
    for module in (_cuda, _native):
        monkeypatch.setattr(module, "bytes_of", lambda *_: 4096)
    fused = {}
    for layer in ladder.cases():
        c = layer.channels
        assert product_refusal(layer.batch, c, c, layer.size, layer.size, layer.modes, "fp32") is None
        kernels = ladder.CudaKernels(layer, torch.device("cpu"))
        skip, bias = torch.empty(c, c, device="meta"), torch.empty(c, device="meta")
        weight = torch.empty(c, c, *layer.modes, dtype=torch.complex64, device="meta")
        rungs = ladder.Rungs(Inputs([], weight, skip, bias), kernels, published.pointwise)
        assert kernels.refusal(rungs.layer_steps) is None, layer.label
        assert kernels.refusal(rungs.chained_steps) is None, layer.label
        fused[c, layer.modes] = kernels.fused_in_networks(rungs.chained_steps)
    # compiled networks fuse the analysis of up to 1024 sums
    assert fused == {(c, modes): c * modes[-1] <= 1024 for c, modes in fused}
