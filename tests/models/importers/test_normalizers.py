"""Normalisers of a checkpoint: the imported network works in physical units."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from neuralop.data.transforms.data_processors import DefaultDataProcessor
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer as TheirNormalizer

from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno.models.importers.normalizers import (
    Scaling,
    Side,
    constant,
    normalizing,
    read_normalizer,
)
from turbofno.models.importers.refusal import ImportRefused

GRID = (10, 9)
ARCH = FNOArchitecture(
    in_channels=2, out_channels=1, hidden_channels=4, n_layers=1, modes=(4, 3)
)  # fmt: skip


class UnitGaussianNormalizer:
    """The original scripts' normaliser: mean and std over samples, point by point, channels last."""

    def __init__(self, x: torch.Tensor, eps: float = 1e-5) -> None:
        self.mean, self.std, self.eps = x.mean(0), x.std(0), eps

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / (self.std + self.eps)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.std + self.eps) + self.mean


class GaussianNormalizer(UnitGaussianNormalizer):
    """The original scripts' normaliser with one mean and one std."""

    def __init__(self, x: torch.Tensor) -> None:
        self.mean, self.std, self.eps = x.mean(), x.std(), 1e-5


class RangeNormalizer:
    """The original scripts' range normaliser: point by point, the smallest value to 0, the largest to 1.

    It flattens the fields.
    """

    def __init__(self, x: torch.Tensor) -> None:
        low, high = x.amin(0).view(-1), x.amax(0).view(-1)
        self.a = 1 / (high - low)
        self.b = -self.a * high + 1

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return (self.a * x.reshape(len(x), -1) + self.b).view(x.shape)

    def decode(self, x: torch.Tensor) -> torch.Tensor:
        return ((x.reshape(len(x), -1) - self.b) / self.a).view(x.shape)


def samples(channels: int) -> torch.Tensor:
    """[20, *GRID, channels] with another mean and spread at every point and channel."""
    mean, spread = torch.randn(*GRID, channels) * 5, torch.rand(*GRID, channels) + 0.5
    return mean + spread * torch.randn(20, *GRID, channels)


def assert_physical(
    sides: dict[Side, Scaling],
    encode: Callable[[torch.Tensor], torch.Tensor],
    decode: Callable[[torch.Tensor], torch.Tensor],
) -> FNO:
    """The network with `sides` equals decode(network(encode(x))), fields channels last in both."""
    scaling = normalizing(sides, ARCH, GRID)
    network = FNO(ARCH)
    ours = FNO(ARCH, scaling.per_channel or scaling.fields)
    ours.load_state_dict({**network.state_dict(), **scaling.tensors})
    x = samples(2)
    with torch.inference_mode():
        expected = decode(network(encode(x).movedim(-1, 1)).movedim(1, -1))
        assert relative_l2(ours(x.movedim(-1, 1)).movedim(1, -1), expected) < 1e-5
    return ours


@pytest.mark.parametrize("kind", [UnitGaussianNormalizer, GaussianNormalizer, RangeNormalizer])
@pytest.mark.parametrize("legacy", [False, True])
def test_normalisers_of_the_scripts(kind, legacy: bool, tmp_path: Path) -> None:
    x, y = kind(samples(2)), kind(samples(1)[..., 0])
    torch.save(x, tmp_path / "x.pt", _use_new_zipfile_serialization=not legacy)
    torch.save({"y_normalizer": y}, tmp_path / "y.pt", _use_new_zipfile_serialization=not legacy)
    sides = read_normalizer(tmp_path / "x.pt", only="input") | read_normalizer(tmp_path / "y.pt")
    ours = assert_physical(sides, x.encode, lambda u: y.decode(u[..., 0])[..., None])
    assert ours.input_mean.shape == ((2,) if kind is GaussianNormalizer else (2, *GRID))
    with pytest.raises(ImportRefused, match="does not say whether it is for input or output"):
        read_normalizer(tmp_path / "x.pt")


def test_flattened_normalisers_of_another_grid_are_refused(tmp_path: Path) -> None:
    torch.save(RangeNormalizer(samples(2)), tmp_path / "x.pt")
    sides = read_normalizer(tmp_path / "x.pt", only="input")
    for grid in (None, (90,)):
        with pytest.raises(ImportRefused, match="a 2-dimensional grid; if it is flattened, give"):
            normalizing(sides, ARCH, grid)
    says = r"it has 180 values, but the grid \[10, 10\] with 2 channels has 200; give the grid"
    with pytest.raises(ImportRefused, match=says):
        normalizing(sides, ARCH, (10, 10))


def test_range_normalisers_that_cannot_be_inverted_or_fall_are_named(tmp_path: Path) -> None:
    constant_row, falling = samples(1), RangeNormalizer(samples(1))
    constant_row[:, 0] = 0
    falling.a = -falling.a
    for normalizer, says in (
        (RangeNormalizer(constant_row), r"x\.pt: a holds NaN or infinite values"),
        (falling, r"x\.pt: input: a range normaliser must have a > 0, the smallest is -"),
    ):
        torch.save(normalizer, tmp_path / "x.pt")
        with pytest.raises(ImportRefused, match=says):
            read_normalizer(tmp_path / "x.pt", only="input")


def test_normalisers_of_fourier_3d_repeat_along_time(tmp_path: Path) -> None:
    arch = FNOArchitecture(
        in_channels=4, out_channels=1, hidden_channels=3, n_layers=1, modes=(2, 2, 2)
    )
    early, late = (torch.randn(20, 6, 7, n) * torch.rand(6, 7, n) + 3 for n in (4, 5))
    x, y = UnitGaussianNormalizer(early), UnitGaussianNormalizer(late)
    torch.save({"x_normalizer": x, "y_normalizer": y}, tmp_path / "n.pt")
    sides = read_normalizer(tmp_path / "n.pt")
    scaling = normalizing(sides, arch)
    network, ours = FNO(arch), FNO(arch, scaling.fields)
    ours.load_state_dict({**network.state_dict(), **scaling.tensors})

    def repeated(fields: torch.Tensor) -> torch.Tensor:
        """As the script: the earlier times are channels, the same at all later times."""
        return fields[..., None, :].expand(-1, -1, -1, 5, -1).movedim(-1, 1)

    with torch.inference_mode():
        expected = y.decode(network(repeated(x.encode(early)))[:, 0])
        assert relative_l2(ours(repeated(early))[:, 0], expected) < 1e-5
    with pytest.raises(
        ImportRefused, match=r"the grid \[6, 7, 1\] .* give the whole grid with --grid"
    ):
        normalizing({"input": sides["input"]}, arch)
    with pytest.raises(ImportRefused, match="give the whole grid with --grid"):
        normalizing({"input": sides["input"]}, arch, (6, 7))
    assert normalizing({"input": sides["input"]}, arch, (6, 7, 9)).fields.grid == (6, 7, 9)


def test_a_leading_axis_tells_channels_first_from_channels_last() -> None:
    mean = torch.randn(2, 5, 2).double()
    with pytest.raises(ImportRefused, match="save it with a leading axis of 1"):
        normalizing({"input": Scaling(mean, torch.ones_like(mean), "x")}, ARCH)
    read = normalizing({"input": Scaling(mean[None], torch.ones_like(mean[None]), "x")}, ARCH)
    assert torch.equal(read.tensors["input_mean"], mean)


@pytest.mark.parametrize("how", ["processor", "state dict"])
@pytest.mark.parametrize("dims", [[0, 2, 3], [0]], ids=["per channel", "per point"])
def test_data_processors_of_neuraloperator(how: str, dims: list[int], tmp_path: Path) -> None:
    pair = TheirNormalizer(dim=dims), TheirNormalizer(dim=dims)
    for normalizer, channels in zip(pair, (2, 1), strict=True):
        normalizer.fit(samples(channels).movedim(-1, 1))
    processor = DefaultDataProcessor(*pair)
    torch.save(processor if how == "processor" else processor.state_dict(), tmp_path / "p.pt")
    assert_physical(
        read_normalizer(tmp_path / "p.pt"),
        lambda x: pair[0].transform(x.movedim(-1, 1)).movedim(1, -1),
        lambda y: pair[1].inverse_transform(y.movedim(-1, 1)).movedim(1, -1),
    )


def fitted(channels: int, eps: float) -> TheirNormalizer:
    """A normaliser of fields in SI units, whose std is about as small as neuraloperator's eps."""
    normalizer = TheirNormalizer(dim=[0, 2, 3], eps=eps)
    normalizer.fit(2e-7 * samples(channels).movedim(-1, 1))
    return normalizer


@pytest.mark.parametrize("how", ["apart", "processor"])
@pytest.mark.parametrize("eps", [1e-7, 1e-5])
def test_eps_of_a_state_dict_is_an_assumption(how: str, eps: float, tmp_path: Path) -> None:
    pair = fitted(2, eps), fitted(1, eps)
    given = None if eps == 1e-7 else eps
    if how == "processor":
        torch.save(DefaultDataProcessor(*pair).state_dict(), tmp_path / "p.pt")
        sides = read_normalizer(tmp_path / "p.pt", eps=given)
    else:
        for side, normalizer in zip(("x", "y"), pair, strict=True):
            torch.save(normalizer.state_dict(), tmp_path / f"{side}.pt")
        sides = read_normalizer(tmp_path / "x.pt", "input", given)
        sides |= read_normalizer(tmp_path / "y.pt", "output", given)
    for side, normalizer in zip(("input", "output"), pair, strict=True):
        exact = normalizer.std.double() + eps
        assert relative_l2(sides[side].std, exact) < 1e-12
    read = normalizing(sides, ARCH)
    if given is None:
        for line in read.assumptions:
            assert "eps=1e-07 is added to std, as the file does not contain it (eps=..)" in line
            assert "WARNING: std is as small as" in line
    assert len(read.assumptions) == (2 if given is None else 0)
    assert ("eps 1e-05 added" in read.lines[0]) == (given is not None)


@pytest.mark.parametrize(
    ("mean", "std", "rounded"),
    [(101325.0, 500.0, ""), (101325.0, 0.5, "0.012"), (0.0, 1e-9, ""), (-300.0, 1e-3, "0.018")],
)
def test_a_mean_too_large_for_float32_is_reported(mean: float, std: float, rounded: str) -> None:
    """Normalised values lose that many digits between the client and the network."""
    x = mean + std * torch.randn(1000, dtype=torch.float64)
    lost = ((x.float().double() - x).abs() / std).max()
    assert float(lost) <= (float(rounded) if rounded else 1e-3) * 1.01
    read = normalizing({"input": constant((0.0, mean), (1.0, std), "--input-mean")}, ARCH)
    warned = [line for line in read.assumptions if "WARNING" in line]
    assert len(warned) == bool(rounded)
    assert all(f"rounds such values by up to {rounded} std" in line for line in warned)


def test_a_point_that_does_not_vary_is_not_reported(tmp_path: Path) -> None:
    x = torch.randn(20, *GRID, 2) + 1
    x[:, 0] = 1.0
    torch.save(UnitGaussianNormalizer(x), tmp_path / "x.pt")
    read = normalizing(read_normalizer(tmp_path / "x.pt", "input"), ARCH)
    assert not read.assumptions


@pytest.mark.parametrize(
    "content",
    [
        {"x_mean": 2.0, "x_std": 0.5, "eps": 0.01},
        {"x": {"mean": 2.0, "std": 0.5}, "eps": 0.01},
        {"norm": {"x": {"mean": 2.0, "std": 0.5}, "eps": 0.01}, "eps": 3.0},
        {"x": {"mean": 2.0, "std": 0.5, "eps": 0.01}, "eps": 3.0},
    ],
)
def test_an_eps_beside_the_normalisers_is_theirs(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "norm.json").write_text(json.dumps(content))
    scaling = read_normalizer(tmp_path / "norm.json")["input"]
    assert scaling.std.item() == pytest.approx(0.51)
    assert not scaling.assumption


def test_an_eps_in_the_file_is_no_assumption(tmp_path: Path) -> None:
    torch.save(fitted(2, 1e-2), tmp_path / "x.pt")
    read = normalizing(read_normalizer(tmp_path / "x.pt", "input"), ARCH)
    assert read.assumptions == ()
    assert "(eps 0.01 added to std)" in read.lines[0]


def test_plain_numbers_in_every_file_format(tmp_path: Path) -> None:
    mean, std = np.array([1.5, -2.0]), np.array([0.5, 3.0])
    np.savez(tmp_path / "n.npz", x_mean=mean, x_std=std, y_mean=7.0, y_std=0.1)
    content = {"x_mean": mean.tolist(), "x_std": std.tolist(), "y_mean": 7.0, "y_std": 0.1}
    (tmp_path / "n.json").write_text(json.dumps(content))
    torch.save({"x": {"mean": mean, "std": std}, "y": {"mean": np.float64(7), "std": np.float32(0.1)}},
               tmp_path / "n.pt")  # fmt: skip
    for name in ("n.npz", "n.json", "n.pt"):
        sides = read_normalizer(tmp_path / name)
        for line in normalizing(sides, ARCH).assumptions:
            assert line.endswith("eps=0 is added to std, as the file does not contain it (eps=..)")
        assert_physical(
            sides,
            lambda x: (x - torch.tensor(mean).float()) / torch.tensor(std).float(),
            lambda y: y * 0.1 + 7,
        )
    said = constant((1.5, -2.0), (0.5, 3.0), "--input-mean")
    assert normalizing({"input": said}, ARCH).per_channel.input_std == (0.5, 3.0)


def test_ranges_of_something_else_than_input_and_output_are_left_out(tmp_path: Path) -> None:
    both = {"x_mean": 1.0, "x_std": 2.0, "y_mean": 3.0, "y_std": 4.0}
    alone: dict[str, object] = {"min": 0.0, "max": 9.0}
    for more in (alone, {"time": alone}):
        (tmp_path / "n.json").write_text(json.dumps({**both, **more}))
        sides = read_normalizer(tmp_path / "n.json")
        assert {side: float(one.mean) for side, one in sides.items()} == {"input": 1, "output": 3}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"x_mean": [1.0, 2.0]}, "expected mean and std"),
        ({"x_mean": 1.0, "x_std": [1.0, 0.0]}, "std must be positive, the smallest is 0.0"),
        ({"x_mean": 1.0, "x_std": [1.0, 1.0, 1.0]}, "fits neither 2 channels nor a 2-dimensional grid"),
        ({"x_mean": "a lot", "x_std": 1.0}, "expected mean and std"),
        ({"x_mean": 1.0, "x_std": 2.0, "y_min": 0.0, "y_max": 9.0}, "y holds min, max, expected mean"),
        ({"x": {"mean": 1.0, "std": 2.0}, "y": {"min": 0.0, "max": 9.0}}, "y holds min, max, expected mean"),
        ({"x_mean": 1.0, "x_std": 2.0, "target_mean": 1.0, "target_std": 1.0},
         "target_mean does not say whether it is for input or output; call it input_mean or output_mean"),
        ({"x_mean": 1.0, "x_std": 1.0, "x_mask": [1.0]}, "has a mask"),
        ({"x_mean": 1.0, "x_std": [["a"]]}, "must be real numbers"),
        ({"colour": 1.0}, "holds no mean and std"),
        ({"x_mean": [], "x_std": []}, "x_mean is empty"),
        ({"x_eps": 1e-5}, "holds no mean and std"),
        ({"y_mean": 1.0, "y_std": np.ones((3, 4)).tolist(), "x_mean": 0.0,
          "x_std": np.ones((2, 5, 6)).tolist()}, "have different grids"),
    ],
)  # fmt: skip
def test_impossible_normalisers_are_refused(
    content: dict[str, object], says: str, tmp_path: Path
) -> None:
    (tmp_path / "n.json").write_text(json.dumps(content))
    with pytest.raises(ImportRefused, match=says):
        normalizing(read_normalizer(tmp_path / "n.json"), ARCH)


@pytest.mark.parametrize(("factors", "fits"), [((2.0, 0.5), True), ((2.0, 1.0), False)])
def test_fields_for_a_network_that_answers_on_another_grid_are_refused(
    factors: tuple[float, ...], fits: bool, tmp_path: Path
) -> None:
    arch = FNOArchitecture.model_validate(
        {**ARCH.model_dump(), "n_layers": 2, "resolution_scaling": [[f, f] for f in factors]}
    )
    torch.save({"x_mean": torch.zeros(2, 6, 8), "x_std": torch.ones(2, 6, 8)}, tmp_path / "n.pt")
    sides = read_normalizer(tmp_path / "n.pt")
    if fits:
        assert normalizing(sides, arch).fields is not None
        return
    with pytest.raises(ImportRefused, match=r"answers \[6, 8\] on another one, \[12, 16\]"):
        normalizing(sides, arch)


@pytest.mark.parametrize(
    "content",
    [
        {"x": {"mean": 1.0, "std": 2.0}, "a": {"mean": 5.0, "std": 2.0}},
        {"x_mean": 1.0, "x_std": 2.0, "input_mean": 5.0, "input_std": 2.0},
        {"train": {"x": {"mean": 1.0, "std": 2.0}}, "test": {"x": {"mean": 5.0, "std": 2.0}}},
        {"train": {"x_mean": 1.0, "x_std": 2.0}, "test": {"x_mean": 5.0, "x_std": 2.0}},
    ],
)
def test_several_normalisers_of_one_side_are_refused(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "normalizer.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ImportRefused, match="several normalisers for the input"):
        read_normalizer(path)
    path.write_text(json.dumps(content).replace("5.0", "1.0"))
    assert read_normalizer(path)["input"].mean.item() == 1.0


def test_several_normalisers_without_the_name_of_a_side_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "normalizer.json"
    path.write_text(json.dumps({"p": {"mean": 1, "std": 2}, "v": {"mean": 5, "std": 2}}))
    with pytest.raises(ImportRefused, match="several normalisers for the input, p and v"):
        read_normalizer(path, "input")
