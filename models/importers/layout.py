"""Rearranging foreign tensors into ours: corners into one weight, convolutions into matrices, every key accounted for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from turbofno.models.importers.refusal import ImportRefused


class Tensors:
    """The tensors of a checkpoint, taken one by one; what is left at the end is refused by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def take(self, key: str) -> Tensor:
        """The real tensor `key`, which then counts as used."""
        return as_real(self._pop(key), key)

    def take_complex(self, key: str) -> Tensor:
        """The complex tensor `key`, perhaps stored as real and imaginary parts, which then counts as used."""
        return as_complex(self._pop(key), key)

    def _pop(self, key: str) -> Tensor:
        try:
            return self._tensors.pop(key)
        except KeyError:
            raise ImportRefused(f"there is no {key} in the checkpoint") from None

    def take_below(self, prefix: str) -> dict[str, Tensor]:
        """All tensors whose keys begin with `prefix`, which is cut off."""
        keys = [key for key in self._tensors if key.startswith(prefix)]
        return {key.removeprefix(prefix): self._tensors.pop(key) for key in keys}

    def has_below(self, prefix: str) -> bool:
        """Whether a key begins with `prefix`."""
        return any(key.startswith(prefix) for key in self._tensors)

    def count_below(self, prefix: str) -> int:
        """The length of the module list `prefix`: how many different numbers follow it in the keys."""
        rest = [key.removeprefix(prefix) for key in self._tensors if key.startswith(prefix)]
        return len({head for head in (key.partition(".")[0] for key in rest) if head.isdecimal()})

    def drop(self, wanted: Callable[[str], bool]) -> list[str]:
        """Throw away every tensor whose key is `wanted`; returns their keys."""
        dropped = [key for key in self._tensors if wanted(key)]
        for key in dropped:
            del self._tensors[key]
        return dropped

    def take_linear(self, name: str) -> tuple[Tensor, Tensor]:
        """Weight [c_out, c_in] and bias [c_out] of the pointwise layer `name`, a linear map or 1x1 convolution."""
        weight = self.take(f"{name}.weight")
        if weight.ndim < 2 or weight.shape[2:].numel() != 1:
            raise ImportRefused(
                f"{name}.weight has shape {list(weight.shape)}; only 1x1 convolutions and linear maps "
                "are supported there"
            )
        return weight.flatten(1), self.take(f"{name}.bias")

    def finish(self, format_name: str, supported: str) -> None:
        """Refuse what nothing has asked for."""
        if self._tensors:
            keys = sorted(self._tensors)
            shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            raise ImportRefused(
                f"{format_name}: there is no place for {shown}. Supported are {supported}"
            )


def as_real(tensor: Tensor, key: str) -> Tensor:
    """The tensor, if it is real; `key` is its name in the checkpoint."""
    if tensor.is_complex():
        raise ImportRefused(
            f"{key} is {tensor.dtype}, expected real numbers: fields are real here, and taking it would lose "
            "the imaginary parts. A network of complex fields (complex_data=True) is not supported; of one "
            "that was cast by mistake, save model.state_dict() before the cast"
        )
    _refuse_integers(tensor, key)
    return tensor


def as_complex(weight: Tensor, key: str) -> Tensor:
    """A complex tensor; real ones have real and imaginary part as their last axis."""
    if weight.is_complex():
        return weight
    _refuse_integers(weight, key)
    if weight.ndim == 0 or weight.shape[-1] != 2:
        raise ImportRefused(
            f"{key} of shape {list(weight.shape)} is neither complex nor has it real and imaginary part on "
            "its last axis (module.to(dtype) makes complex weights real: save the network before)"
        )
    return torch.view_as_complex(weight.contiguous())


def _refuse_integers(tensor: Tensor, key: str) -> None:
    if not tensor.is_floating_point():
        raise ImportRefused(
            f"{key} is {tensor.dtype}, expected floating-point numbers: weights that were quantised or cast are "
            "not supported. Save the state dict of the network as it was trained, or restore its scale and "
            "call float() on it before"
        )


def join_corners(corners: Sequence[Tensor]) -> Tensor:
    """One weight [c_in, c_out, *modes] in FFT order out of the corners of a spectrum.

    One corner (1D): the lowest modes. Two (2D): the non-negative, then the negative frequencies of
    axis 0. Four (3D): signs ++, -+, +-, -- of axes 0 and 1.
    """
    shapes = {tuple(corner.shape) for corner in corners}
    if len(shapes) != 1:
        raise ImportRefused(f"the corners of a spectral weight differ in shape: {sorted(shapes)}")
    joined = list(corners)
    axis = 2
    while len(joined) > 1:
        pairs = zip(joined[::2], joined[1::2], strict=True)
        joined = [torch.cat(pair, dim=axis) for pair in pairs]
        axis += 1
    return joined[0]


def corner_count(n_dim: int) -> int:
    """How many corners of the half spectrum a field of `n_dim` axes has."""
    return 1 << (n_dim - 1)


def plain_keys(tensors: Mapping[str, Tensor], prefixes: Iterable[str]) -> dict[str, Tensor]:
    """The same tensors without the wrappers that training code puts before every key."""
    result = dict(tensors)
    changed = True
    while changed:
        changed = False
        for prefix in prefixes:
            if result and all(key.startswith(prefix) for key in result):
                result = {key.removeprefix(prefix): tensor for key, tensor in result.items()}
                changed = True
    return result


def fold_scale(
    weight: Tensor, skip: Tensor, bias: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Spectral weight, skip weight and bias of scale * (layer) + shift, one scale and shift a channel; float64."""
    wide = scale.double()
    return (
        weight.to(torch.complex128) * wide.view(-1, *[1] * (weight.ndim - 2)),
        skip.double() * wide[:, None],
        bias.double() * wide + shift.double(),
    )
