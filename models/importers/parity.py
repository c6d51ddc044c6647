"""Parity of an imported network with its original library; without the library, with its own float64 computation."""

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

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.config import FieldNormalization, Normalization
from turbofno.models.core.fno import FNO, to_precision
from turbofno.models.core.memory import activation_bytes
from turbofno.models.importers.detect import Checkpoint
from turbofno.models.importers.layout import inside_wrapper
from turbofno.models.importers.neuraloperator.settings import DEFAULTS, by_name
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.result import Imported
from turbofno.models.importers.safe_pickle import Named, Stub

TOLERANCE = 1e-4
MAX_FIELD_BYTES = 2 << 30
"""Of what all layers write for one field of the comparison in float32. Resolution scaling multiplies it."""
_LARGEST_ARGUMENT = 1 << 14

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Parity:
    """Result of the comparison: lines for the user, and the largest relative L2 difference."""

    lines: tuple[str, ...]
    difference: float

    @property
    def passed(self) -> bool:
        """True if the two agree within float32 rounding."""
        return self.difference < TOLERANCE


class _Unavailable(Exception):
    """The original network cannot be run here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Original:
    """The network built by its own library, the library's name, and the limits of a comparison with it."""

    network: Network
    name: str
    remarks: tuple[str, ...] = ()


def check_parity(
    checkpoint: Checkpoint, imported: Imported, module: FNO, settings: dict[str, str]
) -> Parity:
    """Run both networks on random fields on two grids, one of odd size.

    Args:
        module: the imported network, float32, without its normalisation.
        settings: settings of the user. If there are others than the release, the original is not a reference.

    Raises:
        ImportRefused: fields of the network would fill the memory.
    """
    grid = _grids(module.arch)[1]
    needed = activation_bytes(module.arch, grid)
    if needed > MAX_FIELD_BYTES:
        raise ImportRefused(
            f"the comparison needs a grid that holds all modes, {'x'.join(map(str, grid))}. On it the network's layers "
            f"write {needed:,.0f} bytes for one field; at most {MAX_FIELD_BYTES:,} are supported. Import a network with "
            "fewer modes or channels or less resolution scaling, or only its lowest modes: --set n_modes=[..]"
        )
    try:
        # the release says which library is the reference
        changed = [name for name in settings if name != "version"]
        if changed:
            raise _Unavailable(f"--set overrides the checkpoint's settings ({', '.join(changed)})")
        return _against_original(_original(checkpoint, imported), module)
    except _Unavailable as reason:
        return _against_float64(imported, module, str(reason))


def _against_original(original: _Original, module: FNO) -> Parity:
    def run(x: Tensor) -> Tensor:
        try:
            return original.network(x)
        except Exception as error:
            raise _Unavailable(
                f"{original.name} fails on this machine: {type(error).__name__}: {error}"
            ) from error

    differences = [_difference(module, run, size) for size in _grids(module.arch)]
    report = _report(f"compared with {original.name}", differences)
    return Parity((*report.lines, *original.remarks), report.difference)


def _against_float64(imported: Imported, module: FNO, reason: str) -> Parity:
    double = _in_float64(imported)
    differences = [
        _difference(module, lambda x: double(x.double()), size) for size in _grids(module.arch)
    ]
    report = _report("compared with the same network in float64", differences)
    return Parity(
        (
            f"the original library was not run: {reason}",
            *report.lines,
            "this shows that the weights were copied and that float32 is accurate enough. It does not show that "
            "the architecture was understood: compare with an answer of your network, --example x.npy y.npy",
        ),
        report.difference,
    )


def network_of(
    arch: FNOArchitecture,
    state: Mapping[str, Tensor],
    normalization: Normalization | FieldNormalization | None = None,
) -> FNO:
    """The network in eval mode; it shares the memory of what in `state` has its dtypes.

    Without copies: spectral weights fill gigabytes. A normalisation per channel is not part of `state` and has no
    values here.
    """
    with torch.device("meta"):
        module = FNO(arch, normalization)
    dtypes = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    given = {name: tensor.to(dtypes.get(name, tensor.dtype)) for name, tensor in state.items()}
    module.load_state_dict(given, assign=True)
    return module.eval().requires_grad_(False)


def _in_float64(imported: Imported) -> FNO:
    """The network in float64; each part is cast while it runs, so that only one is in memory twice."""
    module = network_of(imported.architecture, imported.state)
    blocks = {f"blocks.{name}": block for name, block in module.blocks.named_children()}
    for name, part in {
        "lifting": module.lifting,
        "projection": module.projection,
        **blocks,
    }.items():
        part.register_forward_pre_hook(_cast)
        part.register_forward_hook(partial(_restore, imported.state, name))
    return module


def _cast(part: nn.Module, _: object) -> None:
    to_precision(part, torch.float64)


def _restore(state: Mapping[str, Tensor], prefix: str, part: nn.Module, *_: object) -> None:
    for name, parameter in part.named_parameters():
        parameter.data = state[f"{prefix}.{name}"]


def _report(against: str, differences: list[tuple[tuple[int, ...], float]]) -> Parity:
    lines = [
        f"{against} on random fields, grid {'x'.join(map(str, size))}: relative L2 difference {value:.1e}"
        for size, value in differences
    ]
    return Parity(tuple(lines), max(value for _, value in differences))


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
    """An even grid that holds all modes, and what padding is taken from, and an odd one."""
    least = map(max, arch.smallest_grid, arch.smallest_input)
    even = tuple(max(n + n % 2 + 4, 16 if arch.n_dim < 3 else 8) for n in least)
    return even, tuple(n + 1 for n in even)


def _original(checkpoint: Checkpoint, imported: Imported) -> _Original:
    builders = {
        "neuraloperator": _neuraloperator,
        "pdebench": _pdebench,
        "physicsnemo": _physicsnemo,
    }
    build = builders.get(checkpoint.format)
    if build is None:
        raise _Unavailable(f"there is no package for {imported.format}")
    try:
        return build(checkpoint, imported)
    except _Unavailable:
        raise
    except Exception as error:
        # A foreign library may raise anything on import or construction; then there is no comparison.
        raise _Unavailable(f"{type(error).__name__}: {error}") from error


def _installed(package: str, wanted: str) -> str:
    """Name and version of an installed package whose version begins with `wanted`."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise _Unavailable(f"{package} is not installed") from None
    if not (version + ".").startswith(wanted + "."):
        raise _Unavailable(f"{package} {version} is installed, the checkpoint needs {wanted}")
    return f"{package} {version}"


def _neuraloperator(checkpoint: Checkpoint, imported: Imported) -> _Original:
    _, release, kind = imported.format.split(" ")
    if not checkpoint.settings:
        raise _Unavailable("the checkpoint does not hold the network's constructor arguments")
    settings = by_name(checkpoint.settings, old=release == "0.3.0")
    models = import_module("neuralop.models")
    cls = getattr(models, kind)
    whole = inspect.signature(models.FNO.__init__).parameters
    known = inspect.signature(cls.__init__).parameters
    # TFNO passes its arguments on to FNO
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
    if not imported.release_is_known:
        remarks.append(
            f"the file does not name its release: the result equals that of {release}, but another release "
            "may have trained the network"
        )
    if arguments.get("fno_block_precision", "full") != "full":
        remarks.append(
            f"both computed in full precision: fno_block_precision={arguments['fno_block_precision']} runs on "
            "a GPU only and was not compared"
        )
        arguments["fno_block_precision"] = "full"
    network = _built(lambda: cls(**arguments), arguments, checkpoint.tensors)
    return _Original(network, name, tuple(remarks))


def _installed_neuraloperator(release: str, *, development: bool) -> str:
    """Name and version of the installed neuraloperator, if it is `release`.

    `development`: the development version is installed, which also reports the version 2.0.0.
    """
    if development:
        if release != "main":
            raise _Unavailable(
                f"a development version of neuraloperator is installed, the checkpoint needs {release}"
            )
        return "the installed development version of neuraloperator"
    return _installed("neuraloperator", release)


def _built(
    build: Callable[[], nn.Module], arguments: Any, tensors: Mapping[str, Tensor]
) -> nn.Module:
    """The original network with the checkpoint's tensors, which may be those of a wrapper.

    It is first built on the meta device, without memory: a file may claim any size, and the shapes must match.
    """
    if max(_integers(arguments), default=0) > _LARGEST_ARGUMENT:
        raise _Unavailable(f"the checkpoint has an argument above {_LARGEST_ARGUMENT:,}")
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in build().state_dict().items() if isinstance(v, Tensor)}
    # a base class of older releases had this buffer
    expected = {k: shape for k, shape in shapes.items() if not k.endswith("device_buffer")}
    first = next(iter(expected))
    prefixes = (key.removesuffix(first) for key in tensors if key.endswith(first))
    tensors = inside_wrapper(tensors, min(prefixes, key=len, default=""))
    wrong = [k for k in expected if k not in tensors or tensors[k].shape != expected[k]]
    if wrong:
        raise _Unavailable(f"its arguments and its tensors disagree on {wrong[0]}")
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
    """A constructor argument; objects are built from the library's and torch's own classes."""
    if key == "non_linearity":
        return _torch_activation(value)
    if key == "positional_embedding" and isinstance(value, Stub):
        return _embedding(value)
    if isinstance(value, Named | Stub):
        raise _Unavailable(f"the argument {key} is {value!r}")
    return value


def _torch_activation(value: Any) -> Any:
    """torch's function or module for a name in the file that `activation_of` has accepted."""
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
        raise _Unavailable("its input channels are not a multiple of its output channels")
    steps = arch.in_channels // arch.out_channels
    network = _built(
        lambda: cls(arch.out_channels, **modes, width=arch.hidden_channels, initial_step=steps),
        modes,
        checkpoint.tensors,
    )
    if checkpoint.pickled is not None and checkpoint.pickled.padding is not None:
        network.padding = checkpoint.pickled.padding

    def run(x: Tensor) -> Tensor:
        axes = [(torch.arange(n) + 0.5) / n for n in x.shape[2:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        y = network(x.movedim(1, -1), grid.expand(x.shape[0], *grid.shape))
        return y.squeeze(-2).movedim(-1, 1)

    return _Original(run, name)


def _physicsnemo(checkpoint: Checkpoint, imported: Imported) -> _Original:
    library, version, _ = imported.format.split(" ")
    package = library.lower()
    # The layers' results differ between 1.x and 2.x, not within them.
    name = _installed(f"nvidia-{package}", version.split(".")[0])
    cls, arguments = import_module(f"{package}.models.fno").FNO, checkpoint.settings or {}
    return _Original(_built(lambda: cls(**arguments), arguments, checkpoint.tensors), name)
