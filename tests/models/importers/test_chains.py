"""Random networks of all architectures that importers produce: `compile_fno` agrees with PyTorch or refuses with a reason."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.models.importers.random_canonical import draw_canonical
from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.random_fno import draw_normalization, field, network, truth
from turbofno.models.core import blocks, spectrum
from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno_ops import ChainRefused, CompiledFNO, compile_fno


def _compiled(module: FNO) -> CompiledFNO | None:
    """The compiled network; None if its layers change the resolution in an unsupported way."""
    try:
        return compile_fno(module.description(), device="cpu")
    except ChainRefused as refused:
        if "changes the resolution" not in str(refused):
            raise
        return None


def _sizes(rng: random.Random, module: FNO) -> list[tuple[int, ...]]:
    """Grids that are too small for the modes, just large enough, odd and even."""
    return [tuple(max(1, k + rng.randint(-2, 8)) for k in module.arch.modes) for _ in range(4)]


def _exact_result(module: FNO, x: torch.Tensor) -> torch.Tensor | None:
    """The network's result in float64; None if torch does not support its padding or norm on this grid."""
    try:
        return truth(module, x)
    except (RuntimeError, ValueError) as error:
        module.float()
        if "adding" in str(error) or "more than 1 spatial element" in str(error):
            return None
        raise


@pytest.mark.parametrize("chunk", range(tried(3, 12)))
def test_a_chain_gives_the_networks_result_or_is_refused(chunk: int) -> None:
    rng = random.Random(torch.initial_seed() + chunk)
    ran = refused = 0
    for _ in range(50):
        arch = draw_canonical(rng)
        module = network(arch, draw_normalization(rng, arch))
        single = _compiled(module)
        double = _compiled(module.double())
        module.float()
        if single is None or double is None:
            assert single is double is None
            refused += 1
            continue
        for size in _sizes(rng, module):
            x = field(module, 2, size)
            if single.refusal(size) is not None:
                refused += 1
                with pytest.raises(ChainRefused, match="grid"):
                    single(x)
                continue
            expected = _exact_result(module, x)
            if expected is None:
                continue
            ran += 1
            float32_error = relative_l2(module(x), expected)
            assert relative_l2(single(x), expected) < max(4 * float32_error, 1e-6), (arch, size)
            # norms of fields near zero amplify rounding; the float32 result shows how much
            limit = max(1e-6 * float32_error, 1e-11)
            assert relative_l2(double(x.double()), expected) < limit, (arch, size)
    assert ran > refused


@pytest.mark.parametrize("size", [(16, 16), (15, 16)])
def test_layers_pass_the_precision_to_the_ops(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def spy(module: ModuleType, name: str) -> None:
        op = getattr(module, name)

        def called(*args: Any, precision: str, **kwargs: Any) -> torch.Tensor:
            asked.append(precision)
            return op(*args, precision=precision, **kwargs)

        monkeypatch.setattr(module, name, called)

    spy(blocks, "fourier_layer")
    spy(spectrum, "spectral_conv")
    arch = FNOArchitecture(
        in_channels=1, out_channels=1, hidden_channels=4, n_layers=2, modes=(4, 3),
        mode_placement="centred", odd_axes_rolled=True,
    )  # fmt: skip
    network(arch).compute_in("bf16")(torch.randn(1, 1, *size))
    assert asked == ["bf16", "bf16"]
