"""Conversion of neuraloperator's spectral weights, dense or factorised, to dense [c_in, c_out, *modes] in FFT order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from turbofno.models.importers.layout import IMAGINARY_LOST, as_complex
from turbofno.models.importers.refusal import ImportRefused

# Of the dense weights of all layers and of one layer, as complex64. The import needs up to four times the first: the
# comparison holds several copies of one layer in float64.
MAX_DENSE_BYTES = 5 << 30
MAX_LAYER_BYTES = MAX_DENSE_BYTES // 4
# Published factorisations compress up to 500 times; below 512 MiB any ratio is harmless.
MAX_EXPANSION = 500
_HARMLESS_BYTES = 512 << 20
# A weight is multiplied out in blocks of this many numbers, or in this many blocks if those are larger.
_BLOCK_NUMBERS = 1 << 20
_BLOCKS = 16
_KINDS = "a dense tensor, Tucker, CP and TT"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight in the file: a dense tensor or the parts of a tltorch factorisation; complex.

    `parts` are `tensor`; `core` and `factors.factor_k` (Tucker); `weights` and `factors.factor_k` (CP); or
    `factors.factor_k` (tensor train). `shape` is that of the dense tensor; `where` is the prefix of their keys, for
    messages. `paired`: a dense tensor of real numbers in the file, whose last axis has real and imaginary parts.
    """

    where: str
    parts: dict[str, torch.Tensor]
    shape: tuple[int, ...]
    paired: bool = False

    @property
    def stored_bytes(self) -> int:
        """Bytes of the parts, 8 per complex number."""
        return 8 * sum(part.numel() for part in self.parts.values())

    @property
    def dense_bytes(self) -> int:
        """Bytes of the dense tensor, 8 per complex number."""
        return 8 * math.prod(self.shape)

    @property
    def working_bytes(self) -> int:
        """Bytes of the largest intermediate product of a block, 16 per complex number.

        Only those of tensor trains can be larger than both the block and the parts.
        """
        block = next((block for _, block in self.blocks()), None)
        if block is None or {"tensor", "core", "weights"} & set(self.parts):
            return 0
        factors = [block.parts[f"factors.factor_{k}"] for k in range(len(self.shape))]
        return 16 * _best_bond(factors)[1]

    def narrow(self, axis: int, first: int, count: int) -> StoredWeight:
        """The weight with `count` entries of an axis from `first` on; it shares memory."""
        name, along = self._holder(axis)
        parts = {**self.parts, name: self.parts[name].narrow(along, first, count)}
        return replace(
            self, parts=parts, shape=(*self.shape[:axis], count, *self.shape[axis + 1 :])
        )

    def window(self, modes: Sequence[int]) -> StoredWeight:
        """The weight with only `modes`: the middle ones of each mode axis, the first ones of the last axis."""
        weight, n_dim = self, len(modes)
        for i, kept in enumerate(modes):
            axis = len(self.shape) - n_dim + i
            first = 0 if i == n_dim - 1 else (self.shape[axis] - kept) // 2
            weight = weight.narrow(axis, first, kept)
        return weight

    def in_fft_order(self, n_dim: int) -> StoredWeight:
        """The weight with its mode axes but the last, which ascend from the most negative frequency, in FFT order."""
        parts = dict(self.parts)
        for axis in range(len(self.shape) - n_dim, len(self.shape) - 1):
            name, along = self._holder(axis)
            parts[name] = torch.fft.ifftshift(parts[name], dim=along)
        return replace(self, parts=parts)

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], StoredWeight]]:
        """Small parts that make up the weight, each with its place in the dense tensor; they share memory."""
        largest = max(_BLOCK_NUMBERS, math.prod(self.shape) // _BLOCKS)
        axis = 0
        while math.prod(self.shape[axis + 1 :]) > largest:
            axis += 1
        step = max(1, largest // max(1, math.prod(self.shape[axis + 1 :])))
        steps = [*(1 for _ in range(axis)), step]
        starts = (range(0, n, by) for n, by in zip(self.shape, steps, strict=False))
        for corner in product(*starts):
            block, place = self, []
            for k, (first, by) in enumerate(zip(corner, steps, strict=True)):
                count = min(by, self.shape[k] - first)
                block = block.narrow(k, first, count)
                place.append(slice(first, first + count))
            yield tuple(place), block

    def _holder(self, axis: int) -> tuple[str, int]:
        """The part that has an axis of the weight, and the number of the axis in it."""
        if "tensor" in self.parts:
            return "tensor", axis
        name = f"factors.factor_{axis}"
        return name, _mode_axis(self.parts[name])

    def dense(self) -> torch.Tensor:
        """The dense tensor; the product of factors is complex128.

        Raises:
            ImportRefused: factors whose shapes do not fit.
        """
        if "tensor" in self.parts:
            return self.parts["tensor"]
        parts = {name: part.to(torch.complex128) for name, part in self.parts.items()}
        factors = [parts[f"factors.factor_{k}"] for k in range(len(self.shape))]
        try:
            if "core" in parts:
                return _tucker(parts["core"], factors)
            if "weights" in parts:
                return _cp(parts["weights"], factors)
            return _tensor_train(factors)
        except RuntimeError as error:
            raise ImportRefused(
                f"{self.where}: the shapes of the factors do not fit: {error}"
            ) from None


def stored_weight(parts: dict[str, torch.Tensor], where: str) -> StoredWeight:
    """The weight with the key prefix `where`; 0.3.0 stores real and imaginary parts.

    Raises:
        ImportRefused: an unknown factorisation.
    """
    given = parts
    parts = {name: as_complex(tensor, f"{where}.{name}") for name, tensor in given.items()}
    if set(parts) == {"tensor"}:
        paired = not given["tensor"].is_complex()
        return StoredWeight(where, parts, tuple(parts["tensor"].shape), paired)
    order = len(parts) - len({"core", "weights"} & set(parts))
    names = [f"factors.factor_{k}" for k in range(order)]
    allowed = ({*names, "core"}, {*names, "weights"}, set(names))
    if not names or set(parts) not in allowed:
        raise ImportRefused(
            f"{where} holds {sorted(parts) or 'no tensors'}, which is none of {_KINDS}"
        )
    of_factors = 3 if set(parts) == set(names) else 2
    for name, part in parts.items():
        axes = {"core": order, "weights": 1}.get(name, of_factors)
        if part.ndim == axes:
            continue
        shown = f"{where}.{name} of shape {list(given[name].shape)}"
        if given[name].is_complex():
            raise ImportRefused(f"{shown} is not {axes}-dimensional. Supported are {_KINDS}")
        raise ImportRefused(f"{shown} is not complex and {axes}-dimensional. {IMAGINARY_LOST}")
    shape = tuple(parts[name].shape[_mode_axis(parts[name])] for name in names)
    return StoredWeight(where, parts, shape)


def _mode_axis(factor: torch.Tensor) -> int:
    """The axis of a factor that is an axis of the weight: 0 of [size, rank], 1 of a tensor train's [rank, size, rank]."""
    return factor.ndim // 3


def refuse_giant(weights: Sequence[StoredWeight], n_layers: int, times: int) -> None:
    """Refuse weights of `n_layers` layers whose dense form, repeated `times` times, would fill the memory."""
    stored = sum(weight.stored_bytes for weight in weights)
    dense = times * sum(weight.dense_bytes for weight in weights)
    if stored == dense:
        return
    needed = max(dense, *(weight.working_bytes for weight in weights))
    most = min(MAX_DENSE_BYTES, n_layers * MAX_LAYER_BYTES)
    if needed > most or needed > max(_HARMLESS_BYTES, MAX_EXPANSION * stored):
        shape = " x ".join(map(str, weights[0].shape))
        repeated = f", {times} times each (separable)" if times > 1 else ""
        intermediate = f"; multiplying them out needs {needed:,}" if needed > dense else ""
        raise ImportRefused(
            f"the spectral weights have {stored:,} bytes, but {dense:,} when multiplied out: {len(weights)} of {shape} "
            f"complex numbers{repeated}{intermediate}. At most {most:,} bytes are supported for a network of this "
            f"depth, and above {_HARMLESS_BYTES:,} at most {MAX_EXPANSION:,} times the stored bytes. Import a network "
            "with fewer modes or channels, or only its lowest modes: --set n_modes=[..]"
        )


def _tucker(core: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    # Factors that shrink the core first: no intermediate is larger than the core and the result.
    for axis in sorted(
        range(len(factors)), key=lambda k: factors[k].shape[0] / factors[k].shape[1]
    ):
        core = torch.tensordot(core, factors[axis], dims=([axis], [1])).movedim(-1, axis)
    return core


def _cp(weights: torch.Tensor, factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Product of two matrices, one for the first axes and one for the others, a few ranks at a time."""
    sizes = [len(factor) for factor in factors]
    split = min(range(1, len(sizes)), key=lambda k: math.prod(sizes[:k]) + math.prod(sizes[k:]))
    result = weights.new_zeros(math.prod(sizes[:split]), math.prod(sizes[split:]))
    step = max(1, result.numel() // sum(result.shape))
    for start in range(0, len(weights), step):
        ranks = slice(start, start + step)
        left = _columns([weights[None, ranks], *(f[:, ranks] for f in factors[:split])])
        right = _columns([f[:, ranks] for f in factors[split:]])
        result.addmm_(left, right.T)
    return result.view(sizes)


def _columns(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The outer product of the factors' columns, rank by rank: [product of the sizes, ranks]."""
    product = factors[0]
    for factor in factors[1:]:
        product = (product.unsqueeze(1) * factor).flatten(0, 1)
    return product


def _tensor_train(factors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Product from both ends towards the bond with the smallest halves."""
    bond, _ = _best_bond(factors)
    left = factors[0]
    for factor in factors[1:bond]:
        left = torch.tensordot(left, factor, dims=([-1], [0]))
    right = factors[-1]
    for factor in reversed(factors[bond:-1]):
        right = torch.tensordot(factor, right, dims=([-1], [0]))
    return torch.tensordot(left, right, dims=([-1], [0])).squeeze(-1).squeeze(0)


def _best_bond(factors: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The bond (factor index) with the smallest largest intermediate, and that intermediate's size."""
    sizes = [factor.shape[1] for factor in factors]
    ranks = [factor.shape[0] for factor in factors]
    lefts = [math.prod(sizes[:k]) * ranks[k] for k in range(1, len(sizes))]
    rights = [math.prod(sizes[k:]) * ranks[k] for k in range(1, len(sizes))]
    peaks = [max(*lefts[: k + 1], *rights[k:], 0) for k in range(len(lefts))]
    best = min(range(len(peaks)), key=peaks.__getitem__)
    return best + 1, peaks[best]


def fft_order(
    weight: StoredWeight, n_dim: int, width: int, dtype: torch.dtype = torch.complex64
) -> torch.Tensor:
    """The dense weight in FFT order with full channels. Factors are multiplied out block by block.

    Args:
        weight: [c_in, c_out, *modes], or [channels, *modes] if it is separable, perhaps with an axis of size 1
            before; frequencies ascend from the most negative one, on the last axis from 0.
        n_dim: Number of mode axes.
        width: Number of channels.
        dtype: The result's, complex64 or complex128.

    Returns:
        [c_in, c_out, *modes], stored in the order [*modes, c_in, c_out] that the ops read.

    Raises:
        ImportRefused: factors whose shapes do not fit.
    """
    whole = torch.zeros(*weight.shape[-n_dim:], width, width, dtype=dtype)
    whole = whole.movedim((-2, -1), (0, 1))
    if len(weight.shape) == n_dim + 1:
        filled = whole.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    else:
        filled = whole.view(weight.shape)
    for place, block in weight.in_fft_order(n_dim).blocks():
        filled[place] = block.dense()
    return whole
