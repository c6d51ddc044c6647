"""Earlier releases of neuraloperator, each run in a process of its own.

Run as a script it draws networks, saves them with the release's own `save_checkpoint` and whole, and writes down what
they answer: `python -m tests.models.importers.old_release VERSION INSTALLED FOLDER SEED COUNT`. With COUNT 0 it saves
one network of release 0.3.0 for Darcy flow with its data processor instead.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import random
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.models.importers.drawn import draw_built
from tests.models.importers.neuraloperator_runs import outputs, spread
from tests.models.importers.other_libraries import installed, run_module


def draw_and_save(version: str, folder: Path, count: int) -> None:
    """Draw `count` random networks, save them into `folder` as `0`, `1`, .., and run them, with that release.

    0: save the network, the data processor and the answers of `_darcy` as `darcy_..`.
    """
    module = "tests.models.importers.old_release"
    release = str(installed(f"neuraloperator-{version}"))
    run_module(module, version, release, str(folder), str(torch.initial_seed()), str(count))


class _Hollow(types.ModuleType):
    """A module that returns an empty class for any name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _HollowHarmonics(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replacement of torch_harmonics, which these releases need for spherical models only."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.partition(".")[0] == "torch_harmonics":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Hollow(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def _main(version: str, release: str, target: str, seed: str, count: str) -> None:
    warnings.simplefilter("ignore")
    sys.path.insert(0, release)
    sys.meta_path.insert(0, _HollowHarmonics())
    import neuralop

    assert neuralop.__file__.startswith(release), neuralop.__file__
    folder = Path(target)
    torch.manual_seed(int(seed))
    torch.set_num_threads(1)
    rng = random.Random(int(seed))
    if not int(count):
        _darcy(folder)
    for i in range(int(count)):
        drawn, network = draw_built(rng, version, neuralop.models)
        theirs = spread(network)
        theirs.save_checkpoint(folder, str(i))
        torch.save(theirs, folder / f"{i}_whole.pt")
        fields = [torch.randn(2, drawn.arguments["in_channels"], *grid) for grid in drawn.grids]
        answers = {"fields": fields, "outputs": outputs(theirs, fields)}
        torch.save(answers, folder / f"{i}_answers.pt")


def _darcy(folder: Path) -> None:
    """The networks of release 0.3 for Darcy flow get coordinates from the data processor."""
    from neuralop.datasets.data_transforms import DefaultDataProcessor
    from neuralop.datasets.output_encoder import UnitGaussianNormalizer
    from neuralop.datasets.transforms import PositionalEmbedding2D
    from neuralop.models import FNO

    network = FNO(n_modes=(6, 6), hidden_channels=6, in_channels=3, out_channels=1, n_layers=2)
    network = spread(network).eval()
    network.save_checkpoint(folder, "darcy")
    x, y = 3 * torch.randn(6, 1, 12, 13) + 2, torch.randn(6, 1, 12, 13) - 4
    encoders = UnitGaussianNormalizer(dim=[0, 1, 2, 3]), UnitGaussianNormalizer(dim=[0, 1, 2, 3])
    for encoder, fields in zip(encoders, (x, y), strict=True):
        encoder.fit(fields)
    processor = DefaultDataProcessor(*encoders, positional_encoding=PositionalEmbedding2D())
    torch.save(processor, folder / "darcy_processor.pt")
    processor.to("cpu").train = False
    batch = processor.preprocess({"x": x, "y": y})
    with torch.no_grad():
        answer, _ = processor.postprocess(network(batch["x"]), batch)
    torch.save({"fields": x, "outputs": answer}, folder / "darcy_answers.pt")


if __name__ == "__main__":
    _main(*sys.argv[1:])
