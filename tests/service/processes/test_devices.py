"""Engines on GPUs answer right for the zoo's models; a killed one costs only retries."""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

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
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS
from turbofno_ops import native_status

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.timeout(150)

FRONTENDS = 2
_COUNT = torch.cuda.device_count()
DEVICES = [
    pytest.param("0", marks=pytest.mark.skipif(_COUNT < 1, reason="needs a CUDA device")),
    pytest.param("0,1", marks=pytest.mark.skipif(_COUNT < 2, reason="needs two CUDA devices")),
]


class Asked:
    """Inputs of the zoo's models, one to twelve fields each, and their answers; some large enough for zero-copy."""

    def __init__(self) -> None:
        rng = generator()
        self.requests: list[tuple[str, bytes, Any]] = []
        for problem in PROBLEMS.values():
            module = load_model(TRAINED / problem.name).module
            drawn = problem.sample(range(2), seed=int(rng.integers(1000, 4096))).unsqueeze(1)
            inputs = [
                drawn[torch.from_numpy(rng.integers(0, len(drawn), n))] for n in (1, 3, 7, 12)
            ]
            if problem.name == "navier-stokes-2d":
                inputs += [torch.randn(n, 1, 128, 128) for n in (8, 16)]
            for fields in inputs:
                with torch.inference_mode():
                    truth = module(fields).numpy()
                self.requests.append((problem.name, as_npy(fields.numpy()), truth))

    def outcome(self, service: Service, number: int) -> str:
        """The result of one request: "right", "wrong" or its status."""
        model, body, truth = self.requests[number % len(self.requests)]
        with service.client() as client:
            answer = client.post(
                f"/v1/models/{model}:predict",
                content=body,
                headers={"Content-Type": "application/x-npy"},
            )
        if answer.status_code != 200:
            return str(answer.status_code)
        found = np.load(io.BytesIO(answer.content))
        error = np.linalg.norm(found - truth) / np.linalg.norm(truth)
        return "right" if error < 1e-4 and "X-Trust-Input-Distance" in answer.headers else "wrong"


@pytest.mark.parametrize("devices", DEVICES)
def test_zoo_models_on_gpus_with_an_engine_killed_under_load(devices: str) -> None:
    engines = devices.count(",") + 1
    processes = FRONTENDS + engines
    asked = Asked()
    names = [f"engine-{i}" for i in range(engines)]
    with (
        running(TRAINED, devices=devices, frontends=FRONTENDS) as service,
        ThreadPoolExecutor(16) as pool,
    ):
        service.until_ready(100, processes=processes)
        idle = {name: cpu_seconds(service, name) for name in names}
        outcomes = Counter(pool.map(lambda i: asked.outcome(service, i), range(200)))
        assert outcomes == {"right": 200}
        for name in names:
            taken = service.total(
                "turbofno_device_memory_bytes", process=name, kind="peak_allocated"
            )
            assert taken > 0, name
            assert cpu_seconds(service, name) - idle[name] > 0.1, f"{name} ran no batches"
        backends = {
            labels["backend"]
            for name, labels, _ in service.metrics()
            if name == "turbofno_backend_batches_total"
        }
        assert backends == {"cuda" if native_status().loaded else "gemm"}

        victim = service.pids()[names[-1]]
        running_slices = [pool.submit(asked.outcome, service, i) for i in range(100)]
        os.kill(victim, signal.SIGKILL)
        running_slices += [pool.submit(asked.outcome, service, i) for i in range(100)]
        outcomes = Counter(one.result(60) for one in running_slices)
        assert outcomes.keys() <= {"right", "503"}
        if engines > 1:
            assert outcomes["right"] > 100, "the other engine goes on"
        until(lambda: service.pids().get(names[-1], victim) != victim, 30)
        service.until_ready(100, processes=processes)
        outcomes = Counter(pool.map(lambda i: asked.outcome(service, i), range(60)))
        assert outcomes == {"right": 60}
        everything_is_given_back(service)


def cpu_seconds(service: Service, process: str) -> float:
    return service.total("process_cpu_seconds_total", process=process)
