"""A program that draws networks of another library, saves them with its own function, and records their results.

Run as a program with that library on the path: `python -m tests.models.importers.library_worker NAME FOLDER
SEED COUNT`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import random
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest import mock

import torch

# Imported by PhysicsNeMo beside its FNO, which does not use them.
_STAND_INS = {
    "aiobotocore", "botocore", "hydra", "nvtx", "omegaconf", "onnx", "s3fs", "tensordict", "timm",
    "torchvision", "warp", "xarray", "zarr",
}  # fmt: skip

Drawn = tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor], int, list[tuple[int, ...]]]
Draw = Callable[[random.Random, int, Path], Drawn]


class _StandIn(types.ModuleType):
    """A fake module: every attribute can be called, subscripted and used as a decorator."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(
            name,
            (),
            {
                "__init__": lambda *_, **__: None,
                "__getattr__": lambda _, inner: _StandIn(inner),
                "__call__": lambda _, function=None, *__, **___: function,
                "__class_getitem__": classmethod(lambda cls, _: cls),
            },
        )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name.split(".")[0] in _STAND_INS:
            return ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def physicsnemo(package: str) -> Draw:
    """FNO of PhysicsNeMo or Modulus, saved by `Module.save`."""
    sys.meta_path.append(_Finder())
    FNO = importlib.import_module(f"{package}.models.fno").FNO

    activations = (
        "gelu", "silu", "relu", "identity", "leaky_relu", "elu", "selu", "softplus", "hardtanh",
    )  # fmt: skip

    def draw(rng: random.Random, n: int, path: Path) -> Drawn:
        modes = [rng.randint(2, 5) for _ in range(n)]
        padding = rng.choice((0, rng.randint(1, 6), [rng.randint(0, 5) for _ in range(n)]))
        kind = rng.choice(("constant", "constant", "replicate", "circular", "reflect"))
        channels = rng.randint(1, 3)
        network = FNO(
            in_channels=channels, out_channels=rng.randint(1, 2), dimension=n,
            decoder_layers=rng.randint(1, 3), decoder_layer_size=rng.randint(3, 8),
            decoder_activation_fn=rng.choice(("silu", "gelu", "tanh", "relu", "leaky_relu")),
            latent_channels=rng.randint(2, 7), num_fno_layers=rng.randint(1, 4),
            num_fno_modes=rng.choice((modes, modes[0])), padding=padding, padding_type=kind,
            activation_fn=rng.choice(activations),
            coord_features=rng.random() < 0.7,
        )  # fmt: skip
        spread(network)
        network.save(str(path.with_suffix(".mdlus")))
        # from grids where the corners overlap to larger ones, and larger than any reflected padding
        sizes = [
            tuple(rng.randint(max(8, 2 * max(modes) - 2), 14) for _ in range(n)) for _ in range(2)
        ]
        return network, network, channels, sizes

    return draw


def pdebench(rng: random.Random, n: int, path: Path) -> Drawn:
    """FNO1d, FNO2d, FNO3d of PDEBench, saved as its training does or whole, with another padding."""
    fno = importlib.import_module("pdebench.models.fno.fno")
    fields, steps = rng.randint(1, 2), rng.randint(1, 4)
    modes = [rng.randint(2, 5) for _ in range(n)]
    network = getattr(fno, f"FNO{n}d")(fields, *modes, width=rng.randint(2, 7), initial_step=steps)
    spread(network)
    content: Any = {
        "epoch": 3, "model_state_dict": network.state_dict(), "optimizer_state_dict": {}, "loss": 0.5,
    }  # fmt: skip
    if rng.random() < 0.5:
        content, network.padding = network, rng.randint(1, 6)
    torch.save(content, path.with_suffix(".pt"))

    def answer(x: torch.Tensor) -> torch.Tensor:
        axes = [(torch.arange(m, dtype=x.dtype) + 0.5) / m for m in x.shape[2:]]
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        y = network(x.movedim(1, -1), grid.expand(x.shape[0], *grid.shape))
        return y.squeeze(-2).movedim(-1, 1)

    sizes = [tuple(rng.randint(2 * max(modes), 14) for _ in range(n)) for _ in range(2)]
    return network, answer, fields * steps, sizes


@torch.no_grad()
def spread(network: torch.nn.Module) -> None:
    """Change every parameter from its initial value, which may be zero."""
    for parameter in network.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.2)


def true_float64() -> ExitStack:
    """Make networks with float32 coordinates and `torch.cfloat` spectra compute in float64."""
    plain = torch.linspace
    stack = ExitStack()
    stack.enter_context(mock.patch.object(torch, "cfloat", torch.complex128))
    stack.enter_context(
        mock.patch.object(
            torch, "linspace", lambda *args, **kw: plain(*args, **{**kw, "dtype": torch.float64})
        )
    )
    return stack


def widened(network: torch.nn.Module) -> None:
    """Cast every parameter and buffer to float64, complex ones to complex128."""
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
        elif tensor.is_floating_point():
            tensor.data = tensor.data.double()


@torch.no_grad()
def main(name: str, folder: Path, seed: int, count: int) -> None:
    """Draw, save and run `count` networks of the library `name`."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    draw: Draw = pdebench if name == "pdebench" else physicsnemo(name.split("-")[0])
    for i in range(count):
        network, answer, channels, sizes = draw(rng, 1 + i % 3, folder / str(i))
        network.eval()
        fields = [torch.randn(2, channels, *size) for size in sizes]
        outputs = [answer(x) for x in fields]
        widened(network)
        with true_float64():
            outputs64 = [answer(x.double()) for x in fields]
        answers = {"fields": fields, "outputs": outputs, "outputs64": outputs64}
        torch.save(answers, folder / f"{i}_answers.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
