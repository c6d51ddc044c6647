"""Runs the service as several processes, and observes them."""

from __future__ import annotations

import io
import os
import re
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from tests.service.forked import Forked, start
from tests.service.process_log import announced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
_LOADED = re.compile(r"\bloaded model")


@dataclass
class Service:
    process: Forked
    log: list[str] = field(default_factory=list)
    url: str = ""

    def pids(self) -> dict[str, int]:
        """Name, such as engine-0, -> process id of each front end and engine."""
        return {name: pid for name, pid in self.children().items() if name != "fork-server"}

    def children(self) -> dict[str, int]:
        """Those of the supervisor, by name."""
        found = {}
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in map(int, children.split()):
            try:
                found[Path(f"/proc/{pid}/comm").read_text().rstrip()] = pid
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def get(self, path: str) -> httpx.Response:
        # On a new connection; without certificates, whose loading takes longer than the request.
        return httpx.get(self.url + path, timeout=10, verify=False)

    def post(self, path: str, body: bytes = b"") -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return httpx.post(self.url + path, content=body, headers=headers, timeout=20, verify=False)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, verify=False)

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def until_ready(self, seconds: float = 40, *, processes: int = 3) -> None:
        """Wait until all processes are running, every front end is ready and every engine serves all models that one serves."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError("ended: " + "".join(self.log))
            try:
                # The kernel chooses the front end of each.
                if not all(self.get("/readyz").status_code == 200 for _ in range(8)):
                    return False
                metrics = self.metrics()
            except httpx.TransportError:
                return False
            seen = {labels["process"] for name, labels, _ in metrics if "process" in labels}
            names = set(self.pids())
            if seen != names or len(seen) != processes:
                return False
            models = sum(name == "turbofno_model_loaded" for name, *_ in metrics)
            engines = [name for name in names if name.startswith("engine")]
            return all(self.loaded(name) >= models for name in engines)

        until(ready, seconds, what=lambda: "ready: " + "".join(self.log[-20:]))

    def loaded(self, engine: str) -> int:
        """Number of models that an engine has loaded, by the log."""
        return sum(engine in line and bool(_LOADED.search(line)) for line in [*self.log])

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Name, labels, value."""
        found = []
        for line in self.get("/metrics").text.splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                found.append((match[1], labels, float(match[3])))
        return found

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        return sum(
            value
            for sample, have, value in self.metrics()
            if sample == name and labels.items() <= have.items()
        )


def until(
    met: Callable[[], bool], seconds: float, *, what: Callable[[], str] = lambda: "condition"
) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.05)


def as_npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def everything_is_given_back(service: Service) -> None:
    def given_back() -> bool:
        return (
            service.total("turbofno_shared_memory_bytes")
            == service.total("turbofno_inflight_bytes")
            == service.total("turbofno_queue_depth")
            == 0
        )

    until(given_back, 10, what=lambda: service.get("/metrics").text)


@contextmanager
def running(repository: Path, *, fault: str = "", **settings: object) -> Iterator[Service]:
    """`fault` is Python code that runs first, to break something in any of the processes."""
    environment = {**os.environ, "TURBOFNO_PORT": "0", "TURBOFNO_FRONTENDS": "2"}
    environment |= {"TURBOFNO_DEVICES": "cpu", "TURBOFNO_TORCH_THREADS": "1"}
    environment |= {"TURBOFNO_MODEL_CONTROL": "true"}
    environment |= {f"TURBOFNO_{key.upper()}": str(value) for key, value in settings.items()}
    environment["TURBOFNO_MODEL_REPOSITORY"] = str(repository)
    code = f"{fault}\nfrom turbofno.service.cli import main; raise SystemExit(main())"
    process = start(code, "serve", cwd=ROOT, env=environment)
    service = Service(process)
    with announced(process, r"front ends on (http://\S+),", service.log) as service.url:
        yield service
