"""The public functions: transforms over one, two or any number of axes, and the explanation of a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turbofno_ops._choice import Choice
from turbofno_ops.fft import _library
from turbofno_ops.fft._arguments import transform_of
from turbofno_ops.fft._choice import choose
from turbofno_ops.fft._transform import Transform

_KINDS = {
    "": ("complex", False),
    "i": ("complex", True),
    "r": ("real_to_complex", False),
    "ir": ("complex_to_real", True),
}
NAMES = tuple(f"{prefix}fft{axes}" for axes in ("", "2", "n") for prefix in _KINDS)
"""Names of all transforms."""


def _described(
    name: str,
    x: torch.Tensor,
    sizes: Sequence[int | None] | int | None,
    dim: Sequence[int] | int | None,
    norm: str | None,
    modes: Sequence[int | None] | int | None,
    precision: str,
    backend: str,
) -> tuple[torch.Tensor, Transform]:
    """Return x as the op takes it and the transform called `name`."""
    kind, inverse = _KINDS[name[: name.index("fft")]]
    return transform_of(
        name,
        x,
        kind=kind,
        inverse=inverse,
        sizes=_listed(name, sizes),
        dims=_listed(name, dim),
        norm=norm,
        modes=_listed(name, modes),
        precision=precision,
        backend=backend,
    )


def _listed(name: str, given: Any) -> Sequence[Any] | None:
    """Return the entries of an argument; transforms over one axis take one integer, not a list of them."""
    if given is None:
        return None
    return given if isinstance(given, Sequence) and not name.endswith("fft") else [given]


def _run(
    name: str,
    x: torch.Tensor,
    sizes: Sequence[int | None] | int | None,
    dim: Sequence[int] | int | None,
    norm: str | None,
    modes: Sequence[int | None] | int | None,
    precision: str,
    backend: str,
) -> torch.Tensor:
    x, transform = _described(name, x, sizes, dim, norm, modes, precision, backend)
    return _library.call(x, transform, backend)


def fft(
    x: torch.Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    modes: int | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the discrete Fourier transform along one axis, or a part of it.

    `X_k = sum_p x_p exp(-2 pi i p k / n)`. Differentiable, as all transforms of this module.

    Args:
        x: Any shape and strides; float32, float64, complex64 or complex128, at precision 'fp16' float16 or complex32.
        n: Points of the axis. x is cut, or has zeros behind it, which are not read. Default: those of x.
        dim: The axis.
        norm: 'backward' (the default; the inverse divides by n), 'ortho' or 'forward', as in torch.fft.
        modes: Kept frequencies: the first (modes + 1) // 2 and the last modes // 2 of all n. What is cut off is not
            computed. Default: all.
        precision: 'fp32' (the error of float32 arithmetic; float64 stays float64) or 'fp16' (values stored in float16).
        backend: 'auto', 'kernels' (our CUDA kernels) or 'torch' (torch.fft).

    Returns:
        Complex, the shape of x with `modes` or n values along the axis.

    Raises:
        TypeError: Unsupported dtype; x is no tensor; or n, dim or modes is no integer.
        ValueError: Axes, sizes or modes that do not fit, an unknown name, or 'kernels' for a transform that they do not
            support.

    Example:
        >>> fft(torch.randn(8, 211), modes=24).shape
        torch.Size([8, 24])
    """
    return _run("fft", x, n, dim, norm, modes, precision, backend)


def ifft(
    x: torch.Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    modes: int | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the inverse of `fft` along one axis.

    Args:
        x: As in `fft`; the values of the frequencies.
        n: Points of the result. Without `modes` x is cut or has zeros behind it, as in torch.fft.
        dim: As in `fft`.
        norm: As in `fft`.
        modes: The values of x along the axis if they are those of a truncated `fft`: all other of the n frequencies are
            zero and not read.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex, n values along the axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> ifft(fft(torch.randn(8, 211), modes=24), n=211, modes=24).shape
        torch.Size([8, 211])
    """
    return _run("ifft", x, n, dim, norm, modes, precision, backend)


def rfft(
    x: torch.Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    modes: int | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the half spectrum of a real field along one axis: frequencies 0 .. n // 2.

    Args:
        x: As in `fft`, real.
        n: As in `fft`.
        dim: As in `fft`.
        norm: As in `fft`.
        modes: Kept frequencies, the first of the half spectrum. Default: all n // 2 + 1.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex, `modes` or n // 2 + 1 values along the axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> rfft(torch.randn(8, 421), modes=12).shape
        torch.Size([8, 12])
    """
    return _run("rfft", x, n, dim, norm, modes, precision, backend)


def irfft(
    x: torch.Tensor,
    n: int | None = None,
    dim: int = -1,
    norm: str | None = None,
    *,
    modes: int | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the real field of a half spectrum along one axis, the inverse of `rfft`.

    The imaginary parts of value 0 and, of even n, of value n // 2 are ignored. So are they in transforms over several axes,
    after those of the other axes, at every size; cuFFT takes them in at many powers of two.

    Args:
        x: As in `fft`: the half spectrum, or its first values. What is missing is zero and not read.
        n: Points of the result. Default: 2 (values of x - 1).
        dim: As in `fft`.
        norm: As in `fft`.
        modes: The values of x along the axis, if given.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Real, n values along the axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> irfft(rfft(torch.randn(8, 421), modes=12), n=421).shape
        torch.Size([8, 421])
    """
    return _run("irfft", x, n, dim, norm, modes, precision, backend)


def fft2(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the discrete Fourier transform over two axes.

    Args:
        x: As in `fft`.
        s: Points of each axis, as `n` of `fft`; -1 for the default.
        dim: The axes, the last two by default.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `fft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex, `modes` or s values along each axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> fft2(torch.randn(4, 85, 85), dim=(-2, -1), modes=(24, 24)).shape
        torch.Size([4, 24, 24])
    """
    return _run("fft2", x, s, dim, norm, modes, precision, backend)


def ifft2(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the inverse of `fft2` over two axes.

    Args:
        x: As in `ifft`.
        s: Points of each axis, as `n` of `ifft`; -1 for the default.
        dim: The axes, the last two by default.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `ifft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex, s values along each axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> ifft2(torch.randn(4, 24, 24) + 0j, s=(85, 85), modes=(24, 24)).shape
        torch.Size([4, 85, 85])
    """
    return _run("ifft2", x, s, dim, norm, modes, precision, backend)


def rfft2(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the half spectrum of a real field over two axes: `rfft` of the last, `fft` of the others.

    Args:
        x: As in `rfft`.
        s: Points of each axis, as `n` of `rfft`; -1 for the default.
        dim: The axes, the last two by default.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `fft`, for the last one of `rfft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex; the last axis has `modes` or s // 2 + 1 values.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> rfft2(torch.randn(4, 85, 85), dim=(-2, -1), modes=(24, 12)).shape
        torch.Size([4, 24, 12])
    """
    return _run("rfft2", x, s, dim, norm, modes, precision, backend)


def irfft2(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] = (-2, -1),
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the real field of a half spectrum over two axes, the inverse of `rfft2`.

    Args:
        x: As in `irfft`.
        s: Points of each axis, as `n` of `irfft`; -1 for the default.
        dim: The axes, the last two by default.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `ifft`, for the last one of `irfft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Real, s values along each axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> irfft2(torch.randn(4, 24, 12) + 0j, s=(85, 85), modes=(24, 12)).shape
        torch.Size([4, 85, 85])
    """
    return _run("irfft2", x, s, dim, norm, modes, precision, backend)


def fftn(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the discrete Fourier transform over several axes.

    Args:
        x: As in `fft`.
        s: Points of each axis, as `n` of `fft`; -1 for the default.
        dim: The axes. Default: the last ones, as many as `s` or `modes` has entries, else all.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `fft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex, `modes` or s values along each axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> fftn(torch.randn(4, 85, 85), dim=(-2, -1), modes=(24, 24)).shape
        torch.Size([4, 24, 24])
    """
    return _run("fftn", x, s, dim, norm, modes, precision, backend)


def ifftn(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the inverse of `fftn` over several axes.

    Args:
        x: As in `ifft`.
        s: Points of each axis, as `n` of `ifft`; -1 for the default.
        dim: The axes. Default: the last ones, as many as `s` or `modes` has entries, else all.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `ifft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex, s values along each axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> ifftn(torch.randn(4, 24, 24) + 0j, s=(85, 85), modes=(24, 24)).shape
        torch.Size([4, 85, 85])
    """
    return _run("ifftn", x, s, dim, norm, modes, precision, backend)


def rfftn(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the half spectrum of a real field over several axes: `rfft` of the last, `fft` of the others.

    Args:
        x: As in `rfft`.
        s: Points of each axis, as `n` of `rfft`; -1 for the default.
        dim: The axes. Default: the last ones, as many as `s` or `modes` has entries, else all.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `fft`, for the last one of `rfft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Complex; the last axis has `modes` or s // 2 + 1 values.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> rfftn(torch.randn(4, 85, 85), dim=(-2, -1), modes=(24, 12)).shape
        torch.Size([4, 24, 12])
    """
    return _run("rfftn", x, s, dim, norm, modes, precision, backend)


def irfftn(
    x: torch.Tensor,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | None = None,
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> torch.Tensor:
    """Compute the real field of a half spectrum over several axes, the inverse of `rfftn`.

    Args:
        x: As in `irfft`.
        s: Points of each axis, as `n` of `irfft`; -1 for the default.
        dim: The axes. Default: the last ones, as many as `s` or `modes` has entries, else all.
        norm: As in `fft`, with the points of all axes together.
        modes: For each axis `modes` of `ifft`, for the last one of `irfft`; None for the default.
        precision: As in `fft`.
        backend: As in `fft`.

    Returns:
        Real, s values along each axis.

    Raises:
        TypeError: As in `fft`.
        ValueError: As in `fft`.

    Example:
        >>> irfftn(torch.randn(4, 24, 12) + 0j, s=(85, 85), modes=(24, 12)).shape
        torch.Size([4, 85, 85])
    """
    return _run("irfftn", x, s, dim, norm, modes, precision, backend)


def explain(
    name: str,
    x: torch.Tensor,
    sizes: Sequence[int | None] | int | None = None,
    dim: Sequence[int] | int | None = None,
    norm: str | None = None,
    *,
    modes: Sequence[int | None] | int | None = None,
    precision: str = "fp32",
    backend: str = "auto",
) -> Choice:
    """Return the backend that a transform would choose for these arguments, and the reason. Runs nothing.

    Args:
        name: One of `NAMES`, as 'rfft2'.
        x: As in the transform.
        sizes: `n` or `s` of the transform.
        dim: As in the transform; None for its default.
        norm: As in the transform.
        modes: As in the transform.
        precision: As in the transform.
        backend: As in the transform.

    Raises:
        TypeError: As in the transform.
        ValueError: As in the transform, or an unknown name.

    Example:
        >>> explain("rfft2", torch.randn(4, 85, 85), modes=(24, 12))
        Choice(backend='torch', reason='the CUDA kernels do not run this transform: x is on cpu')
    """
    if name not in NAMES:
        raise ValueError(f"explain: name must be one of {NAMES}, got {name!r}")
    if dim is None and not name.endswith("n"):
        dim = (-2, -1) if name.endswith("2") else -1
    x, transform = _described(name, x, sizes, dim, norm, modes, precision, backend)
    return choose(x, transform, backend)
