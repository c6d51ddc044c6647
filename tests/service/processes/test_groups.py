"""An engine of several devices: the answers of one, a lost rank costs only retries, and nothing is left behind.

On CPUs by gloo, always; on two GPUs by NCCL, where there are two.
"""

from __future__ import annotations

import io
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.draws import generator
from tests.service.processes.running import (
    Service,
    as_npy,
    everything_is_given_back,
    running,
    until,
)
from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.config import Channel, GridSpec
from turbofno.models.core.fno import FNO
from turbofno.models.core.statistics import ChannelStatistics, Statistics
from turbofno_client import BlowUp, Client
from turbofno_ops import native_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

pytestmark = [
    pytest.mark.timeout(170),
    # The tiny models were never evaluated, so answers carry a warning.
    pytest.mark.filterwarnings("ignore::turbofno_client.PredictionWarning"),
]

HANG_SECONDS = 5.0
NPY = {"Content-Type": "application/x-npy"}
_ON_GPUS = torch.cuda.device_count() >= 2 and native_status().loaded
GROUPS = [
    "cpu+cpu",
    pytest.param(
        "0+1", marks=pytest.mark.skipif(not _ON_GPUS, reason="needs two CUDA devices and kernels")
    ),
]


class Models:
    """A repository, and the modules of its models in float64."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, FNO] = {}
        torch.manual_seed(5)
        self._cut("cut-2d", 2)
        self._cut("cut-3d", 3)
        self._cut("flow", 2, reach=1e6)
        self._cut("flow-of-two", 2, reach=1e6, past=2)
        self._cut("burst", 2, reach=1e-3)
        self.modules["whole"] = save_tiny(root, "whole", n_dim=2)
        self._cut("loud", 2, gain=1e30)

    def _cut(
        self,
        name: str,
        n_dim: int,
        *,
        reach: float | None = None,
        gain: float = 1.0,
        past: int = 1,
    ) -> None:
        """A model whose fields are cut; with `reach` a rollable one of `past` states, trained on values of at most that."""
        config = tiny_config(name, n_dim=n_dim)
        arch = config.architecture.model_copy(update={"hidden_channels": 8, "n_layers": 2})
        grid = GridSpec(
            training=(18, 16, 16)[:n_dim],
            minimum=(8,) * n_dim,
            maximum=(128,) * n_dim,
            extent=(1.0,) * n_dim,
            boundary="periodic",
        )
        update: dict[str, Any] = {"slabs": True, "grid": grid}
        if reach is not None:
            channel = ChannelStatistics(mean=0.0, std=1.0, minimum=-reach, maximum=reach)
            update |= {
                "inputs": tuple(Channel(name=f"u{i}") for i in reversed(range(past))),
                "outputs": config.inputs,
                "time_step": 0.5,
                "past_steps": past,
                "statistics": Statistics(n_samples=1, inputs=(channel,) * past, outputs=(channel,)),
            }
            arch = arch.model_copy(update={"in_channels": past, "out_channels": 1})
        module = FNO(arch).eval()
        with torch.no_grad():
            module.projection.linears[-1].weight.mul_(gain)
        save_model(
            self.root / name, config.model_copy(update=update | {"architecture": arch}), module
        )
        self.modules[name] = module

    def truth(self, model: str, fields: Array) -> NDArray[np.float64]:
        module = self.modules[model].double()
        with torch.inference_mode():
            return module(torch.from_numpy(fields).double()).numpy()

    def asked(self, service: Service, model: str, fields: Array) -> str:
        """The result of a request: "right", "wrong" or its status."""
        with service.client() as client:
            answer = client.post(f"/v1/models/{model}:predict", content=as_npy(fields), headers=NPY)
        if answer.status_code != 200:
            explained = "Retry-After" in answer.headers and "service stopped" not in answer.text
            told = "" if explained else f" {answer.text}"
            return f"{answer.status_code}{told}"
        found = np.load(io.BytesIO(answer.content))
        truth = self.truth(model, fields)
        fits = found.shape == truth.shape
        return "right" if fits and error(found, truth) < 1e-5 else "wrong"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module", params=GROUPS)
def shared(request: pytest.FixtureRequest, models: Models) -> Iterator[Service]:
    options = {"hang_seconds": HANG_SECONDS, "max_batch_size": 8}
    with running(models.root, devices=request.param, **options) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Service:
    shared.until_ready(90)
    return shared


def error(found: NDArray[Any], truth: NDArray[Any]) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def noise(*shape: int) -> Array:
    return generator().standard_normal(shape).astype(np.float32)


KILL_THE_FIRST_RANK_1 = """
import os
from turbofno.service.processes import slab_follower
def run(launch, connection, unbroken=slab_follower.run):
    if launch.generation == 1:
        if JOINS:
            connection.send_bytes(b"ready")
        os.kill(os.getpid(), 9)
    return unbroken(launch, connection)
slab_follower.run = run
"""


def rank_of(service: Service, engine: str = "engine-0") -> int:
    """Process id of an engine's second rank."""
    children = Path(f"/proc/{service.pids()[engine]}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    (rank,) = (pid for pid in pids if "-rank-1" in Path(f"/proc/{pid}/comm").read_text())
    return rank


def gone(pid: int) -> bool:
    """True if a process has ended, perhaps unnoticed by its parent."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def memories(pid: int) -> int:
    """Number of front ends' memories that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("memfd:turbofno" in line for line in maps)


@contextmanager
def until_replaced(service: Service, engine: str = "engine-0", **ready: int) -> Iterator[None]:
    """The engine and its second rank are other processes at the end, and the old ones are gone."""
    old, rank = service.pids()[engine], rank_of(service, engine)
    yield
    until(lambda: service.pids().get(engine, old) != old, 40, what=lambda: "".join(service.log))
    until(lambda: gone(old) and gone(rank), 10)
    service.until_ready(90, **ready)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("cut-2d", (1, 1, 18, 16)),
        ("cut-2d", (5, 1, 33, 21)),
        ("cut-2d", (11, 1, 64, 64)),
        ("cut-3d", (2, 1, 21, 12, 10)),
        ("whole", (3, 1, 17, 20)),
    ],
)
def test_cut_fields_are_answered_as_by_one_device(
    service: Service, models: Models, model: str, shape: tuple[int, ...]
) -> None:
    assert models.asked(service, model, noise(*shape)) == "right"


def test_a_request_in_json_is_cut_too(service: Service, models: Models) -> None:
    fields = noise(2, 1, 18, 16)
    body = {"inputs": {"input": fields.tolist()}}
    with service.client() as client:
        answer = client.post("/v1/models/cut-2d:predict", json=body)
    found = np.array(answer.json()["outputs"]["output"])
    assert error(found, models.truth("cut-2d", fields)) < 1e-5


def test_a_model_says_if_its_fields_are_cut_and_metrics_name_group_and_rank(
    service: Service, models: Models
) -> None:
    cut, whole = (service.get(f"/v1/models/{name}").json() for name in ("cut-2d", "whole"))
    assert cut["execution"] == "slabs"
    assert not cut["execution_reason"]
    assert whole["execution"] != "slabs"
    assert "alone: " in whole["execution_reason"]
    for rank in "01":
        labels = {"group": "engine-0", "rank": rank}
        before = service.total("turbofno_rank_seconds_total", **labels)
        assert models.asked(service, "cut-2d", noise(3, 1, 30, 30)) == "right"
        assert service.total("turbofno_rank_seconds_total", **labels) > before
        assert service.total("turbofno_rank_memory_bytes", **labels) > 0


@pytest.mark.parametrize(("model", "past"), [("flow", 1), ("flow-of-two", 2)])
def test_a_rollout_is_the_loop_over_the_module(
    service: Service, models: Models, model: str, past: int
) -> None:
    # More fields than a batch has.
    fields = noise(11, past, 25, 20)
    states, frames = fields.astype(np.float64), []
    module = models.modules[model].double()
    for _ in range(9):
        with torch.inference_mode():
            frames.append(module(torch.from_numpy(states)).numpy())
        states = np.concatenate((states, frames[-1]), axis=1)[:, -past:]
    with Client(service.url) as client:
        found = {
            frame.step: frame.fields for frame in client.rollout(model, fields, steps=9, frames=2)
        }
    assert sorted(found) == [2, 4, 6, 8, 9]
    for step, frame in found.items():
        # Each step rounds by about 1e-7, and the errors accumulate.
        assert error(frame, frames[step - 1]) < 1e-4
    everything_is_given_back(service)


def test_a_blow_up_is_found_over_all_slabs(service: Service) -> None:
    fields = np.zeros((2, 1, 24, 16), np.float32)
    # Only in the rows of the second rank, and only in the second field.
    fields[1, 0, 20] = 1e3
    with Client(service.url) as client, pytest.raises(BlowUp, match=r"field . .*step 1\b"):
        list(client.rollout("burst", fields, steps=3))


def test_values_that_are_not_finite_are_refused_wherever_they_arise(service: Service) -> None:
    fields = np.zeros((2, 1, 24, 16), np.float32)
    # large enough for an answer beyond float32
    fields[1] = 1e20
    with service.client() as client:
        answer = client.post("/v1/models/loud:predict", content=as_npy(fields), headers=NPY)
    assert answer.status_code == 422
    assert "for field 1 of 2" in answer.json()["detail"]


def test_gradients_of_a_model_that_is_cut_run_on_the_first_device(
    service: Service, models: Models
) -> None:
    fields, cotangent = noise(1, 1, 18, 16), noise(1, 2, 18, 16)
    with service.client() as client:
        answer = client.post(
            "/v1/models/cut-2d:vjp",
            content=safetensors.numpy.save({"input": fields, "cotangent": cotangent}),
            headers={"Content-Type": "application/vnd.safetensors"},
        )
    assert answer.status_code == 200, answer.text
    x = torch.from_numpy(fields).double().requires_grad_()
    models.modules["cut-2d"].double()(x).backward(torch.from_numpy(cotangent).double())
    assert x.grad is not None
    found = next(iter(safetensors.numpy.load(answer.content).values()))
    assert error(found, x.grad.numpy()) < 1e-4


def test_models_are_unloaded_and_loaded_on_all_ranks(service: Service, models: Models) -> None:
    fields = noise(2, 1, 20, 20)
    for _ in range(3):
        assert service.post("/v2/repository/models/cut-2d/unload").status_code == 200
        assert models.asked(service, "cut-2d", fields).startswith("503")
        assert service.post("/v2/repository/models/cut-2d/load").status_code == 200
        until(lambda: service.get("/readyz").status_code == 200, 10)
        assert models.asked(service, "cut-2d", fields) == "right"


def test_a_front_end_that_dies_is_unmapped_by_all_ranks(service: Service, models: Models) -> None:
    rank = rank_of(service)
    until(lambda: memories(rank) == 3, 10)
    victim = service.pids()["frontend-0"]
    os.kill(victim, signal.SIGKILL)
    until(lambda: service.pids().get("frontend-0", victim) != victim, 20)
    service.until_ready()
    assert rank_of(service) == rank
    until(
        lambda: memories(rank) == 3,
        10,
        what=lambda: f"{memories(rank)} are mapped, {memories(service.pids()['engine-0'])}",
    )
    outcomes = Counter(models.asked(service, "cut-2d", noise(2, 1, 20, 20)) for _ in range(8))
    assert outcomes == {"right": 8}


@pytest.mark.parametrize("victim", ["rank", "engine"])
def test_a_killed_rank_costs_503s_that_may_be_retried_and_nothing_more(
    service: Service, models: Models, victim: str
) -> None:
    fields = [noise(1, 1, 64, 64), noise(4, 1, 33, 21)]
    asked = [("cut-2d", one) for one in fields] + [("whole", one) for one in fields]
    with ThreadPoolExecutor(6) as pool, until_replaced(service):
        slices = [pool.submit(models.asked, service, *asked[i % 4]) for i in range(40)]
        pid = rank_of(service) if victim == "rank" else service.pids()["engine-0"]
        os.kill(pid, signal.SIGKILL)
        slices += [pool.submit(models.asked, service, *asked[i % 4]) for i in range(40)]
        outcomes = Counter(one.result(60) for one in slices)
        assert outcomes.keys() <= {"right", "503"}
        assert outcomes["503"]
    outcomes = Counter(models.asked(service, *asked[i % 4]) for i in range(8))
    assert outcomes == {"right": 8}
    everything_is_given_back(service)


def test_a_rank_that_hangs_takes_its_group_down(service: Service, models: Models) -> None:
    fields = noise(1, 1, 18, 16)
    assert models.asked(service, "cut-2d", fields) == "right"
    with until_replaced(service):
        os.kill(rank_of(service), signal.SIGSTOP)
        assert models.asked(service, "cut-2d", fields) == "503"
    assert models.asked(service, "cut-2d", fields) == "right"
    everything_is_given_back(service)


def test_another_engine_goes_on_and_nothing_is_left_at_the_end(models: Models) -> None:
    fields = noise(2, 1, 24, 24)
    with running(models.root, devices="cpu+cpu,cpu", frontends=1) as service:
        service.until_ready(90, processes=3)
        with until_replaced(service, processes=3):
            old = service.pids()["engine-0"]
            os.kill(rank_of(service), signal.SIGKILL)
            until(lambda: service.pids().get("engine-0", old) != old, 30)
            # Its successor takes seconds to start.
            until(lambda: models.asked(service, "cut-2d", fields) == "right", 5)
            outcomes = Counter(models.asked(service, "cut-2d", fields) for _ in range(20))
            assert outcomes == {"right": 20}
        left = [*service.pids().values(), rank_of(service)]
        service.process.terminate()
        assert service.process.wait(20) == 0
        until(lambda: all(map(gone, left)), 5)
    assert sum("the group of engine-0 is lost: rank 1 on cpu" in line for line in service.log) == 1


@pytest.mark.parametrize("joins", [False, True])
def test_a_rank_that_is_killed_while_it_starts_costs_another_start(
    joins: bool, models: Models
) -> None:
    fault = f"JOINS = {joins}\n{KILL_THE_FIRST_RANK_1}"
    with running(models.root, devices="cpu+cpu", frontends=1, fault=fault) as service:
        service.until_ready(processes=2)
    why = "the ranks of engine-0 have not joined: rank 1 on cpu ended with status -9"
    assert sum(why in line for line in service.log) == 1


def test_a_device_that_there_is_not_fails_the_start_with_its_reason(models: Models) -> None:
    with running(models.root, devices="0+99") as service:
        assert service.process.wait(60) == 1
    assert any("cannot start" in line and "CUDA device" in line for line in service.log)
