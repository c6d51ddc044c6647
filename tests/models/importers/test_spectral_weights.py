"""Factorised weights: their dense form, a window of their modes, and the bound on their size."""

from __future__ import annotations

from typing import Any

import pytest
import tltorch
import torch
from torch.overrides import TorchFunctionMode

from turbofno.models.importers.neuraloperator import import_neuraloperator, spectral_weights
from turbofno.models.importers.neuraloperator.spectral_weights import (
    StoredWeight,
    fft_order,
    refuse_giant,
    stored_weight,
)
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Options

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def factorised(kind: str, shape: tuple[int, ...]) -> tuple[StoredWeight, torch.Tensor]:
    """A random weight as tltorch stores it, and its dense form by tltorch."""
    theirs = tltorch.FactorizedTensor.new(shape, rank=0.6, factorization=kind, dtype=torch.cfloat)
    theirs.normal_(0, 1)
    parts = {name: part.detach() for name, part in theirs.state_dict().items()}
    dense = theirs.to_tensor() if kind != "Dense" else theirs.tensor
    return stored_weight(parts, "convs.0.weight"), dense.detach()


@pytest.mark.parametrize("kind", ["Dense", "Tucker", "CP", "TT"])
def test_a_window_of_the_factors_is_a_window_of_the_weight(kind: str) -> None:
    weight, dense = factorised(kind, (3, 4, 6, 7, 5))
    assert weight.shape == (3, 4, 6, 7, 5)
    torch.testing.assert_close(weight.dense().to(torch.complex64), dense, rtol=1e-4, atol=1e-4)
    part = weight.window((4, 3, 2))
    assert part.shape == (3, 4, 4, 3, 2)
    expected = dense[:, :, 1:5, 2:5, :2]
    torch.testing.assert_close(part.dense().to(torch.complex64), expected, rtol=1e-4, atol=1e-4)
    assert part.stored_bytes < weight.stored_bytes


def test_a_separable_weight_becomes_diagonal() -> None:
    weight = torch.randn(3, 4, 5, dtype=torch.complex64)
    full = fft_order(weight, 2, 3)
    assert full.shape == (3, 3, 4, 5)
    for i in range(3):
        assert torch.equal(full[i, i], torch.fft.ifftshift(weight[i], dim=0))
        assert not full[i, i - 1].any()


def cp(size: int, rank: int, order: int = 4) -> StoredWeight:
    parts = {f"factors.factor_{k}": torch.zeros(size, rank) * 1j for k in range(order)}
    return stored_weight({"weights": torch.zeros(rank) * 1j, **parts}, "convs.0.weight")


def test_small_factors_of_a_giant_weight_are_refused() -> None:
    small = cp(64, 8)
    assert small.dense_bytes == 8 * 64**4
    refuse_giant([small] * 4, 1)
    with pytest.raises(
        ImportRefused,
        match=r"have 131,[0-9]{3} bytes, but 2,147,483,648 when multiplied out: 16 of",
    ) as caught:
        refuse_giant([cp(64, 4)] * 16, 1)
    for part in ("64 x 64 x 64 x 64", "1,000 times", "--set n_modes"):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["CP", "TT", "Tucker"])
def test_multiplying_out_needs_a_few_times_the_memory_of_the_result(kind: str) -> None:
    """CP ranks of usual networks are in the thousands."""
    weight, _ = factorised(kind, (32, 32, 16, 9))
    largest = 0

    class Largest(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Largest():
        weight.dense()
    parts = max(part.numel() for part in weight.parts.values())
    assert largest <= 2 * max(weight.dense_bytes // 8, parts)


def test_a_tensor_train_with_too_large_ranks_is_refused() -> None:
    shapes = [(1, 100, 1), (1, 100, 200_000), (200_000, 100, 1), (1, 100, 1)]
    parts = {
        f"factors.factor_{k}": torch.zeros(1, 1, 1, dtype=torch.complex64).expand(shape)
        for k, shape in enumerate(shapes)
    }
    train = stored_weight(parts, "convs.0.weight")
    assert train.dense_bytes == 8 * 100**4
    with pytest.raises(ImportRefused, match="multiplying them out needs 16,000,000,000"):
        refuse_giant([train], 1)


def test_the_bound_covers_all_layers_together() -> None:
    one = cp(128, 4000)
    refuse_giant([one] * 3, 1)
    with pytest.raises(ImportRefused, match="At most 8,589,934,592 bytes"):
        refuse_giant([one] * 5, 1)


def test_channels_of_a_separable_weight_count() -> None:
    parts = {"tensor": torch.zeros(1, 1, 1, dtype=torch.complex64).expand(2048, 512, 9)}
    weight = stored_weight(parts, "convs.0.weight")
    refuse_giant([weight], 1)
    with pytest.raises(ImportRefused, match=r"2048 times each \(separable\)"):
        refuse_giant([weight], 2048)


def test_a_giant_weight_is_refused_before_it_is_multiplied_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spectral_weights, "_HARMLESS_BYTES", 1 << 10)
    monkeypatch.setattr(spectral_weights, "MAX_EXPANSION", 2)
    monkeypatch.setattr(StoredWeight, "dense", None)
    tensors = {f"fno_blocks.convs.0.weight.{k}": v for k, v in cp(8, 2).parts.items()}
    tensors["fno_blocks.convs.0.bias"] = torch.zeros(8, 1, 1)
    with pytest.raises(ImportRefused, match="the spectral weights have"):
        import_neuraloperator(tensors, {"in_channels": 1}, Options())


def test_unused_modes_are_not_multiplied_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def dense(weight: StoredWeight) -> None:
        raise ImportRefused(f"multiplied out to {weight.shape}")

    monkeypatch.setattr(StoredWeight, "dense", dense)
    tensors = {f"fno_blocks.convs.0.weight.{k}": v for k, v in cp(8, 2).parts.items()}
    tensors["fno_blocks.convs.0.bias"] = torch.zeros(8, 1, 1)
    with pytest.raises(ImportRefused, match=r"\(8, 8, 4, 3\)"):
        import_neuraloperator(tensors, {"in_channels": 1, "n_modes": (4, 4)}, Options())
