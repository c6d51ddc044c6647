"""Factorised weights: their dense form, a window of their modes, and the bound on their size."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tltorch
import torch
from neuralop.models import FNO as TheirFNO
from torch.overrides import TorchFunctionMode

from tests.service import forked
from tests.thorough import tried
from turbofno.models.importers.neuraloperator import import_neuraloperator, spectral_weights
from turbofno.models.importers.neuraloperator.spectral_weights import (
    MAX_DENSE_BYTES,
    MAX_LAYER_BYTES,
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
    full = fft_order(stored_weight({"tensor": weight}, "convs.0.weight"), 2, 3)
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
    refuse_giant([small] * 4, 4, 1)
    with pytest.raises(
        ImportRefused,
        match=r"have 131,[0-9]{3} bytes, but 2,147,483,648 when multiplied out: 16 of",
    ) as caught:
        refuse_giant([cp(64, 4)] * 16, 16, 1)
    for part in ("64 x 64 x 64 x 64", "500 times", "--set n_modes"):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["Dense", "Tucker", "CP", "TT"])
@pytest.mark.parametrize("numbers", [1, 100, 1 << 20])
def test_blocks_make_up_the_weight(
    kind: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectral_weights, "_BLOCK_NUMBERS", numbers)
    monkeypatch.setattr(spectral_weights, "_BLOCKS", 20)
    weight, dense = factorised(kind, (4, 4, 6, 5))
    expected = torch.fft.ifftshift(dense, dim=2)
    torch.testing.assert_close(fft_order(weight, 2, 4), expected, rtol=1e-4, atol=1e-4)
    count = len(list(weight.blocks()))
    assert count == 1 if numbers > 480 else 5 <= count <= 40


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
    with pytest.raises(ImportRefused, match="multiplying them out needs 1,920,000,000"):
        refuse_giant([train], 1, 1)


def test_the_bound_covers_all_layers_together() -> None:
    one = cp(100, 4000)
    refuse_giant([one] * 6, 6, 1)
    with pytest.raises(ImportRefused, match="At most 5,368,709,120 bytes"):
        refuse_giant([one] * 7, 7, 1)


def test_the_bound_covers_the_largest_layer() -> None:
    """The comparison in float64 copies one layer several times."""
    with pytest.raises(ImportRefused, match="At most 1,342,177,280 bytes"):
        refuse_giant([cp(120, 4000)], 1, 1)


@pytest.mark.parametrize("rank", [0.42, 0.1, 0.05, 0.01])
@pytest.mark.parametrize("kind", ["Tucker", "CP", "TT"])
@pytest.mark.parametrize("shape", [(128, 128, 64, 33), (64, 64, 32, 32, 17), (32, 32, 64, 64, 33)])
def test_published_ranks_are_accepted(kind: str, rank: float, shape: tuple[int, ...]) -> None:
    """Four layers, 1 to 4.2 GiB in all, so that ratios count."""
    theirs = tltorch.FactorizedTensor.new(
        shape, rank=rank, factorization=kind, dtype=torch.cfloat, device="meta"
    )
    weight = stored_weight(dict(theirs.state_dict()), "convs.0.weight")
    assert weight.shape == shape
    refuse_giant([weight] * 4, 4, 1)


def test_factors_without_rows_have_no_blocks() -> None:
    empty = cp(0, 4)
    refuse_giant([empty], 1, 1)
    assert fft_order(empty, 2, 0).shape == (0, 0, 0, 0)


def test_channels_of_a_separable_weight_count() -> None:
    parts = {"tensor": torch.zeros(1, 1, 1, dtype=torch.complex64).expand(2048, 512, 9)}
    weight = stored_weight(parts, "convs.0.weight")
    refuse_giant([weight], 1, 1)
    with pytest.raises(ImportRefused, match=r"2048 times each \(separable\)"):
        refuse_giant([weight], 1, 2048)


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


def saved_network(path: Path, width: int, n_layers: int, sizes: tuple[int, int]) -> Path:
    """A state dict of 2.0.0 with CP factors of rank 4."""
    network = TheirFNO(
        n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=width, n_layers=n_layers
    )
    state = {k: v for k, v in network.state_dict().items() if k != "_metadata"}
    for i in range(n_layers):
        name = f"fno_blocks.convs.{i}.weight"
        state.pop(f"{name}.tensor", None)
        state[f"{name}.weights"] = torch.full((4,), 0.01 + 0j)
        for k, size in enumerate((width, width, *sizes)):
            state[f"{name}.factors.factor_{k}"] = torch.randn(size, 4, dtype=torch.complex64)
    torch.save(state, path)
    return path


_MEASURED = """
import ctypes, re, sys, warnings
import torch
from turbofno.service import cli
warnings.simplefilter("ignore")
# threads wait for each other on a busy machine; freed memory (M_MMAP_THRESHOLD) goes back to the system at once
torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 65536)
def peak():
    # ru_maxrss would include the parent's memory
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+([0-9]+) kB", status.read())[1]) << 10
before = peak()
code = cli.main(["import", *sys.argv[1:]])
print("grew", peak() - before)
sys.exit(code)
"""


def imported_alone(path: Path, *options: str) -> tuple[int, str, int]:
    """`turbofno import` in a process of its own: its status, its output, and the bytes by which its memory grew."""
    place = ["--name", "model", "--model-repository", str(path.parent / path.stem)]
    status, output = forked.run(
        _MEASURED, str(path), *place, *options, cwd=path.parent, env=os.environ
    )
    return status, output, int(output.rpartition("grew ")[2])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("n_layers", "sizes"), [(1, (97, 51)), (4, (49, 25))][: tried(1, 2)])
def test_an_import_needs_a_bounded_multiple_of_the_dense_weights(
    n_layers: int, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """With one mode less than stored the comparison needs a grid for all of them; it needs most memory if that is odd."""
    path = saved_network(tmp_path / "factors.pt", 40, n_layers, sizes)
    dense = 8 * n_layers * 40 * 40 * sizes[0] * sizes[1]
    assert dense > 200 * path.stat().st_size
    modes = f"n_modes={sizes[0] - 1},{2 * sizes[1] - 2}"
    status, output, grew = imported_alone(path, "--set", modes)
    assert status == 0, output
    _, _, without = imported_alone(saved_network(tmp_path / "tiny.pt", 4, n_layers, (5, 3)))
    share = max(dense / MAX_DENSE_BYTES, dense / n_layers / MAX_LAYER_BYTES)
    assert dense < grew - without < 4 * MAX_DENSE_BYTES * share


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_refused_import_needs_no_memory(tmp_path: Path) -> None:
    path = saved_network(tmp_path / "factors.pt", 64, 4, (512, 257))
    status, output, grew = imported_alone(path)
    assert status == 1
    assert "17,246,978,048 when multiplied out" in output
    _, _, tiny = imported_alone(saved_network(tmp_path / "tiny.pt", 4, 4, (5, 3)))
    assert grew < tiny
