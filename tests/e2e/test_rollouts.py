"""Rollouts from the real server: equal to a loop over the module, streamed, and ended by a disconnect."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from tests.clock import within
from tests.e2e.server_process import ServerProcess
from tests.models.importers.original_scripts import Script
from tests.service.http.asgi import serving
from tests.service.tiny import rollable_module, save_rollable
from turbofno.service import cli
from turbofno_client import (
    AsyncClient,
    BadInput,
    BlowUp,
    Client,
    NotFound,
    PredictionWarning,
    ServerError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turbofno.models.core.fno import FNO

# The training grid has 16 points; this one has 24.
pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.filterwarnings("ignore::turbofno_client.PredictionWarning"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, FNO]]:
    root = tmp_path_factory.mktemp("rollouts")
    repository = root / "models"
    module = rollable_module()
    save_rollable(repository, module)
    with ServerProcess(repository, root / "log") as server:
        yield server, module


def loop(module: FNO, fields: np.ndarray, steps: int) -> list[np.ndarray]:
    x = torch.from_numpy(fields)
    frames = []
    with torch.no_grad():
        for _ in range(steps):
            x = module(x)
            frames.append(x.numpy())
    return frames


def noise(*shape: int) -> np.ndarray:
    return torch.randn(*shape).numpy()


def test_a_rollout_equals_a_loop_over_the_module_and_can_be_resumed(
    served: tuple[ServerProcess, FNO],
) -> None:
    server, module = served
    fields = noise(2, 1, 24)
    expected = loop(module, fields, 20)
    with Client(server.url) as client:
        frames = list(client.rollout("tiny-flow", fields, 20, frames=3))
        assert [one.step for one in frames] == [3, 6, 9, 12, 15, 18, 20]
        for one in frames:
            np.testing.assert_allclose(one.fields, expected[one.step - 1], rtol=1e-3, atol=1e-5)
        middle = frames[2]
        rest = list(client.rollout("tiny-flow", middle.fields, 20, frames=3, start=middle.step))
        assert [one.step for one in rest] == [12, 15, 18, 20]
        for one, whole in zip(rest, frames[3:], strict=True):
            np.testing.assert_allclose(one.fields, whole.fields, rtol=1e-4, atol=1e-6)
        with pytest.warns(PredictionWarning, match="input grid 24"):
            next(client.rollout("tiny-flow", fields, 20))
        (single,) = client.rollout("tiny-flow", fields[0], 20, frames="last")
        np.testing.assert_allclose(single.fields, expected[-1][0], rtol=1e-3, atol=1e-5)
        with pytest.raises(NotFound):
            next(client.rollout("nobody", fields, 20))


def test_an_imported_network_of_past_steps_is_rolled_out_as_its_script_does(tmp_path: Path) -> None:
    """The script of time steps: three past states are its inputs, and each step it drops the oldest for its output."""
    script = Script("B", (4, 4), 6, 3, 1, norm="instance").eval()
    torch.save(script.state_dict(), tmp_path / "ns.pt")
    given = ["--name", "ns", "--model-repository", str(tmp_path / "models"), "--grid", "16,16"]
    said = ["--set", "script=fourier_2d_time", "--time-step", "0.5", "--past-steps", "3"]
    assert cli.main(["import", str(tmp_path / "ns.pt"), *given, *said]) == 0
    fields = noise(2, 3, 16, 20)
    states = torch.from_numpy(fields).movedim(1, -1)
    with torch.no_grad():
        for _ in range(6):
            states = torch.cat((states, script(states[..., -3:])), dim=-1)
    expected = states.movedim(-1, 1).numpy()
    with (
        ServerProcess(tmp_path / "models", tmp_path / "log") as server,
        Client(server.url) as client,
    ):
        assert client.model("ns")["past_steps"] == 3
        found = [frame.fields for frame in client.rollout("ns", fields, 6)]
        frames = np.concatenate(found, axis=1)
        np.testing.assert_allclose(frames, expected[:, 3:], rtol=1e-3, atol=1e-4)
        (last,) = client.rollout("ns", frames[:, 1:4], 6, start=4, frames="last")
        np.testing.assert_allclose(last.fields, frames[:, 5:], rtol=1e-3, atol=1e-4)
        named = {f"in{i}": fields[:, i] for i in range(3)}
        (last,) = client.rollout("ns", named, 6, frames="last")
        np.testing.assert_allclose(last.fields["out0"], frames[:, 5], rtol=1e-3, atol=1e-4)
        with pytest.raises(BadInput, match="expects 3 "):
            next(client.rollout("ns", frames[:, :1], 6))


def test_concurrent_rollouts_with_predictions(served: tuple[ServerProcess, FNO]) -> None:
    server, module = served
    jobs = [(noise(n, 1, 24), steps) for n, steps in ((1, 40), (3, 7), (20, 11), (2, 200), (1, 1))]

    async def main() -> None:
        async with AsyncClient(server.url) as client:

            async def run(fields: np.ndarray, steps: int) -> np.ndarray:
                async for frame in client.rollout("tiny-flow", fields, steps, frames="last"):
                    last = frame
                return last.fields

            predictions = [client.predict("tiny-flow", fields) for fields, _ in jobs]
            found = await asyncio.gather(*(run(*job) for job in jobs), *predictions)
        for (fields, steps), rolled in zip(jobs, found, strict=False):
            np.testing.assert_allclose(
                rolled, loop(module, fields, steps)[-1], rtol=1e-3, atol=1e-5
            )
        for (fields, _), predicted in zip(jobs, found[len(jobs) :], strict=True):
            np.testing.assert_allclose(predicted, loop(module, fields, 1)[0], rtol=1e-3, atol=1e-5)

    asyncio.run(main())


def test_frames_are_streamed_and_a_disconnect_ends_the_rollout(
    served: tuple[ServerProcess, FNO],
) -> None:
    server, _ = served
    with Client(server.url) as client:
        started = time.monotonic()
        frames = client.rollout("tiny-flow", noise(16, 1, 64), 10_000, frames=100)
        assert next(frames).step == 100
        first = time.monotonic() - started
        frames.close()
    until = time.monotonic() + 20
    left = 'rollouts_ended_total{model="tiny-flow",outcome="left"'
    while _metric(server, left) < 1 or _metric(server, "inflight_bytes"):
        assert time.monotonic() < until
        time.sleep(0.05)
    within(first, 5)


def test_energy_beyond_the_stated_range_names_the_first_such_step(tmp_path: Path) -> None:
    module, fields = rollable_module(gain=4.0), noise(1, 1, 24)
    energies = [float(np.mean(one.astype("f8") ** 2)) for one in loop(module, fields, 12)]
    most = 0.5 * max(energies)
    expected = next(step for step, one in enumerate(energies, 1) if one > most)
    save_rollable(tmp_path, module, reach=most**0.5)

    async def main() -> None:
        async with serving(tmp_path) as (_, app):
            transport = httpx.ASGITransport(app)
            async with AsyncClient("http://localhost", transport=transport) as client:
                steps = []
                with pytest.raises(BlowUp) as caught:  # noqa: PT012 - the frames before count
                    async for frame in client.rollout("tiny-flow", fields, 12):
                        steps.append(frame.step)
        assert (caught.value.step, caught.value.reason) == (expected, "energy")
        assert steps == list(range(1, expected))

    asyncio.run(main())


def test_a_drain_that_ends_tells_the_stream(tmp_path: Path) -> None:
    save_rollable(tmp_path / "models", rollable_module())
    options = ("--drain-seconds", "1", "--max-rollout-steps", "2000000000")
    with ServerProcess(tmp_path / "models", tmp_path / "log", *options) as server:
        with Client(server.url) as client:
            frames = client.rollout("tiny-flow", noise(1, 1, 24), 1_000_000_000, frames=1000)
            next(frames)
            server.terminate()
            with pytest.raises(ServerError, match="stopped before this request was done"):
                list(frames)
        assert server.stop() == 0


def _metric(server: ServerProcess, name: str) -> float:
    lines = httpx.get(server.url + "/metrics").text.splitlines()
    return sum(float(one.split()[-1]) for one in lines if one.startswith(f"turbofno_{name}"))
