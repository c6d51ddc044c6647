"""Tables of csrc/kernels/ntt.cu."""

from __future__ import annotations

import numpy as np
import torch

from turbofno_ops._gemm import _tables
from turbofno_ops.ntt._arithmetic import BY_NAME, Field, Words, twists


def words(field: Field, constants: Words) -> torch.Tensor:
    """Return constants as the kernels read them, as int32 or int64 bit patterns."""
    factor = np.uint64(field.montgomery % field.prime)
    stored = field.multiply(constants, factor) if field.montgomery != 1 else constants
    if field.word_bytes == 4:
        return torch.from_numpy(stored.astype(np.uint32).view(np.int32))
    return torch.from_numpy(stored.view(np.int64).copy())


@_tables.cached
def table(
    name: str, points: int, inverse: bool, negacyclic: bool, device: torch.device
) -> torch.Tensor:
    """Return the roots w^i, the factors psi^i of values and the factors of the inverse's results, [3, points].

    The last two are zero where the transform does not read them.
    """
    field = BY_NAME[name]
    parts = np.zeros((3, points), dtype=np.uint64)
    parts[0] = field.powers(field.root(points), points)
    if negacyclic and not inverse:
        parts[1] = twists(field, points, inverse=False)
    if inverse and negacyclic:
        parts[2] = twists(field, points, inverse=True)
    elif inverse:
        parts[2] = pow(points, -1, field.prime)
    with torch.inference_mode(False):
        return words(field, parts).to(device)
