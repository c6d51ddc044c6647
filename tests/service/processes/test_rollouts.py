"""Rollouts over several processes: the frames of a plain loop, even if processes are killed."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.processes.running import (
    Service,
    as_npy,
    everything_is_given_back,
    running,
    until,
)
from tests.service.tiny import rollable_config, rollable_module, save_rollable
from turbofno.models.core.checkpoint import save_model
from turbofno_client import AsyncClient, BlowUp, Client, ConnectionFailed, ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turbofno.models.core.fno import FNO

pytestmark = [
    pytest.mark.timeout(120),
    # The tiny models were evaluated on one grid only, so answers on others carry a warning.
    pytest.mark.filterwarnings("ignore::turbofno_client.PredictionWarning"),
]

PATH = "/v1/models/tiny-flow:rollout"
NPY = {"Content-Type": "application/x-npy"}
ENDLESS = 2_000_000_000
HANG_SECONDS = 2.5


@pytest.fixture(scope="module")
def module() -> FNO:
    return rollable_module()


class Burst(NamedTuple):
    """A rollout that leaves its model's training range."""

    module: FNO
    fields: np.ndarray[Any, Any]
    reach: float
    """The model's training range, as its configuration says."""
    step: int


@pytest.fixture(scope="module")
def burst() -> Burst:
    module, fields = rollable_module(gain=4.0), noise(1, 1, 24)
    energies = [float(np.mean(one.astype("f8") ** 2)) for one in loop(module, fields, 12)]
    most = 0.5 * max(energies)
    step = next(step for step, energy in enumerate(energies, 1) if energy > most)
    return Burst(module, fields, most**0.5, step)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, module: FNO, burst: Burst) -> Path:
    root = tmp_path_factory.mktemp("flows")
    save_rollable(root, module)
    config = rollable_config(burst.reach).model_copy(update={"name": "burst"})
    save_model(root / "burst", config, burst.module)
    return root


@pytest.fixture(scope="module")
def shared(repository: Path) -> Iterator[Service]:
    options = {"max_rollout_steps": ENDLESS, "hang_seconds": HANG_SECONDS}
    options |= {"max_body_bytes": 2**21, "max_json_bytes": 2**20, "shared_memory_bytes": 2**23}
    options |= {"max_fields_per_request": 8192}
    with running(repository, **options) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Service:
    shared.until_ready()
    return shared


def loop(module: FNO, fields: np.ndarray[Any, Any], steps: int) -> list[np.ndarray[Any, Any]]:
    x, frames = torch.tensor(fields), []
    with torch.inference_mode():
        for _ in range(steps):
            x = module(x)
            frames.append(x.numpy())
    return frames


def noise(*shape: int) -> np.ndarray[Any, Any]:
    return generator().standard_normal(shape).astype(np.float32)


def close(found: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> bool:
    # Each step rounds by about 1e-7, and the errors accumulate.
    return bool(np.linalg.norm(found - truth) <= 1e-4 * np.linalg.norm(truth))


def ended(service: Service, outcome: str) -> float:
    return service.total("turbofno_rollouts_ended_total", outcome=outcome)


def test_rollouts_of_both_front_ends_are_loops_over_the_module(
    service: Service, module: FNO
) -> None:
    # Includes frames over 1 MiB, and more frames than the ring has entries.
    jobs = [(1, 24, 40, 1), (3, 64, 7, 3), (2, 16, 600, 1), (6000, 64, 3, 1), (1, 8, 50, 0)]
    jobs += [(int(n), 16, 30, 4) for n in generator().integers(1, 20, 6)]

    async def run(n: int, grid: int, steps: int, every: int) -> None:
        fields = noise(n, 1, grid)
        # Every client has its own connection, so both front ends get some of them.
        async with AsyncClient(service.url) as client:
            wanted: Any = every or "last"
            found = [
                frame async for frame in client.rollout("tiny-flow", fields, steps, frames=wanted)
            ]
        expected = loop(module, fields, steps)
        given = [s for s in range(1, steps + 1) if s == steps or (every and s % every == 0)]
        assert [frame.step for frame in found] == given
        assert all(close(frame.fields, expected[frame.step - 1]) for frame in found)

    async def main() -> None:
        await asyncio.gather(*(run(*job) for job in jobs))

    asyncio.run(main())
    everything_is_given_back(service)


def test_whole_answers_hold_more_frames_than_the_ring(service: Service, module: FNO) -> None:
    fields = noise(2000, 1, 64)
    with service.client() as client:
        answer = client.post(PATH + "?steps=12", content=as_npy(fields), headers=NPY)
    assert answer.status_code == 200, answer.text
    frames = np.load(io.BytesIO(answer.content))
    assert frames.shape == (12, 2000, 1, 64)
    for frame, truth in zip(frames, loop(module, fields, 12), strict=True):
        assert close(frame, truth)
    everything_is_given_back(service)


def test_a_client_that_leaves_ends_its_rollout_and_frees_its_slots(service: Service) -> None:
    before = ended(service, "left")
    with Client(service.url) as client:
        for frames in (1, 100):
            stream = client.rollout("tiny-flow", noise(1, 1, 24), ENDLESS, frames=frames)
            next(stream)
            stream.close()
    body = as_npy(noise(1, 1, 24))
    # The first got only progress, the second waits for its whole answer.
    for accept in ("application/vnd.turbofno.frames", "application/x-npy"):
        with service.connect() as connection:
            head = (
                f"POST {PATH}?steps={ENDLESS}&frames=last HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
                f"Content-Type: application/x-npy\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            time.sleep(0.2)
    until(lambda: ended(service, "left") == before + 4, 10)
    everything_is_given_back(service)


def test_who_does_not_read_makes_the_engine_wait(service: Service) -> None:
    def steps() -> float:
        return service.total("turbofno_rollout_steps_total")

    with Client(service.url) as client:
        stream = client.rollout("tiny-flow", noise(64, 1, 64), ENDLESS)
        next(stream)

        def stands_still() -> bool:
            before = steps()
            time.sleep(0.5)
            return steps() == before

        until(stands_still, 20)
        # Others continue meanwhile.
        other = list(client.rollout("tiny-flow", noise(1, 1, 24), 20))
        assert len(other) == 20
        stopped = steps()
        for _ in range(2000):
            next(stream)
        assert steps() > stopped
        stream.close()
    everything_is_given_back(service)


def test_a_blow_up_keeps_its_step_and_reason(service: Service, burst: Burst) -> None:
    with Client(service.url) as client:
        steps = []
        with pytest.raises(BlowUp) as caught:  # noqa: PT012 - the frames before count
            for frame in client.rollout("burst", burst.fields, 12):
                steps.append(frame.step)
    assert (caught.value.step, caught.value.reason) == (burst.step, "energy")
    assert steps == list(range(1, burst.step))
    everything_is_given_back(service)


def test_a_killed_engine_ends_streams_with_a_reason_to_retry_and_they_can_be_resumed(
    service: Service, module: FNO
) -> None:
    fields = noise(1, 1, 24)
    before = ended(service, "failed")
    with Client(service.url) as client:
        stream = client.rollout("tiny-flow", fields, ENDLESS)
        last = next(stream)
        os.kill(service.pids()["engine-0"], signal.SIGKILL)
        with pytest.raises(ServerError, match=r"started again; retry"):  # noqa: PT012 - as above
            for frame in stream:
                last = frame
        service.until_ready()
        assert ended(service, "failed") == before + 1
        rest = list(
            client.rollout("tiny-flow", last.fields, last.step + 9, start=last.step, frames="last")
        )
        assert [frame.step for frame in rest] == [last.step + 9]
        assert close(rest[0].fields, loop(module, last.fields, 9)[-1])
    everything_is_given_back(service)


def test_a_killed_front_end_ends_its_rollouts_in_the_engine(service: Service) -> None:
    before = ended(service, "left")
    with ExitStack() as clients:
        streams = []
        for _ in range(6):
            client = clients.enter_context(Client(service.url))
            streams.append(client.rollout("tiny-flow", noise(1, 1, 24), ENDLESS, frames=1000))
            next(streams[-1])
        pids = [pid for name, pid in service.pids().items() if name.startswith("frontend")]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(ConnectionFailed):
                list(stream)
    service.until_ready()
    until(lambda: ended(service, "left") == before + 6, 10)
    everything_is_given_back(service)


def test_an_unload_waits_for_its_rollouts(service: Service) -> None:
    with Client(service.url) as client:
        stream = client.rollout("tiny-flow", noise(1, 1, 24), 400)
        next(stream)
        assert service.post("/v2/repository/models/tiny-flow/unload").status_code == 200
        assert len(list(stream)) == 399
    assert service.post("/v2/repository/models/tiny-flow/load").status_code == 200


def test_a_drain_that_ends_tells_the_stream(repository: Path) -> None:
    with running(repository, drain_seconds=1, max_rollout_steps=ENDLESS) as service:
        service.until_ready()
        with Client(service.url) as client:
            stream = client.rollout("tiny-flow", noise(1, 1, 24), ENDLESS, frames=1000)
            next(stream)
            service.process.terminate()
            with pytest.raises(ServerError, match="stopped"):
                list(stream)
        assert service.process.wait(20) == 0
