"""Tracing in real processes: what is imported, what the OTEL_* variables do, and where spans of several processes go."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from service.settings import Settings
from tests.e2e.server_process import ServerProcess
from tests.service.processes.running import running
from tests.service.tiny import save_tiny
from tests.service.tracing.collector import collecting

ROOT = Path(__file__).resolve().parents[3]
BODY = {"inputs": {"u0": [0.5] * 16}}

PREDICT = """
import asyncio, sys
from pathlib import Path
from tests.service.http.asgi import serving

async def main():
    async with serving(Path(sys.argv[1]), tracing=sys.argv[2] == "on") as (client, _):
        answer = await client.post("/v1/models/tiny-1d:predict", json={"inputs": {"u0": [0.5] * 16}})
        assert answer.status_code == 200
        assert ("traceresponse" in answer.headers) == (sys.argv[2] == "on")

asyncio.run(main())
print(*sorted(sys.modules))
"""


def python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("tracing", ["off", "on"])
def test_nothing_of_it_is_imported_when_off(tmp_path: Path, tracing: str) -> None:
    save_tiny(tmp_path)
    # FastAPI imports OpenTelemetry's API by itself; endpoints in the environment alone switch nothing on.
    answer = python(
        PREDICT,
        str(tmp_path),
        tracing,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )
    assert answer.returncode == 0, answer.stderr
    parts = ("opentelemetry.sdk.trace", "opentelemetry.exporter", "service.tracing")
    found = {part for part in parts if part in answer.stdout.split()}
    assert found == (set(parts) if tracing == "on" else set())


def test_is_off_by_default() -> None:
    assert Settings().tracing is False


@pytest.mark.parametrize(
    ("fault", "environment", "expected"),
    [
        ("sys.modules['opentelemetry.sdk'] = None", {}, "turbofno[otel]"),
        ("", {"OTEL_TRACES_EXPORTER": "zipkin"}, "no exporter 'zipkin'"),
        ("", {"OTEL_EXPORTER_OTLP_PROTOCOL": "pigeon"}, "no exporter 'pigeon'"),
    ],
)
def test_what_cannot_be_set_up_is_said_at_the_start(
    tmp_path: Path, fault: str, environment: dict[str, str], expected: str
) -> None:
    save_tiny(tmp_path)
    serve = f"import sys; {fault}\nfrom service.cli import main; sys.exit(main())"
    where = ("--model-repository", str(tmp_path), "--port", "0", "--tracing", "true")
    answer = python(serve, "serve", *where, **environment)
    assert answer.returncode == 1
    assert f"cannot start: {'tracing needs' if fault else 'OpenTelemetry has'}" in answer.stderr
    assert expected in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("name", ["", "fields"])
def test_front_end_and_engine_process_write_one_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    if name:
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    trace_id = f"{random.getrandbits(128) | 1:032x}"
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with running(tmp_path, frontends=1, tracing=True) as service:
            until_ready(service.url)
            answer = httpx.post(
                f"{service.url}/v1/models/tiny-1d:predict",
                json=BODY,
                headers={"traceparent": f"00-{trace_id}-{1:016x}-01"},
            )
            assert answer.status_code == 200
            expected = {"predict tiny-1d", "queue", "batch", "compute"}
            end = time.monotonic() + 15
            while len(collector.spans) < len(expected) and time.monotonic() < end:
                time.sleep(0.05)
    assert sorted(collector.spans) == sorted(
        (name or "turbofno", trace_id, span) for span in expected
    )


def until_ready(url: str) -> None:
    end = time.monotonic() + 40
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the service is not ready")


def test_a_drain_sends_the_last_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with ServerProcess(tmp_path, tmp_path / "log", "--tracing", "true") as server:
            assert (
                httpx.post(f"{server.url}/v1/models/tiny-1d:predict", json=BODY).status_code == 200
            )
            assert server.stop() == 0
    assert len(collector.spans) == 4


def test_a_collector_that_is_not_there_delays_the_end_by_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with ServerProcess(tmp_path, tmp_path / "log", "--tracing", "true") as server:
        assert httpx.post(f"{server.url}/v1/models/tiny-1d:predict", json=BODY).status_code == 200
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 8
