"""Tracing in real processes: imports, OTEL_* variables, and traces across processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.clock import within
from tests.e2e.server_process import ServerProcess
from tests.service.processes.running import running
from tests.service.tiny import save_tiny
from tests.service.tracing.collector import collecting
from turbofno.service.settings import Settings
from turbofno.service.tracing import setup

ROOT = Path(__file__).resolve().parents[3]
BODY = {"inputs": {"u0": [0.5] * 16}}

PREDICT = """
import asyncio, sys
from pathlib import Path
from tests.service.http.asgi import serving

async def main():
    async with serving(Path(sys.argv[1])) as (client, _):
        answer = await client.post("/v1/models/tiny-1d:predict", json={"inputs": {"u0": [0.5] * 16}})
        assert answer.status_code == 200
        assert "traceresponse" not in answer.headers

asyncio.run(main())
print(*sys.modules)
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


def test_a_start_imports_no_tracing_when_off_and_never_sympy(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    # FastAPI imports OpenTelemetry's API itself; an endpoint in the environment does not enable tracing.
    answer = python(PREDICT, str(tmp_path), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert answer.returncode == 0, answer.stderr
    imported = answer.stdout.split()
    assert "turbofno.service.app" in imported
    ours = ("opentelemetry.sdk", "opentelemetry.exporter", "turbofno.service.tracing")
    assert [name for name in imported if name.startswith(ours)] == []
    # Parts of PyTorch import it when first used, which takes half a second.
    assert "sympy" not in imported


def test_is_off_by_default() -> None:
    assert Settings().tracing is False


def test_the_missing_extra_is_named_at_the_start(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    serve = """
import sys
sys.modules["opentelemetry.sdk"] = None
from turbofno.service.cli import main
sys.exit(main())
"""
    where = ("--model-repository", str(tmp_path), "--port", "0", "--tracing", "true")
    answer = python(serve, "serve", *where)
    assert answer.returncode == 1
    assert (
        "cannot start: tracing needs OpenTelemetry: run `pip install '.[serve,otel]'`"
        in answer.stderr
    )
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("frontends", [0, 1])
def test_an_unknown_propagator_fails_the_start(tmp_path: Path, frontends: int) -> None:
    save_tiny(tmp_path)
    serve = "import sys; from turbofno.service.cli import main; sys.exit(main())"
    where = ("--model-repository", str(tmp_path), "--port", "0", "--frontends", str(frontends))
    answer = python(serve, "serve", *where, "--tracing", "true", OTEL_PROPAGATORS="pigeon")
    assert answer.returncode == 1
    assert "Propagator pigeon not found" in answer.stderr
    assert "starting it again" not in answer.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_TRACES_EXPORTER", "otlp,zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")],
)
def test_an_unknown_exporter_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    wrong = value.removeprefix("otlp,")
    with pytest.raises(
        ValueError, match=f"exporter '{wrong}' is not installed .* otlp_proto_http, or none"
    ):
        setup.span_processors()


def test_exporters_can_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert setup.span_processors() == []


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "")
    [processor] = setup.span_processors()
    processor.shutdown()


def test_front_end_and_engine_process_write_one_trace_and_send_it_before_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "fields")
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
            service.process.terminate()
            assert service.process.wait(30) == 0
    expected = ["batch", "compute", "predict tiny-1d", "queue"]
    assert sorted(collector.spans) == [("fields", trace_id, name) for name in expected]


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
    assert sorted(name for _, _, name in collector.spans) == [
        "batch",
        "compute",
        "predict tiny-1d",
        "queue",
    ]
    assert {service for service, _, _ in collector.spans} == {"turbofno"}


def test_a_missing_collector_delays_the_exit_by_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with ServerProcess(tmp_path, tmp_path / "log", "--tracing", "true") as server:
        assert httpx.post(f"{server.url}/v1/models/tiny-1d:predict", json=BODY).status_code == 200
        begun = time.monotonic()
        assert server.stop() == 0
        within(time.monotonic() - begun, 8)
