"""Number-theoretic transforms: discrete Fourier transforms modulo a prime, and exact products of polynomials.

Residues modulo a prime p are int64 tensors. Those modulo 2^64 - 2^32 + 1 need all 64 bits, so residues from 2^63 on are
negative numbers, their value minus 2^64: `from_integers` and `to_integers` convert. Residues must be in 0 .. p - 1, which
nothing checks: others give results that differ between backends.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from turbofno_ops.ntt._arithmetic import BABY_BEAR, FIELDS, GOLDILOCKS
from turbofno_ops.ntt._library import transform

BACKENDS = ("reference", "cuda")

__all__ = [
    "BABY_BEAR",
    "GOLDILOCKS",
    "cyclic_product",
    "from_integers",
    "intt",
    "negacyclic_product",
    "ntt",
    "to_integers",
]

_MIN_BITS, _MAX_BITS = 6, 16


def ntt(
    x: torch.Tensor,
    prime: int = GOLDILOCKS,
    *,
    negacyclic: bool = False,
    backend: str = "auto",
) -> torch.Tensor:
    """Return the number-theoretic transforms X[k] = sum over n of x[n] w^(n k) modulo a prime, along the last axis.

    w is g^((p - 1) / points), where the generator g is 31 of BABY_BEAR and 7 of GOLDILOCKS. k is in natural order.

    Args:
        x: Residues [..., points], int64; points is a power of two in 64 .. 65536.
        prime: BABY_BEAR, 15 * 2^27 + 1, or GOLDILOCKS, 2^64 - 2^32 + 1.
        negacyclic: Multiply x[n] by psi^n before, psi = g^((p - 1) / (2 points)): the values at the odd powers of psi.
        backend: 'reference', which computes with numpy on the CPU; 'cuda', our kernels; or 'auto', 'cuda' where it runs.

    Returns:
        Residues of the shape, device and dtype of x.

    Raises:
        TypeError: x is not int64.
        ValueError: Another prime, size or backend; or the kernels were asked for and do not run.

    Example:
        >>> x = torch.zeros(64, dtype=torch.int64)
        >>> x[0] = 5
        >>> ntt(x, BABY_BEAR)[:3]
        tensor([5, 5, 5])

    Source:
        Agarwal and Burrus, Number Theoretic Transforms to Implement Fast Digital Convolution, Proc. IEEE 63, 1975.
    """
    name = _checked("ntt", prime, backend, x=x)
    return transform(x, None, name, backend, inverse=False, negacyclic=negacyclic)


def intt(
    x: torch.Tensor,
    prime: int = GOLDILOCKS,
    *,
    negacyclic: bool = False,
    backend: str = "auto",
) -> torch.Tensor:
    """Return the inverse transforms, x[n] = sum over k of X[k] w^(-n k) / points modulo a prime, along the last axis.

    Args:
        x: Residues X [..., points], int64; points is a power of two in 64 .. 65536.
        prime: BABY_BEAR or GOLDILOCKS.
        negacyclic: Multiply x[n] by psi^-n: the inverse of `ntt` with `negacyclic`.
        backend: As in `ntt`.

    Returns:
        Residues of the shape, device and dtype of x.

    Raises:
        TypeError: x is not int64.
        ValueError: Another prime, size or backend; or the kernels were asked for and do not run.

    Example:
        >>> x = torch.arange(64)
        >>> bool((intt(ntt(x)) == x).all())
        True
    """
    name = _checked("intt", prime, backend, x=x)
    return transform(x, None, name, backend, inverse=True, negacyclic=negacyclic)


def cyclic_product(
    a: torch.Tensor, b: torch.Tensor, prime: int = GOLDILOCKS, *, backend: str = "auto"
) -> torch.Tensor:
    """Return the products of polynomials modulo X^points - 1 and a prime: cyclic convolutions along the last axis.

    Args:
        a: Coefficients [..., points], lowest first, residues as int64; points is a power of two in 64 .. 65536.
        b: The other factors, of the shape of a.
        prime: BABY_BEAR or GOLDILOCKS.
        backend: As in `ntt`.

    Returns:
        Coefficients of the shape, device and dtype of a.

    Raises:
        TypeError: a or b is not int64.
        ValueError: Different shapes or devices; another prime, size or backend; or the kernels were asked for and do not
            run.

    Example:
        >>> shift = torch.zeros(64, dtype=torch.int64)
        >>> shift[1] = 1
        >>> cyclic_product(torch.arange(64), shift)[:3]
        tensor([63,  0,  1])
    """
    return _product("cyclic_product", a, b, prime, backend, negacyclic=False)


def negacyclic_product(
    a: torch.Tensor, b: torch.Tensor, prime: int = GOLDILOCKS, *, backend: str = "auto"
) -> torch.Tensor:
    """Return the products of polynomials modulo X^points + 1 and a prime, the ring of lattice cryptography.

    Args:
        a: Coefficients [..., points], lowest first, residues as int64; points is a power of two in 64 .. 65536.
        b: The other factors, of the shape of a.
        prime: BABY_BEAR or GOLDILOCKS.
        backend: As in `ntt`.

    Returns:
        Coefficients of the shape, device and dtype of a.

    Raises:
        TypeError: a or b is not int64.
        ValueError: Different shapes or devices; another prime, size or backend; or the kernels were asked for and do not
            run.

    Example:
        >>> shift = torch.zeros(64, dtype=torch.int64)
        >>> shift[1] = 1
        >>> negacyclic_product(torch.arange(64), shift, BABY_BEAR)[:3] - BABY_BEAR
        tensor([        -63, -2013265921, -2013265920])
    """
    return _product("negacyclic_product", a, b, prime, backend, negacyclic=True)


def from_integers(values: Sequence[Any], prime: int = GOLDILOCKS) -> torch.Tensor:
    """Return the residues of integers, negative ones too, as an int64 tensor.

    Args:
        values: Integers, or sequences of them, of equal lengths, to any depth.
        prime: BABY_BEAR or GOLDILOCKS.

    Raises:
        TypeError: A value is no integer, or `values` no sequence.
        ValueError: Another prime, or sequences of different lengths.

    Example:
        >>> from_integers([-1, 2**64])
        tensor([-4294967296,  4294967295])
    """
    _field_name("from_integers", prime)
    residues = _integers(values) % prime
    return torch.from_numpy(residues.astype(np.uint64).view(np.int64))


def _integers(values: Sequence[Any]) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    op = "from_integers"
    ragged = f"{op}: sequences must have equal lengths and depths"
    try:
        found = np.array(values, dtype=object)
    except ValueError as error:
        raise ValueError(ragged) from error
    if found.ndim == 0:
        raise TypeError(f"{op}: values must be a sequence of integers, got {values!r}")
    for value in found.flat:
        if isinstance(value, list | tuple):
            raise ValueError(f"{ragged}, got {value!r} beside others")
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"{op}: values must be integers, got {value!r}")
    # integers of numpy would overflow
    plain: np.ndarray[tuple[int, ...], np.dtype[np.object_]] = np.frompyfunc(int, 1, 1)(found)
    return plain


def to_integers(x: torch.Tensor) -> Any:
    """Return residues as Python integers: nested lists of the tensor's shape.

    Args:
        x: Residues, int64, on any device.

    Raises:
        TypeError: x is not int64.

    Example:
        >>> to_integers(from_integers([-1, 2**64]))
        [18446744069414584320, 4294967295]
    """
    _check_tensor("to_integers", "x", x)
    return x.contiguous().cpu().numpy().view(np.uint64).tolist()


def _product(
    op: str, a: torch.Tensor, b: torch.Tensor, prime: int, backend: str, *, negacyclic: bool
) -> torch.Tensor:
    name = _checked(op, prime, backend, a=a, b=b)
    if a.shape != b.shape:
        raise ValueError(f"{op}: a has shape {tuple(a.shape)}, but b {tuple(b.shape)}")
    if a.device != b.device:
        raise ValueError(f"{op}: a is on {a.device} but b on {b.device}; move one of them")
    first, second = (
        transform(x, None, name, backend, inverse=False, negacyclic=negacyclic) for x in (a, b)
    )
    return transform(first, second, name, backend, inverse=True, negacyclic=negacyclic)


def _checked(op: str, prime: int, backend: str, **tensors: torch.Tensor) -> str:
    """Return the field's name; raise unless prime, backend and tensors are supported."""
    name = _field_name(op, prime)
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"{op}: backend must be 'auto' or one of {BACKENDS}, got {backend!r}")
    for which, x in tensors.items():
        _check_tensor(op, which, x)
        points = x.shape[-1] if x.ndim else 0
        if points not in {1 << bits for bits in range(_MIN_BITS, _MAX_BITS + 1)}:
            raise ValueError(
                f"{op}: the last axis of {which} must be a power of two in {1 << _MIN_BITS} .. {1 << _MAX_BITS}, "
                f"got shape {tuple(x.shape)}; pad with zeros"
            )
    return name


def _check_tensor(op: str, which: str, x: torch.Tensor) -> None:
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"{op}: {which} must be a tensor, got {type(x).__name__}; from_integers converts Python integers"
        )
    if x.dtype != torch.int64:
        raise TypeError(
            f"{op}: {which} must be int64, got {x.dtype}; from_integers converts Python integers"
        )


def _field_name(op: str, prime: int) -> str:
    if not isinstance(prime, int) or prime not in FIELDS:
        raise ValueError(
            f"{op}: prime must be BABY_BEAR ({BABY_BEAR}) or GOLDILOCKS ({GOLDILOCKS}), got {prime}"
        )
    return FIELDS[prime].name
