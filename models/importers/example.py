"""An answer of the network that a model was imported from, compared with the model's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from turbofno.models.core.checkpoint import LoadedModel
from turbofno.models.importers.refusal import ImportRefused

_ROUNDING, _MOST = 1e-4, 1e-2


def compare(inputs: Path, outputs: Path, model: LoadedModel) -> str:
    """Run the model on the fields in one .npy file, and compare its answers with those in another.

    Args:
        inputs: [n, in_channels, *grid], in the units of the model.
        outputs: [n, out_channels, *grid], what the network gave for them.
        model: the imported model.

    Returns:
        A sentence with the difference.

    Raises:
        ImportRefused: there are no such arrays in the files, or the answers differ by over 1e-2 of their deviation from
            each channel's mean.
    """
    arch = model.config.architecture
    x = _read(inputs, arch.in_channels, arch.n_dim)
    expected = _read(outputs, arch.out_channels, arch.n_dim)
    grid, (low, high) = x.shape[2:], (model.config.grid.minimum, model.config.grid.maximum)
    if not all(least <= n <= most for least, n, most in zip(low, grid, high, strict=True)):
        raise ImportRefused(
            f"{inputs} has the grid {list(grid)}, the model takes {list(low)} to {list(high)} points"
        )
    # a mean of 300 K would hide an error of 1 K
    means = expected.mean(axis=(0, *range(2, expected.ndim)), dtype=np.float64, keepdims=True)
    missed = size = 0.0
    for number in range(len(x)):
        given = _tensor(x[number], inputs, np.float32)
        with torch.inference_mode():
            y = model.module(given)
        if expected.shape != (len(x), *y.shape[1:]):
            raise ImportRefused(
                f"{outputs} has shape {list(expected.shape)}, expected {[len(x), *y.shape[1:]]} for the inputs of {inputs}"
            )
        truth = _tensor(expected[number], outputs, np.float64)
        missed += float((y - truth).square().sum())
        size += float((truth - torch.from_numpy(means)).square().sum())
    difference = (missed / size) ** 0.5 if size > 0 else float("inf")
    said = f"on your example the answers differ from those of your network by {difference:.1e} of their deviation"
    if not difference <= _MOST:
        raise ImportRefused(
            f"{said}, so nothing was written: one of the assumptions above is wrong, or the arrays have other units or "
            "another order of axes than the model's"
        )
    if difference > _ROUNDING:
        said += (
            ": more than float32 rounds. Unless your network computed in lower precision, such as TF32, PyTorch's default "
            "for convolutions on a GPU, one of the assumptions above is slightly wrong"
        )
    return said


def _tensor(
    field: NDArray[np.generic], path: Path, dtype: type[np.float32 | np.float64]
) -> torch.Tensor:
    """A batch of one field of a file, in any dtype and byte order."""
    with np.errstate(over="ignore"):
        values = field[np.newaxis].astype(dtype)
    if not np.isfinite(values).all():
        raise ImportRefused(
            f"{path} holds values that are NaN or infinite in {values.dtype}: give fields without them"
        )
    return torch.from_numpy(values)


def _read(path: Path, channels: int, n_dim: int) -> NDArray[np.generic]:
    if not path.is_file():
        raise ImportRefused(f"{path} is no file")
    try:
        # refuses pickled objects
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise ImportRefused(f"{path} is not a .npy file of numbers: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise ImportRefused(f"{path} is not a .npy file of real numbers")
    axes = ", ".join("xyz"[:n_dim])
    if array.ndim != n_dim + 2 or array.shape[1] != channels or not len(array):
        last = array.ndim == n_dim + 2 and array.shape[-1] == channels
        mend = "; move the axis of channels, np.moveaxis(fields, -1, 1)" if last else ""
        raise ImportRefused(
            f"{path} has shape {list(array.shape)}, expected [fields, {channels}, {axes}]{mend}"
        )
    return array
