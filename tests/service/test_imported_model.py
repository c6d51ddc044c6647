"""An imported checkpoint: predictions over HTTP equal those of the original network, in physical units."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from neuralop.models import FNO as TheirFNO

from tests.models.importers.original_scripts import Script
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.service import cli
from turbofno.service.app import create_app
from turbofno.service.settings import Settings


def imported(tmp_path: Path, *options: str) -> tuple[TheirFNO, Path]:
    network = TheirFNO(n_modes=(6, 5), in_channels=2, out_channels=1, hidden_channels=6, n_layers=2)
    network.save_checkpoint(tmp_path, "darcy")
    repository = tmp_path / "repository"
    arguments = ["import", str(tmp_path / "darcy_state_dict.pt"), "--name", "darcy"]
    assert cli.main([*arguments, "--model-repository", str(repository), *options]) == 0
    return network.eval(), repository


async def answers(repository: Path, bodies: list[bytes]) -> list[httpx.Response]:
    app = create_app(Settings(model_repository=repository, device="cpu", torch_threads=1))
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        async with asyncio.timeout(60):
            while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
        return [
            await client.post("/v1/models/darcy:predict", content=body, headers=headers)
            for body in bodies
        ]


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore::UserWarning:neuralop")
def test_predictions_over_http_equal_the_original_network(tmp_path: Path) -> None:
    mean, std = torch.tensor([3.0, -1.0]).view(2, 1, 1), torch.tensor([0.5, 4.0]).view(2, 1, 1)
    np.savez(
        tmp_path / "norm.npz", input_mean=mean, input_std=std, output_mean=10.0, output_std=30.0
    )
    network, repository = imported(tmp_path, "--normalizer", str(tmp_path / "norm.npz"))
    fields = [mean + std * torch.randn(3, 2, *size) for size in ((16, 16), (17, 13))]
    for x, answer in zip(
        fields, asyncio.run(answers(repository, [npy(x.numpy()) for x in fields])), strict=True
    ):
        assert answer.status_code == 200, answer.text
        with torch.inference_mode():
            expected = network((x - mean) / std) * 30 + 10
        found = torch.from_numpy(np.load(io.BytesIO(answer.content)))
        assert relative_l2(found - 10, expected - 10) < 1e-5


def test_predictions_over_http_equal_the_original_script(tmp_path: Path) -> None:
    """Corners that overlap on the smaller grid, a precision that a CPU does not round to."""
    network = Script("B", (6, 5), 6, 1, 2, padding=(9, 9)).eval()
    torch.save(network.state_dict(), tmp_path / "fno.pt")
    repository = tmp_path / "repository"
    arguments = ["import", str(tmp_path / "fno.pt"), "--name", "darcy"]
    script = ["--set", "script=fourier_2d"]
    options = ["--set", "padding=9", "--input-mean", "3", "--input-std", "2", "--precision", "bf16"]
    assert cli.main([*arguments, "--model-repository", str(repository), *script, *options]) == 0
    fields = [3 + 2 * torch.randn(2, 1, *size) for size in ((21, 20), (2, 9))]
    for x, answer in zip(
        fields, asyncio.run(answers(repository, [npy(x.numpy()) for x in fields])), strict=True
    ):
        assert answer.status_code == 200, answer.text
        with torch.inference_mode():
            expected = network(((x - 3) / 2).movedim(1, -1)).movedim(-1, 1)
        assert relative_l2(torch.from_numpy(np.load(io.BytesIO(answer.content))), expected) < 1e-5


@pytest.mark.filterwarnings("ignore::UserWarning:neuralop")
def test_field_normalisers_restrict_the_grid(tmp_path: Path) -> None:
    mean, std = torch.randn(2, 12, 11), torch.rand(2, 12, 11) + 0.5
    np.savez(tmp_path / "norm.npz", input_mean=mean, input_std=std)
    network, repository = imported(tmp_path, "--normalizer", str(tmp_path / "norm.npz"))
    fields = [torch.randn(1, 2, 12, 11), torch.randn(1, 2, 12, 12)]
    right, wrong = asyncio.run(answers(repository, [npy(x.numpy()) for x in fields]))
    with torch.inference_mode():
        expected = network((fields[0] - mean) / std)
    assert relative_l2(torch.from_numpy(np.load(io.BytesIO(right.content))), expected) < 1e-5
    assert wrong.status_code in (400, 422), wrong.text
    assert "12" in wrong.text


def test_service_loads_neither_foreign_files_nor_changed_weights(tmp_path: Path) -> None:
    _, repository = imported(tmp_path)
    (repository / "foreign").mkdir()
    (repository / "foreign" / "darcy_state_dict.pt").write_bytes(
        (tmp_path / "darcy_state_dict.pt").read_bytes()
    )
    weights = repository / "darcy" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)

    async def states() -> list[dict[str, str]]:
        app = create_app(Settings(model_repository=repository, device="cpu", torch_threads=1))
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://localhost"
        )
        async with app.router.lifespan_context(app), client, asyncio.timeout(60):
            while True:
                listing = (await client.get("/v1/models")).json()["models"]
                if all(model["state"] != "LOADING" for model in listing):
                    return listing
                await asyncio.sleep(0.05)

    (model,) = asyncio.run(states())
    assert model["name"] == "darcy"
    assert model["state"] == "UNAVAILABLE"
    assert "SHA-256" in model["reason"]
