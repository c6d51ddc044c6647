"""Conversion of other libraries' tensors to our layout, with a check that every tensor is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from turbofno.models.importers.refusal import ImportRefused

IMAGINARY_LOST = "module.to(dtype) discards imaginary parts: save the network before such a cast"
# Buffers of torch.optim.swa_utils.AveragedModel.
_OF_WRAPPERS = {"n_averaged"}


class Tensors:
    """The tensors of a checkpoint that are not converted yet; `finish` raises if any are left."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)

    def __contains__(self, key: str) -> bool:
        return key in self._tensors

    def take(self, key: str) -> Tensor:
        """Remove and return the real tensor `key`."""
        return as_real(self._pop(key), key)

    def take_complex(self, key: str) -> Tensor:
        """Remove and return the complex tensor `key`, which may be stored as real and imaginary parts."""
        return as_complex(self._pop(key), key)

    def _pop(self, key: str) -> Tensor:
        try:
            return self._tensors.pop(key)
        except KeyError:
            raise ImportRefused(f"the checkpoint has no {key}") from None

    def take_below(self, prefix: str) -> dict[str, Tensor]:
        """Remove and return all tensors whose keys begin with `prefix`, with the prefix removed from the keys."""
        keys = [key for key in self._tensors if key.startswith(prefix)]
        return {key.removeprefix(prefix): self._tensors.pop(key) for key in keys}

    def has_below(self, prefix: str) -> bool:
        """True if a key begins with `prefix`."""
        return any(key.startswith(prefix) for key in self._tensors)

    def count_below(self, prefix: str) -> int:
        """Return the length of the ModuleList `prefix`: the number of distinct indices that follow it in the keys."""
        rest = [key.removeprefix(prefix) for key in self._tensors if key.startswith(prefix)]
        return len({head for head in (key.partition(".")[0] for key in rest) if head.isdecimal()})

    def drop(self, is_unused: Callable[[str], bool]) -> list[str]:
        """Remove every tensor whose key satisfies `is_unused`; return the keys."""
        dropped = [key for key in self._tensors if is_unused(key)]
        for key in dropped:
            del self._tensors[key]
        return dropped

    def take_linear(self, name: str) -> tuple[Tensor, Tensor]:
        """Remove and return weight [c_out, c_in] and bias [c_out] of the linear map or 1x1 convolution `name`."""
        weight = self.take(f"{name}.weight")
        if weight.ndim < 2 or weight.shape[2:].numel() != 1:
            raise ImportRefused(
                f"{name}.weight has shape {list(weight.shape)}, expected a linear map or a 1x1 "
                "convolution"
            )
        return weight.flatten(1), self.take(f"{name}.bias")

    def finish(self, format_name: str, supported: str) -> None:
        """Raise ImportRefused if tensors are left, because the network would compute something else without them."""
        if self._tensors:
            keys = sorted(self._tensors)
            shown = ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")
            raise ImportRefused(
                f"{format_name}: the network has unsupported tensors, {shown}. Supported are {supported}"
            )


def as_real(tensor: Tensor, key: str) -> Tensor:
    """Return the tensor; raise ImportRefused if it is not real floating point. `key` is its name in the checkpoint."""
    if tensor.is_complex():
        raise ImportRefused(
            f"{key} is {tensor.dtype}, expected real numbers. Networks of complex fields (complex_data=True) are not "
            "supported; if the network was cast to complex by mistake, save model.state_dict() before the cast"
        )
    _refuse_integers(tensor, key)
    return tensor


def as_complex(weight: Tensor, key: str) -> Tensor:
    """Return the weight as a complex tensor; a real weight stores real and imaginary parts on its last axis."""
    # PyTorch has no complex bfloat16, and few operations for complex half precision
    if weight.is_complex():
        return weight.to(torch.complex64) if weight.dtype == torch.complex32 else weight
    _refuse_integers(weight, key)
    if weight.ndim == 0 or weight.shape[-1] != 2:
        raise ImportRefused(
            f"{key} of shape {list(weight.shape)} is not complex and has no real and imaginary parts on its last axis. "
            f"{IMAGINARY_LOST}"
        )
    wide = weight.float() if weight.dtype.itemsize < 4 else weight
    return torch.view_as_complex(wide.contiguous())


def _refuse_integers(tensor: Tensor, key: str) -> None:
    if not tensor.is_floating_point():
        raise ImportRefused(
            f"{key} is {tensor.dtype}, expected floating-point numbers: quantised and cast weights are not supported. "
            "Save the state dict of the network as it was trained, or restore its scale and call float() on it "
            "before saving"
        )


def join_corners(corners: Sequence[Tensor]) -> Tensor:
    """Join the weights of the corners (blocks of kept modes) into one weight [c_in, c_out, *modes] in FFT order.

    One corner (1D): the lowest modes. Two (2D): the non-negative, then the negative frequencies of
    axis 0. Four (3D): frequency signs (axis 0, axis 1) ++, -+, +-, --.
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
    """Return the number of corners (blocks of kept modes) in the real FFT of a field with `n_dim` axes."""
    return 1 << (n_dim - 1)


def inside_wrapper(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a network that was saved inside another module, such as DataParallel, without the prefix.

    Raises:
        ImportRefused: the file also has other tensors.
    """
    outside = [k for k in tensors if not k.startswith(prefix) and k not in _OF_WRAPPERS]
    if outside:
        raise ImportRefused(
            f"the network's keys begin with {prefix!r}, and the file also has {', '.join(outside[:5])}: save the "
            "network alone, torch.save(network.state_dict(), path)"
        )
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def about_wrapper(prefix: str) -> str:
    """Return a sentence for the report about a prefix that `inside_wrapper` removed."""
    said = f"the prefix {prefix!r} of all keys was removed"
    if re.fullmatch(r"((module|_orig_mod)\.)+", prefix):
        # DataParallel, DistributedDataParallel, AveragedModel and torch.compile compute what the network does
        return said
    return f"{said}: what its module computes around the network, such as a residual or a scaling, is left out"


def fold_scale(weight: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Fold a factor per output channel into a linear map [c_out, c_in] and its bias; float64."""
    return weight.double() * scale[:, None], bias.double() * scale
