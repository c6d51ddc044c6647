"""Imported networks: neuraloperator 2.0 against the same network imported and run as the service runs it.

The library builds and saves the network, the importer reads it, `turbofno.service.runtime.forward` runs it. Both sides are
checked against the library in float64 on the CPU, on the inputs that they are timed on. The last cases are PhysicsNeMo's FNO,
PDEBench's of ten fields and the network of the original scripts (Li et al. 2020), whose peer is plain PyTorch.

The peer runs twice: in strict float32, like ours (`torch.backends.cuda.matmul.allow_tf32` and
`torch.backends.cudnn.allow_tf32` off), and with PyTorch's defaults, where cuDNN convolves in TF32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.candidates import Candidate, checked_error, published_candidates
from benchmarks.gpu.device import each, ends, floor_ms, milliseconds, relative_l2, rotating
from benchmarks.gpu.published import published
from turbofno.models.core.architecture import DomainPadding, FNOArchitecture
from turbofno.models.core.fno import FNO, to_precision
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.result import Imported, Options
from turbofno.service.runtime.forward import Forward

IN_CHANNELS, OUT_CHANNELS = 3, 1
_DEVICE = torch.device("cuda", 0)

# Largest allowed error of ours: a multiple of that of strict float32 on the CPU, but at least `_ALLOWED`.
_MOST_TIMES_FLOAT32, _ALLOWED = 2.0, 1e-6


@dataclass(frozen=True, slots=True)
class Case:
    """A network, its grid and its batch; `build` returns the library's module and ours, on the CPU."""

    name: str
    batch: int
    size: tuple[int, ...]
    build: Callable[[], tuple[torch.nn.Module, FNO]]
    peer: str = "neuraloperator 2.0"

    @property
    def label(self) -> str:
        """Name and batch."""
        return f"{self.name} B{self.batch}"


@dataclass(frozen=True, slots=True)
class _Ours(Candidate):
    """Ours, with the execution that the service chose."""

    execution: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Checked:
    """Fields, the library's float64 result for the checked batch elements, and the error of its float32 on the CPU."""

    fields: list[torch.Tensor]
    expected: torch.Tensor
    float32_error: float


def imported(theirs: torch.nn.Module) -> FNO:
    """Our network of a neuraloperator module, through a saved file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.pt"
        torch.save(theirs.state_dict(), file)
        found = convert(read_checkpoint(file), Options())
    return network_of(found)


def network_of(found: Imported) -> FNO:
    """The network of an import, on the CPU."""
    ours = FNO(found.architecture, found.normalization).eval().requires_grad_(False)
    ours.load_state_dict(found.state)
    return ours


def library(name: str = "FNO", **arguments: Any) -> tuple[torch.nn.Module, FNO]:
    """A neuraloperator network with these arguments and otherwise defaults, and ours."""
    from neuralop import models

    theirs = getattr(models, name)(
        in_channels=IN_CHANNELS, out_channels=OUT_CHANNELS, **arguments
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            # after training no parameter is all ones or all zeros
            if (parameter == parameter.flatten()[0]).all():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return theirs.requires_grad_(False), imported(theirs)


def plain(hidden: int, modes: tuple[int, ...], **more: Any) -> tuple[torch.nn.Module, FNO]:
    """A four-layer network of the original scripts in plain PyTorch, and ours; `more` of its architecture."""
    arch: dict[str, Any] = {
        "in_channels": IN_CHANNELS,
        "out_channels": OUT_CHANNELS,
        "hidden_channels": hidden,
        "n_layers": 4,
        "modes": modes,
    }
    ours = FNO(FNOArchitecture(**arch | more))
    ours = ours.eval().requires_grad_(False)
    return published(ours), ours


def physicsnemo(n_dim: int) -> tuple[torch.nn.Module, FNO]:
    """PhysicsNeMo's FNO with its defaults in plain PyTorch, and ours: lifting and decoder of one hidden layer, 8 points of padding."""
    from benchmarks import chains

    found = chains.physicsnemo(n_dim, in_channels=IN_CHANNELS)
    assert isinstance(found, Imported)
    ours = network_of(found)
    return published(ours), ours


def _two(batch: int, also: str = "", **more: Any) -> Case:
    build = partial(library, n_modes=(16, 16), hidden_channels=64, **more)
    return Case(f"2D C64 128x128{also}", batch, (128, 128), build)


_MANY = partial(library, n_modes=(32, 32), hidden_channels=32)
_PDEBENCH = partial(
    plain,
    20,
    (24, 12),
    in_channels=10,
    positional_grid="cell_centres",
    domain_padding=DomainPadding(points=(2, 2)),
)

CASES = (
    _two(1),
    _two(32),
    Case("2D C32 128x128 m32", 1, (128, 128), _MANY),
    Case("2D C32 128x128 m32", 32, (128, 128), _MANY),
    _two(1, " instance_norm", norm="instance_norm"),
    _two(32, " instance_norm", norm="instance_norm"),
    _two(1, " group_norm", norm="group_norm"),
    _two(32, " group_norm", norm="group_norm"),
    _two(32, " TFNO Tucker 0.42", name="TFNO", rank=0.42),
    Case("1D C64 1024 m32", 256, (1024,), partial(library, n_modes=(32,), hidden_channels=64)),
    Case("3D C32 64^3 m16", 8, (64,) * 3, partial(library, n_modes=(16,) * 3, hidden_channels=32)),
    Case("2D PhysicsNeMo C32 128x128 padded", 1, (128, 128), partial(physicsnemo, 2), "PyTorch"),
    Case("2D PhysicsNeMo C32 128x128 padded", 32, (128, 128), partial(physicsnemo, 2), "PyTorch"),
    Case("2D PDEBench C20 128x128 m12", 1, (128, 128), _PDEBENCH, "PyTorch"),
    Case("2D PDEBench C20 128x128 m12", 32, (128, 128), _PDEBENCH, "PyTorch"),
    Case(
        "3D plain C32 128^3 m24x24x13", 4, (128,) * 3, partial(plain, 32, (24, 24, 13)), "PyTorch"
    ),
)


@contextmanager
def _true_float64() -> Iterator[None]:
    """Make neuraloperator compute in float64: its grids have torch's default dtype, its spectra are torch.cfloat."""
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(torch, "cfloat", torch.complex128):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def in_float64(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The float64 result of a neuraloperator module that is float32 on the CPU."""
    double = to_precision(copy.deepcopy(network), torch.float64)
    forget_positions(double)
    with _true_float64():
        return double(x.double())


def forget_positions(network: torch.nn.Module) -> None:
    """Clear the grid that neuraloperator's embedding caches without regard to dtype and device."""
    embedding = getattr(network, "positional_embedding", None)
    if embedding is not None:
        embedding._grid = None


@contextmanager
def strict_products() -> Iterator[None]:
    """Compute matrix products in float32, not TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _checked(case: Case, theirs: torch.nn.Module, in_channels: int, *, most: int) -> _Checked:
    fields = rotating((case.batch, in_channels, *case.size), most=most)
    x = ends(fields[0]).cpu()
    expected = in_float64(theirs, x)
    forget_positions(theirs)
    return _Checked(fields, expected, relative_l2(theirs(x), expected))


def _own(case: Case, ours: FNO, checked: _Checked) -> _Ours:
    forward = Forward(case.name, ours.to(_DEVICE), _DEVICE, precision="fp32", max_batch=case.batch)
    first, ran = forward(checked.fields[0])
    error = checked_error(
        case.label,
        relative_l2(first, checked.expected),
        max(_MOST_TIMES_FLOAT32 * checked.float32_error, _ALLOWED),
    )
    run = each(lambda x: forward(x)[0], checked.fields)
    backend, precision, execution, reason = ran
    return _Ours("turbofno", backend, precision, error, run, execution=execution, reason=reason)


def _peers(theirs: torch.nn.Module, checked: _Checked) -> Iterator[Candidate]:
    forget_positions(theirs)
    # Its error has no limit: at some sizes cuFFT's inverse is off by percents for the spectra of such networks, and a norm
    # amplifies that in weak channels.
    yield from published_candidates(
        theirs.to(_DEVICE),
        checked.fields,
        checked.expected,
        convolution="convolutions",
        compiled=False,
    )


def measure(
    case: Case, bandwidth: float, *, seconds: float, quick: bool
) -> Iterator[dict[str, object]]:
    """The rows of one network. Raises RuntimeError before timing if our result is wrong."""
    theirs, ours = case.build()
    # Few fields, since the activations of a model evict its input from the cache; but so many that a run is long beside
    # the launch of its first call.
    checked = _checked(case, theirs, ours.arch.in_channels, most=1 if quick else 8)
    with strict_products():
        own = _own(case, ours, checked)
        candidates = [own, *_peers(theirs, checked)]
        times = milliseconds(
            [c.run for c in candidates], seconds=seconds, least_rounds=3 if quick else 7
        )
    hidden = ours.arch.hidden_channels * case.batch
    points = checked.fields[0][0, 0].numel()
    for c, taken in zip(candidates, times, strict=True):
        yield {
            "network": case.name,
            "batch": case.batch,
            "peer": case.peer,
            "what": c.name,
            "execution": own.execution if c is own else "",
            "reason": own.reason if c is own else "",
            "backend": c.backend,
            "precision": c.precision,
            "ms": taken / len(checked.fields),
            "layer floor ms": floor_ms(hidden * points, 4, bandwidth),
            "copy TB/s": bandwidth / 1e12,
            "relative L2 error": c.error,
            "float32 error on the CPU": checked.float32_error,
        }
