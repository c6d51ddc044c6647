"""An imported network against the library that it came from, or against its own float64 twin where that is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from turbofno.models.core.config import FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno.models.importers.detect import Checkpoint
from turbofno.models.importers.neuraloperator.settings import DEFAULTS, by_name
from turbofno.models.importers.result import Imported
from turbofno.models.importers.safe_pickle import Named, Stub

TOLERANCE = 1e-4
_LARGEST_ARGUMENT = 1 << 14

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared, and the largest relative L2 difference."""

    said: tuple[str, ...]
    worst: float

    @property
    def passed(self) -> bool:
        """Whether the two agree as closely as float32 allows."""
        return self.worst < TOLERANCE


class _Unavailable(Exception):
    """Why the original network cannot be run here."""


@dataclass(frozen=True, slots=True)
class _Original:
    """The network in the library that it came from, what that is called, and what a comparison does not show."""

    network: Network
    name: str
    remarks: tuple[str, ...] = ()


def verify(
    checkpoint: Checkpoint, imported: Imported, module: FNO, settings: dict[str, str]
) -> Verification:
    """Run both networks on random fields on two grids, one of them odd.

    Args:
        module: the imported network, float32, without its normalisation.
        settings: what the user overrode; the original then no longer says what is meant.
    """
    try:
        if settings:
            raise _Unavailable(f"settings were overridden ({', '.join(settings)})")
        return _against_original(_original(checkpoint, imported), module)
    except _Unavailable as reason:
        return _against_twin(imported, module, str(reason))


def _against_original(original: _Original, module: FNO) -> Verification:
    def run(x: Tensor) -> Tensor:
        try:
            return original.network(x)
        except Exception as error:
            raise _Unavailable(
                f"{original.name} cannot run it here: {type(error).__name__}: {error}"
            ) from error

    differences = [_difference(module, run, size) for size in _grids(module.arch)]
    report = _report(f"compared with {original.name}", differences)
    return Verification((*report.said, *original.remarks), report.worst)


def _against_twin(imported: Imported, module: FNO, reason: str) -> Verification:
    twin = FNO(module.arch).double()
    twin.load_state_dict(imported.state)
    twin = twin.eval()
    differences = [
        _difference(module, lambda x: twin(x.double()), size) for size in _grids(module.arch)
    ]
    report = _report("compared with its own float64 twin", differences)
    return Verification(
        (
            f"the original library was not run: {reason}",
            *report.said,
            "that shows that the numbers were carried over and that float32 computes them well; it does "
            "not show that the network is the one that was trained: check it on an input with a known answer",
        ),
        report.worst,
    )


def _report(against: str, differences: list[tuple[tuple[int, ...], float]]) -> Verification:
    lines = [
        f"{against} on random fields, grid {'x'.join(map(str, size))}: relative L2 difference {value:.1e}"
        for size, value in differences
    ]
    return Verification(tuple(lines), max(value for _, value in differences))


@torch.inference_mode()
def _difference(
    module: FNO, reference: Network, size: tuple[int, ...]
) -> tuple[tuple[int, ...], float]:
    x = torch.randn(2, module.arch.in_channels, *size)
    ours, theirs = module(x).double(), reference(x).double()
    if ours.shape != theirs.shape:
        return size, float("inf")
    return size, float((ours - theirs).norm() / theirs.norm().clamp_min(1e-300))


def _grids(arch: FNOArchitecture) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A grid with room for the modes, and an odd one."""
    even = tuple(max(n + n % 2 + 4, 16 if arch.n_dim < 3 else 8) for n in arch.smallest_grid)
    return even, tuple(n + 1 for n in even)


def _original(checkpoint: Checkpoint, imported: Imported) -> _Original:
    builders = {
        "neuraloperator": _neuraloperator,
        "pdebench": _pdebench,
        "physicsnemo": _physicsnemo,
    }
    build = builders.get(checkpoint.format)
    if build is None:
        raise _Unavailable(f"{imported.format} has no installable package")
    try:
        return build(checkpoint, imported)
    except _Unavailable:
        raise
    except Exception as error:
        # Whatever a foreign library raises while it is imported or built, it only means no comparison.
        raise _Unavailable(f"{type(error).__name__}: {error}") from error


def _installed(package: str, wanted: str) -> str:
    """The installed version of a package, if it begins with `wanted`."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise _Unavailable(f"{package} is not installed") from None
    if not (version + ".").startswith(wanted + "."):
        raise _Unavailable(f"{package} {version} is installed, the checkpoint is of {wanted}")
    return f"{package} {version}"


def _neuraloperator(checkpoint: Checkpoint, imported: Imported) -> _Original:
    _, release, kind = imported.format.split(" ")
    if not checkpoint.settings:
        raise _Unavailable("the checkpoint does not say what the network was built with")
    settings = by_name(checkpoint.settings, old=release == "0.3.0")
    models = import_module("neuralop.models")
    cls = getattr(models, kind)
    whole = inspect.signature(models.FNO.__init__).parameters
    known = inspect.signature(cls.__init__).parameters
    # a TFNO hands all of its arguments on to FNO
    known = whole if "kwargs" in known else known
    name = _installed_neuraloperator(release, development="enforce_hermitian_symmetry" in whole)
    lost = [key for key in settings if key in DEFAULTS and key not in (*known, "n_modes", "_whole")]
    if lost:
        raise _Unavailable(f"{name} has no argument {lost[0]}")
    arguments = {
        key: _argument(key, value)
        for key, value in settings.items()
        if key in known and key not in ("args", "conv_module", "self")
    }
    remarks = []
    if not imported.release_is_told:
        remarks.append(
            f"the file does not say its release: this shows that {release} would answer so, not that "
            f"{release} trained it"
        )
    if arguments.get("fno_block_precision", "full") != "full":
        remarks.append(
            f"both computed in full precision; fno_block_precision={arguments['fno_block_precision']} runs "
            "on a GPU only and was not compared"
        )
        arguments["fno_block_precision"] = "full"
    network = _built(lambda: cls(**arguments), arguments, checkpoint.tensors)
    return _Original(network, name, tuple(remarks))


def _installed_neuraloperator(release: str, *, development: bool) -> str:
    """The name of the installed package, if it is of `release`; its development version calls itself 2.0.0."""
    if development:
        if release != "main":
            raise _Unavailable(
                f"a development version of neuraloperator is installed, the checkpoint is of {release}"
            )
        return "the installed development version of neuraloperator"
    return _installed("neuraloperator", release)


def _built(
    build: Callable[[], nn.Module], arguments: Any, tensors: Mapping[str, Tensor]
) -> nn.Module:
    """The original network with the checkpoint's tensors.

    A file may claim any size, so it is built without memory first and has to have just these tensors.
    """
    if max(_integers(arguments), default=0) > _LARGEST_ARGUMENT:
        raise _Unavailable("the checkpoint gives absurd sizes")
    with torch.device("meta"):
        expected = {k: v.shape for k, v in build().state_dict().items() if isinstance(v, Tensor)}
    wrong = [k for k in expected if k not in tensors or tensors[k].shape != expected[k]]
    # a key of a base class that newer releases no longer have
    wrong = [key for key in wrong if not key.endswith("device_buffer")]
    if wrong:
        raise _Unavailable(f"its arguments do not fit its tensors: {wrong[0]}")
    network = build()
    network.load_state_dict({k: tensors[k].clone() for k in expected if k in tensors}, strict=False)
    return network.eval()


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _integers(item)
    elif isinstance(value, int):
        yield value


def _argument(key: str, value: Any) -> Any:
    """A constructor argument, made of the library's and torch's own parts where it is an object."""
    if key == "non_linearity":
        return _torch_activation(value)
    if key == "positional_embedding" and isinstance(value, Stub):
        return _embedding(value)
    if isinstance(value, Named | Stub):
        raise _Unavailable(f"{key} is {value!r}")
    return value


def _torch_activation(value: Any) -> Any:
    """torch's function or module for what the file names, which `activation_of` has accepted."""
    if isinstance(value, Named):
        return getattr(F, value.name, None) or getattr(torch, value.name)
    if value.cls.qualified == "functools.partial":
        function, _, keywords, _ = value.attributes["__state__"]
        return partial(_torch_activation(function), **_plain_values(keywords))
    cls = getattr(nn, value.cls.name)
    known = inspect.signature(cls.__init__).parameters
    return cls(**{k: v for k, v in _plain_values(value.attributes).items() if k in known})


def _embedding(value: Stub) -> Any:
    cls = getattr(import_module("neuralop.layers.embeddings"), value.cls.name)
    known = inspect.signature(cls.__init__).parameters
    ranges = [[float(end) for end in pair] for pair in value.attributes["grid_boundaries"]]
    arguments = {k: v for k, v in _plain_values(value.attributes).items() if k in known}
    return cls(**arguments, grid_boundaries=ranges)


def _plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in values.items() if isinstance(v, int | float | str)}


def _pdebench(checkpoint: Checkpoint, imported: Imported) -> _Original:
    name = _installed("pdebench", "0")
    arch = imported.architecture
    cls = getattr(import_module("pdebench.models.fno.fno"), f"FNO{arch.n_dim}d")
    corners = [m // 2 for m in arch.modes[:-1]] + [arch.modes[-1]]
    modes = {"modes": corners[0]} if arch.n_dim == 1 else {
        f"modes{axis + 1}": m for axis, m in enumerate(corners)
    }  # fmt: skip
    if arch.in_channels % arch.out_channels:
        raise _Unavailable("its input is no whole number of output fields")
    steps = arch.in_channels // arch.out_channels
    network = _built(
        lambda: cls(arch.out_channels, **modes, width=arch.hidden_channels, initial_step=steps),
        modes,
        checkpoint.tensors,
    )

    def run(x: Tensor) -> Tensor:
        axes = [(torch.arange(n) + 0.5) / n for n in x.shape[2:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        y = network(x.movedim(1, -1), grid.expand(x.shape[0], *grid.shape))
        return y.squeeze(-2).movedim(-1, 1)

    return _Original(run, name)


def _physicsnemo(checkpoint: Checkpoint, imported: Imported) -> _Original:
    library, version, _ = imported.format.split(" ")
    package = library.lower()
    # What the layers compute changed with 2.0 and not within 1.x or 2.x.
    name = _installed(f"nvidia-{package}", version.split(".")[0])
    cls, arguments = import_module(f"{package}.models.fno").FNO, checkpoint.settings or {}
    return _Original(_built(lambda: cls(**arguments), arguments, checkpoint.tensors), name)
