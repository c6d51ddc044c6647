"""`turbofno import`: convert a foreign checkpoint into a native folder, report it, compare it with the original."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from pydantic import ValidationError
from torch import Tensor

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.checkpoint import is_finite, load_model, save_model, state_shapes
from turbofno.models.core.config import Channel, GridSpec, ModelConfig
from turbofno.models.core.fno import FNO
from turbofno.models.core.registry import CARD_FILE, CONFIG_FILE, version_folders
from turbofno.models.core.regrid import Boundary
from turbofno.models.core.validation import described
from turbofno.models.importers.detect import convert, read_checkpoint
from turbofno.models.importers.example import compare
from turbofno.models.importers.normalizers import (
    Normalizing,
    Scaling,
    Side,
    constant,
    normalizing,
    read_normalizer,
)
from turbofno.models.importers.parity import check_parity, network_of
from turbofno.models.importers.refusal import ImportRefused, printable
from turbofno.models.importers.report import card, next_steps, report
from turbofno.models.importers.result import Imported, Options

_LARGEST_GRID = {1: 16384, 2: 2048, 3: 256}
_LARGEST_PADDING = 4096
# Largest padding as a share of the grid, and largest factor by which a layer may scale it.
_LARGEST_SHARE = 8.0
_USUAL_GRID = {1: 256, 2: 64, 3: 32}


def run(arguments: argparse.Namespace, repository: Path) -> int:
    """Import `arguments.path` into `repository`; print the architecture, the assumptions and the comparison.

    Raises:
        ImportRefused: the checkpoint cannot be imported, or its results differ from the original's or the example's.
        FileExistsError: a model of that name exists.
    """
    target = repository / arguments.name
    if target.exists():
        _check_replaceable(target, force=arguments.force)
    settings = _settings(arguments.settings)
    eps = _eps(settings.pop("eps", None), arguments)
    boundary = _boundary(settings.pop("boundary", None))
    checkpoint = read_checkpoint(
        arguments.path, None if arguments.format == "auto" else arguments.format
    )
    imported = _single(convert(checkpoint, Options(dict(settings))))
    # First: the sizes in the file can be trusted only once the tensors match them.
    module = _module(imported.architecture, imported.state)
    scaling = _scaling(arguments, imported, eps)
    config = _config(arguments, imported, scaling, boundary)
    lines = report(checkpoint, imported, config, scaling)
    _print([str(checkpoint.path), *lines])
    try:
        parity = check_parity(checkpoint, imported, module, settings)
    except RuntimeError as error:
        raise ImportRefused(f"the imported network cannot be run: {error}") from error
    compared = [f"  {line}" for line in parity.lines]
    _print(compared)
    if not parity.passed:
        raise ImportRefused(
            f"the imported network's results differ from the original's by {parity.difference:.1e} (relative L2), "
            "so nothing was written. This is a bug of the import: please report it with the library's version"
        )
    with _replacing(target) as fresh:
        _save(fresh, config, imported, scaling)
        # before the loader, which needs their memory twice
        del checkpoint, imported, module
        model = load_model(fresh)
        if arguments.example is not None:
            inputs, outputs = arguments.example
            shown = f"  {compare(inputs, outputs, model)}"
            _print([shown])
            compared.append(shown)
        (fresh / CARD_FILE).write_text(card(config, [*lines, *compared]), encoding="utf-8")
    _print([f"wrote {target}", *next_steps(config, repository)])
    return 0


def _check_replaceable(target: Path, *, force: bool) -> None:
    """Raise FileExistsError unless this may be replaced: with `force`, a folder of one model and nothing else."""
    if not force:
        raise FileExistsError(f"{target} exists; choose another --name, or replace it with --force")
    if not (target / CONFIG_FILE).is_file():
        raise FileExistsError(
            f"{target} has no {CONFIG_FILE}, so it may hold several models, and --force does not replace it; "
            "choose another --name or move the folder"
        )
    if version_folders(target):
        raise FileExistsError(
            f"{target} has versions of the model below it, and --force does not replace them; choose another --name or "
            "move the folder"
        )


def _save(
    folder: Path, config: ModelConfig, imported: Imported, scaling: Normalizing | None
) -> None:
    normalization = config.normalization or config.field_normalization
    state = {**imported.state, **(scaling.tensors if scaling else {})}
    save_model(folder, config, network_of(imported.architecture, state, normalization))


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A folder under a temporary name, renamed to `target` unless an error is raised."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # The registry skips names that begin with a dot.
    with tempfile.TemporaryDirectory(prefix=".importing-", dir=target.parent) as folder:
        fresh = Path(folder) / "fresh"
        yield fresh
        replaced = Path(folder) / "replaced"
        if target.exists():
            target.rename(replaced)
        try:
            fresh.rename(target)
        except OSError:
            if replaced.exists():
                replaced.rename(target)
            raise


def _module(arch: FNOArchitecture, state: dict[str, Tensor]) -> FNO:
    try:
        expected = state_shapes(arch)
    except RuntimeError as error:
        raise ImportRefused(
            f"the checkpoint describes a network that cannot be built: {error}"
        ) from error
    problems = [f"{key} is missing" for key in expected if key not in state]
    problems += [f"{key} is not part of the network" for key in state if key not in expected]
    problems += [
        f"{key} has shape {list(state[key].shape)}, expected {list(tensor.shape)}"
        for key, tensor in expected.items()
        if key in state and state[key].shape != tensor.shape
    ]
    problems += [
        f"{key} holds NaN or infinite values" for key, t in state.items() if not is_finite(t)
    ]
    if problems:
        raise ImportRefused(
            "the checkpoint's tensors do not fit its architecture: " + "; ".join(problems[:5])
        )
    return network_of(arch, state)


def _single(imported: Imported) -> Imported:
    """The import in single precision, the precision of native checkpoints, each tensor in memory of its own.

    Tensors of a file may share memory (tied layers), which safetensors refuses to write.
    """
    state, seen = {}, set[int]()
    for key, tensor in imported.state.items():
        tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
        memory = tensor.untyped_storage().data_ptr()
        state[key] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return replace(imported, state=state)


def _config(
    arguments: argparse.Namespace,
    imported: Imported,
    scaling: Normalizing | None,
    boundary: Boundary | None,
) -> ModelConfig:
    arch = imported.architecture
    _check_steps(arguments.time_step, arguments.past_steps, arch)
    try:
        return ModelConfig(
            name=arguments.name,
            description=arguments.description or f"imported from {imported.format}",
            architecture=arch,
            inputs=_channels(arguments.inputs, "in", arch.in_channels),
            outputs=_channels(arguments.outputs, "out", arch.out_channels),
            grid=_grid(arguments.grid, imported, scaling, boundary),
            normalization=scaling.per_channel if scaling else imported.normalization,
            field_normalization=scaling.fields if scaling else None,
            precision=arguments.precision,
            time_step=arguments.time_step,
            past_steps=arguments.past_steps,
            sha256="0" * 64,
        )
    except ValidationError as error:
        raise ImportRefused(described(error)) from None


def _check_steps(time_step: float | None, past_steps: int | None, arch: FNOArchitecture) -> None:
    if time_step is None:
        if past_steps is not None:
            raise ImportRefused(
                "--past-steps is for autoregressive networks: give --time-step, too"
            )
        return
    states, (wanted, rest) = past_steps or 1, divmod(arch.in_channels, arch.out_channels)
    if arch.in_channels != states * arch.out_channels:
        mend = ""
        if wanted and not rest:
            mend = f"; give --past-steps {wanted} if they are past states, oldest first"
        if arch.in_channels > arch.out_channels:
            mend += ". Static fields cannot be rolled out: leave --time-step out if some are"
        raise ImportRefused(
            "--time-step is for networks whose output is a state of their next input: the input's "
            f"{arch.in_channels} channels are not {states} x {arch.out_channels}{mend}"
        )


def _channels(names: Sequence[str] | None, prefix: str, count: int) -> tuple[Channel, ...]:
    if names is None:
        names = [f"{prefix}{i}" for i in range(count)]
    if len(names) != count:
        raise ImportRefused(
            f"--{prefix}puts names {len(names)} channels, but the network has {count}"
        )
    return tuple(Channel(name=name) for name in names)


def _grid(
    given: tuple[int, ...] | None,
    imported: Imported,
    scaling: Normalizing | None,
    boundary: Boundary | None,
) -> GridSpec:
    arch = imported.architecture
    n = arch.n_dim
    extent = (1.0,) * n
    if boundary is None:
        boundary = "periodic" if _is_periodic(imported) else "nodes"
    fixed = scaling.fields.grid if scaling is not None and scaling.fields is not None else None
    if fixed is not None and given not in (None, fixed):
        raise ImportRefused(
            f"--grid {list(given)} is not the grid of the normalisers, {list(fixed)}: leave --grid out"
        )
    smallest = _smallest(arch)
    training = fixed or given or imported.training_grid
    if training is None:
        training = tuple(max(_USUAL_GRID[n], points) for points in smallest)
    if len(training) != n:
        raise ImportRefused(f"--grid has {len(training)} axes, but the network has {n}")
    if any(points < least for points, least in zip(training, smallest, strict=True)):
        raise ImportRefused(
            f"the grid {list(training)} {'of the normalisers ' if fixed else '(--grid) '}is too small: the network needs at "
            f"least {list(smallest)} points for its modes and its padding"
        )
    if fixed is not None:
        return GridSpec.model_validate(
            {"training": fixed, "minimum": fixed, "maximum": fixed, "extent": extent, "boundary": boundary}
        )  # fmt: skip
    largest = tuple(max(_LARGEST_GRID[n], points) for points in training)
    return GridSpec.model_validate(
        {"training": training, "minimum": smallest, "maximum": largest, "extent": extent, "boundary": boundary}
    )  # fmt: skip


def _is_periodic(imported: Imported) -> bool:
    """True if the network's coordinates leave out the end of the domain, or it has none, and it pads nothing."""
    arch = imported.architecture
    if arch.positional_grid == "none":
        # whose coordinates may be input channels, which are not periodic
        scripts = ("original script", "neuraloperator 0.3.0")
        return arch.domain_padding is None and not imported.format.startswith(scripts)
    if arch.positional_grid == "cell_centres":
        return True
    return arch.positional_grid == "endpoint_excluded" and arch.domain_padding is None


def _boundary(given: str | None) -> Boundary | None:
    """The setting `boundary` of the model's grid."""
    for one in get_args(Boundary):
        if given == one:
            return one
    if given is None:
        return None
    raise ImportRefused(f"--set boundary must be periodic or nodes, not {given!r}")


def _smallest(arch: FNOArchitecture) -> tuple[int, ...]:
    """`arch.smallest_input`, refused if its padding or scaling would fill the memory."""
    padding = arch.domain_padding
    points = (padding.points if padding else None) or (0,) * arch.n_dim
    shares = (padding.fraction if padding else None) or (0.0,)
    factors = [factor for layer in arch.resolution_scaling for factor in layer]
    if max(points) > _LARGEST_PADDING or max((*shares, *factors)) > _LARGEST_SHARE:
        raise ImportRefused(
            f"domain padding of {max(points):,} points or {max(shares):g} of the grid, or grids scaled by "
            f"{max(factors, default=1):g}; the limits are {_LARGEST_PADDING:,} points and {_LARGEST_SHARE:g}"
        )
    return arch.smallest_input


def _eps(given: str | None, arguments: argparse.Namespace) -> float | None:
    """The setting `eps`, which belongs to the normalisers."""
    if given is None:
        return None
    if not (arguments.normalizer or arguments.input_normalizer or arguments.output_normalizer):
        raise ImportRefused("--set eps is added to the std of a normaliser: give --normalizer FILE")
    try:
        eps = float(given)
    except ValueError:
        eps = -1.0
    if not 0 <= eps < math.inf:
        raise ImportRefused(f"--set eps expects a number like 1e-5, not {given!r}")
    return eps


def _scaling(
    arguments: argparse.Namespace, imported: Imported, eps: float | None
) -> Normalizing | None:
    sides: dict[Side, Scaling] = {}

    def add(more: Mapping[Side, Scaling]) -> None:
        for side in sides.keys() & more.keys():
            raise ImportRefused(
                f"two options scale the {side}, {sides[side].source} and {more[side].source}: give one of --normalizer, "
                f"--{side}-normalizer, and --{side}-mean with --{side}-std"
            )
        sides.update(more)

    if arguments.normalizer is not None:
        add(read_normalizer(arguments.normalizer, eps=eps))
    both: tuple[Side, ...] = ("input", "output")
    for side in both:
        file: Path | None = getattr(arguments, f"{side}_normalizer")
        mean, std = getattr(arguments, f"{side}_mean"), getattr(arguments, f"{side}_std")
        if file is not None:
            add(read_normalizer(file, side, eps))
        if mean is not None or std is not None:
            mean, std = mean or (0.0,), std or (1.0,)
            source = f"--{side}-mean {_listed(mean)} --{side}-std {_listed(std)}"
            add({side: constant(mean, std, source)})
    if not sides:
        return None
    return normalizing(sides, imported.architecture, arguments.grid or imported.training_grid)


def _listed(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:.9g}" for number in numbers)


def _print(lines: Sequence[str]) -> None:
    # The lines quote names from the file.
    sys.stdout.write("".join(printable(line) + "\n" for line in lines))


def _settings(given: Sequence[str]) -> dict[str, str]:
    settings = {}
    for entry in given:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise ImportRefused(f"--set expects KEY=VALUE, not {entry!r}")
        settings[key] = value
    return settings
