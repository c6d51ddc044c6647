"""Several processes: exactly one right answer for each request, even if processes die or hang."""

from __future__ import annotations

import io
import os
import random
import select
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.clock import within
from tests.draws import generator
from tests.service.processes.running import (
    Service,
    as_npy,
    everything_is_given_back,
    running,
    until,
)
from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import load_model, save_model
from turbofno.models.core.fno import FNO
from turbofno.models.core.regrid import at_points, band_limited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

pytestmark = pytest.mark.timeout(150)

HANG_SECONDS = 2.5
_TINY = tiny_config("tiny-finer")
FINER = _TINY.model_copy(
    update={"architecture": _TINY.architecture.model_copy(update={"resolution_scaling": ((2.0,),)})}
)
"""Its layer doubles the points."""
SHARED = 4 * 2**20


@pytest.fixture(scope="module")
def modules() -> dict[str, FNO]:
    """The modules of `repository`'s models, in this process."""
    return {}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, modules: dict[str, FNO]) -> Path:
    root = tmp_path_factory.mktemp("zoo")
    modules["tiny-1d"] = save_tiny(root)
    modules["tiny-2d"] = save_tiny(root, "tiny-2d", n_dim=2)
    save_model(root / "tiny-finer", FINER, FNO(FINER.architecture).eval())
    return root


@pytest.fixture(scope="module")
def shared(repository: Path) -> Iterator[Service]:
    with running(
        repository,
        hang_seconds=HANG_SECONDS,
        max_body_bytes=2**20,
        max_json_bytes=2**20,
        shared_memory_bytes=SHARED,
        model_limits="tiny-finer bytes=100000",
    ) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Service:
    shared.until_ready()
    return shared


def random_fields(model: str, n: int | None = None) -> Array:
    grid = [random.randint(8, 64) for _ in range(1 if model == "tiny-1d" else 2)]
    return generator().standard_normal((n or random.randint(1, 6), 1, *grid), np.float32)


def by_npy(client: httpx.Client, model: str, fields: Array) -> tuple[httpx.Response, Any]:
    answer = client.post(
        f"/v1/models/{model}:predict",
        content=as_npy(fields),
        headers={"Content-Type": "application/x-npy"},
    )
    return answer, lambda: np.load(io.BytesIO(answer.content))


def by_chunks(client: httpx.Client, model: str, fields: Array) -> tuple[httpx.Response, Any]:
    body = as_npy(fields)
    cut = random.randrange(len(body))
    answer = client.post(
        f"/v1/models/{model}:predict",
        content=iter([body[:cut], body[cut:]]),
        headers={"Content-Type": "application/x-npy"},
    )
    return answer, lambda: np.load(io.BytesIO(answer.content))


def by_safetensors(client: httpx.Client, model: str, fields: Array) -> tuple[httpx.Response, Any]:
    answer = client.post(
        f"/v1/models/{model}:predict",
        content=safetensors.numpy.save({"input": fields}),
        headers={"Content-Type": "application/vnd.safetensors"},
    )
    return answer, lambda: safetensors.numpy.load(answer.content)["output"]


def by_json(client: httpx.Client, model: str, fields: Array) -> tuple[httpx.Response, Any]:
    answer = client.post(f"/v1/models/{model}:predict", json={"inputs": {"input": fields.tolist()}})
    return answer, lambda: np.array(answer.json()["outputs"]["output"], np.float32)


def by_oip(client: httpx.Client, model: str, fields: Array) -> tuple[httpx.Response, Any]:
    data = fields.astype("<f8")
    head = (
        '{"parameters": {"binary_data_output": true}, "inputs": [{"name": "input", "datatype": "FP64", '
        f'"shape": {list(fields.shape)}, "parameters": {{"binary_data_size": {data.nbytes}}}}}]}}'
    ).encode()
    answer = client.post(
        f"/v2/models/{model}/infer",
        content=head + data.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )

    def values() -> Array:
        start = int(answer.headers["Inference-Header-Content-Length"])
        shape = (len(fields), 2, *fields.shape[2:])
        return np.frombuffer(answer.content[start:], "<f4").reshape(shape)

    return answer, values


def by_vjp(client: httpx.Client, model: str, fields: Array) -> tuple[httpx.Response, Any]:
    cotangent = np.ones((len(fields), 2, *fields.shape[2:]), np.float32)
    answer = client.post(
        f"/v1/models/{model}:vjp?output=true",
        content=safetensors.numpy.save({"input": fields, "cotangent": cotangent}),
        headers={"Content-Type": "application/vnd.safetensors"},
    )
    return answer, lambda: safetensors.numpy.load(answer.content)["output"]


WAYS = (by_npy, by_chunks, by_safetensors, by_json, by_oip, by_vjp)


def expected(module: FNO, fields: Array) -> Array:
    with torch.inference_mode():
        return module(torch.from_numpy(fields)).numpy()


def is_right(answer: Array, truth: Array) -> bool:
    return answer.shape == truth.shape and bool(
        np.linalg.norm(answer - truth) <= 1e-5 * np.linalg.norm(truth)
    )


class Load:
    """Clients that send requests continuously, count outcomes, and keep wrong answers and unexpected refusals."""

    def __init__(self, service: Service, modules: dict[str, FNO], clients: int = 6) -> None:
        self.outcomes: Counter[str] = Counter()
        self.odd: list[str] = []
        self.slowest = 0.0
        self._stop = threading.Event()
        self._work = (service, modules)
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads), "a request hangs"

    def _run(self) -> None:
        service, modules = self._work
        client = service.client()
        while not self._stop.is_set():
            model = random.choice(list(modules))
            fields = random_fields(model)
            started = time.monotonic()
            try:
                response, values = random.choice(WAYS)(client, model, fields)
            except httpx.TransportError as error:
                self.outcomes[type(error).__name__] += 1
                client.close()
                client = service.client()
                time.sleep(0.02)
                continue
            finally:
                self.slowest = max(self.slowest, time.monotonic() - started)
            self.outcomes[str(response.status_code)] += 1
            if response.status_code == 200:
                if not is_right(values(), expected(modules[model], fields)):
                    self.odd.append(f"wrong answer for {model} {fields.shape}")
            elif response.status_code != 503 or "Retry-After" not in response.headers:
                self.odd.append(f"{response.status_code}: {response.text}")
            else:
                time.sleep(0.1)
        client.close()


def descriptors(service: Service) -> dict[str, int]:
    return {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in service.pids().items()}


def attached(pid: int) -> int:
    """Number of front ends' memories that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum("memfd:turbofno" in line for line in maps)


def test_a_thousand_mixed_requests_are_all_answered_right(
    service: Service, modules: dict[str, FNO]
) -> None:
    def answered() -> float:
        return sum(
            service.total("turbofno_requests_total", code="200", model=model) for model in modules
        )

    with ExitStack() as closing:
        clients = [closing.enter_context(service.client()) for _ in range(8)]

        def ask(number: int) -> str:
            model = random.choice(list(modules))
            fields = random_fields(model)
            response, values = random.choice(WAYS)(clients[number % 8], model, fields)
            if response.status_code != 200:
                return f"{response.status_code} {response.text}"
            return "" if is_right(values(), expected(modules[model], fields)) else "wrong answer"

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(100)))
            everything_is_given_back(service)
            before, attached_before = descriptors(service), attached(service.pids()["engine-0"])
            answered_before = answered()
            outcomes = Counter(pool.map(ask, range(1000)))
        assert outcomes == {"": 1000}
        everything_is_given_back(service)
        assert answered() - answered_before == 1000, "over both front ends"
        assert attached(service.pids()["engine-0"]) == attached_before == 2
    until(
        lambda: all(count <= before[name] for name, count in descriptors(service).items()),
        5,
        what=lambda: f"{before} -> {descriptors(service)}",
    )


def test_answers_on_other_grids_are_right_and_warned_of(
    service: Service, modules: dict[str, FNO]
) -> None:
    fields, grid = random_fields("tiny-2d"), (random.randint(8, 64), random.randint(8, 64))
    before = service.total("turbofno_prediction_warnings_total", model="tiny-2d", reason="grid")
    with service.client() as client:
        answer = client.post(
            f"/v1/models/tiny-2d:predict?output_grid={grid[0]},{grid[1]}",
            content=as_npy(fields),
            headers={"Content-Type": "application/x-npy"},
        )
    inside = expected(modules["tiny-2d"], band_limited(fields, (16, 16), "periodic"))
    assert is_right(np.load(io.BytesIO(answer.content)), at_points(inside, grid, "periodic"))
    off = (*fields.shape[2:], *grid) != (16, 16, 16, 16)
    assert ("X-Warning" in answer.headers) == off
    after = service.total("turbofno_prediction_warnings_total", model="tiny-2d", reason="grid")
    assert after - before == off


def test_a_model_that_changes_the_resolution_answers_on_its_own_grid(
    service: Service, repository: Path
) -> None:
    fields = generator().standard_normal((3, 1, 15), np.float32)
    truth = expected(load_model(repository / "tiny-finer").module, fields)
    assert truth.shape == (3, 2, 30)
    with service.client() as client:
        for way in (by_npy, by_json, by_safetensors):
            answer, values = way(client, "tiny-finer", fields)
            assert answer.status_code == 200, answer.text
            assert is_right(values(), truth)


def test_front_ends_agree_on_models_and_counters(service: Service) -> None:
    def answers(path: str) -> set[str]:
        return {service.get(path).text for _ in range(12)}

    assert len(answers("/v1/models")) == 1
    assert len(answers("/v2/models/stats")) == 1
    assert service.post("/v2/repository/models/tiny-2d/unload").status_code == 200
    until(lambda: len(answers("/v1/models")) == 1, 2)
    for _ in range(8):
        refused = service.get("/v2/models/tiny-2d")
        assert (refused.status_code, "unloaded" in refused.text) == (503, True)
    assert service.post("/v2/repository/models/tiny-2d/load").status_code == 200
    assert service.post("/v2/repository/models/nothing/load").status_code == 404
    until(lambda: len(answers("/v1/models")) == 1, 2)
    assert [model["state"] for model in service.get("/v1/models").json()["models"]] == ["READY"] * 3


def test_every_front_end_refuses_foreign_hosts_and_pages(service: Service) -> None:
    unload = "/v2/repository/models/tiny-2d/unload"
    headers = (
        ({"Host": "attacker.example"}, 421),
        ({"Origin": "http://attacker.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    )
    for _ in range(20):
        # Each on its own connection, so that the kernel distributes them over the front ends.
        for sent, status in headers:
            answer = httpx.post(service.url + unload, headers=sent, content=b"{}", verify=False)
            assert answer.status_code == status
    assert service.get("/v2/models/tiny-2d/ready").status_code == 200


def test_reloads_under_load_fail_nothing(service: Service, modules: dict[str, FNO]) -> None:
    with Load(service, modules, clients=4) as load:
        for _ in range(5):
            time.sleep(0.1)
            answer = service.post("/v2/repository/models/tiny-1d/load")
            assert answer.status_code == 200
    assert not load.odd
    assert set(load.outcomes) == {"200"}


def kill_under_load(
    service: Service, modules: dict[str, FNO], name: str, number: signal.Signals
) -> Load:
    pid = service.pids()[name]
    with Load(service, modules) as load:
        time.sleep(0.5)
        os.kill(pid, number)
        until(lambda: service.pids().get(name, pid) != pid, 40)
        service.until_ready()
        time.sleep(0.3)
    assert not load.odd
    assert load.outcomes["200"] > 20
    everything_is_given_back(service)
    assert attached(service.pids()["engine-0"]) == 2
    return load


def test_the_end_of_the_fork_server_disturbs_nothing(
    service: Service, modules: dict[str, FNO]
) -> None:
    before = service.children()
    with Load(service, modules) as load:
        os.kill(before["fork-server"], signal.SIGKILL)
        until(lambda: "fork-server" not in service.children(), 5)
        time.sleep(0.3)
    assert not load.odd
    assert set(load.outcomes) == {"200"}
    assert service.pids().items() == {*before.items()} - {("fork-server", before["fork-server"])}
    kill_under_load(service, modules, "frontend-0", signal.SIGKILL)
    assert service.children()["fork-server"] != before["fork-server"]


def test_killed_engine_costs_503s_that_may_be_retried_and_nothing_more(
    service: Service, modules: dict[str, FNO]
) -> None:
    load = kill_under_load(service, modules, "engine-0", signal.SIGKILL)
    assert set(load.outcomes) == {"200", "503"}


def test_hung_engine_is_replaced_and_nothing_hangs_with_it(
    service: Service, modules: dict[str, FNO]
) -> None:
    load = kill_under_load(service, modules, "engine-0", signal.SIGSTOP)
    assert set(load.outcomes) == {"200", "503"}
    within(load.slowest, HANG_SECONDS + 3)


def test_killed_front_end_costs_its_own_connections_and_no_counts(
    service: Service, modules: dict[str, FNO]
) -> None:
    before = service.total("turbofno_requests_total")
    load = kill_under_load(service, modules, "frontend-1", signal.SIGKILL)
    lost = sum(load.outcomes[name] for name in load.outcomes if not name.isdecimal())
    assert lost <= 6 * 2, load.outcomes
    assert load.outcomes["503"] == 0
    assert service.total("turbofno_requests_total") > before


def test_hung_front_end_is_replaced(service: Service, modules: dict[str, FNO]) -> None:
    load = kill_under_load(service, modules, "frontend-0", signal.SIGSTOP)
    within(load.slowest, HANG_SECONDS + 3)


def npy_request(body: bytes, model: str = "tiny-2d") -> bytes:
    head = (
        f"POST /v1/models/{model}:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_full_shared_memory_is_refused_at_once_and_the_rest_is_answered(service: Service) -> None:
    # 240 KiB, with an answer of 480 KiB.
    request = npy_request(as_npy(np.zeros((15, 1, 64, 64), np.float32)))
    engine = service.pids()["engine-0"]
    with ExitStack() as closing:
        connections = [closing.enter_context(service.connect()) for _ in range(24)]
        os.kill(engine, signal.SIGSTOP)
        try:
            for connection in connections:
                connection.sendall(request)
            time.sleep(0.5)
            at_once = select.select(connections, [], [], 0)[0]
        finally:
            os.kill(engine, signal.SIGCONT)
        heads = {connection: connection.recv(65536) for connection in connections}
    statuses = {connection: int(head.split()[1]) for connection, head in heads.items()}
    assert {statuses[connection] for connection in at_once} == {503}
    assert all(b"retry-after: 1" in heads[connection].lower() for connection in at_once)
    assert all(b"SHARED_MEMORY_BYTES" in heads[connection] for connection in at_once)
    served = [connection for connection in connections if statuses[connection] == 200]
    assert 1 <= len(served) <= 2 * SHARED // 720_000
    assert len(served) + len(at_once) == 24
    everything_is_given_back(service)


def test_clients_that_leave_give_their_slots_back(service: Service) -> None:
    request = npy_request(as_npy(np.zeros((8, 1, 64, 64), np.float32)))
    for cut in (len(request), len(request) - 1, 1000):
        for _ in range(8):
            with service.connect() as connection:
                connection.sendall(request[:cut])
    everything_is_given_back(service)
    assert service.pids().keys() == {"engine-0", "frontend-0", "frontend-1"}


def test_announced_bodies_that_do_not_come_take_no_shared_memory(service: Service) -> None:
    request = npy_request(as_npy(np.zeros((60, 1, 64, 64), np.float32)))
    with ExitStack() as connections:
        for _ in range(40):  # 37 MiB announced; there are 8 MiB
            connection = connections.enter_context(service.connect())
            connection.sendall(request[:2000])
        assert service.total("turbofno_shared_memory_bytes") == 0
        fields = np.zeros((1, 1, 16, 16), np.float32)
        with service.client() as client:
            assert by_npy(client, "tiny-2d", fields)[0].status_code == 200


def test_a_limit_of_bytes_is_for_all_front_ends_together(service: Service) -> None:
    fields = np.zeros((1, 1, 16), np.float32)
    request = npy_request(as_npy(np.zeros((350, 1, 64), np.float32)), "tiny-finer")
    with service.connect() as connection:
        connection.sendall(request[:80_000])
        until(lambda: service.total("turbofno_inflight_bytes") > 70_000, 10)
        for _ in range(8):
            # On connections of their own, each of which the kernel gives to a front end by chance.
            with service.client() as client:
                answer = by_npy(client, "tiny-finer", np.zeros((160, 1, 64), np.float32))[0]
                assert answer.status_code == 429
                assert "requests of model 'tiny-finer' hold " in answer.json()["detail"]
                assert by_npy(client, "tiny-finer", fields)[0].status_code == 200
    everything_is_given_back(service)


def test_gradients_are_right_and_refused_as_in_one_process(
    service: Service, modules: dict[str, FNO]
) -> None:
    with service.client() as client:
        for model, module in modules.items():
            fields = random_fields(model, 3)
            cotangent = generator().standard_normal((3, 2, *fields.shape[2:]))
            body = safetensors.numpy.save({"input": fields, "cotangent": cotangent})
            headers = {"Content-Type": "application/vnd.safetensors"}
            answer = client.post(f"/v1/models/{model}:vjp", content=body, headers=headers)
            assert answer.status_code == 200, answer.text
            x = torch.tensor(fields, requires_grad=True)
            (truth,) = torch.autograd.grad(module(x), x, torch.tensor(cotangent).float())
            assert is_right(safetensors.numpy.load(answer.content)["gradient"], truth.numpy())
        grid = [65] if "1d" in model else [65, 65]
        inputs = {"input": np.zeros((1, *grid)), "cotangent": np.zeros((2, *grid))}
        answer = client.post(
            f"/v1/models/{model}:vjp", content=safetensors.numpy.save(inputs), headers=headers
        )
        assert answer.status_code == 422
    everything_is_given_back(service)


def test_a_pause_of_everything_kills_nothing(service: Service) -> None:
    pids = service.pids()
    everyone = [service.process.pid, *pids.values()]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(HANG_SECONDS + 0.5)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1)
    service.until_ready()
    assert service.pids() == pids


def test_per_process_metrics_are_labelled(service: Service) -> None:
    samples = service.metrics()
    memory = [labels for name, labels, _ in samples if name == "process_resident_memory_bytes"]
    assert sorted(one["process"] for one in memory) == ["engine-0", "frontend-0", "frontend-1"]
    assert not any("process" in labels for name, labels, _ in samples if "requests" in name)
    assert {value for name, _, value in samples if name == "turbofno_model_loaded"} == {1.0}
    (total,) = {value for name, _, value in samples if name == "turbofno_build_info"}
    assert total == 1
    assert len(samples) == len(
        {(name, tuple(sorted(labels.items()))) for name, labels, _ in samples}
    )
