"""Request ids, common headers, metrics and the access line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.service.http.serving import added_to_the_table, application
from turbofno.service.errors import Unavailable
from turbofno.service.http.access_log import AccessLog
from turbofno.service.http.asgi import CallMiddleware
from turbofno.service.http.call import Call, Reply
from turbofno.service.http.shedding import Shedding
from turbofno.service.logs import ConsoleFormatter, JsonFormatter, omit_origins
from turbofno.service.metrics import Metrics

if TYPE_CHECKING:
    from pathlib import Path


def ask(path: str = "/x", **options: Any) -> tuple[httpx.Response, Metrics]:
    app, _ = application()
    metrics = Metrics()
    log = AccessLog(metrics, Shedding(), "turbofno/9")
    known = app.state.context
    context = replace(known, metrics=metrics, access_log=log)

    async def run(call: Call) -> Reply:
        call.protocol, call.model, call.version = "predict", "m", "1"
        call.steps |= {"decode": 0.001, "compute": 0.25}
        return Reply(200, (), (json.dumps(call.request_id).encode(),))

    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(CallMiddleware(app, context=context))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with added_to_the_table(run, "/x"):
                return await client.get(path, **options)

    return asyncio.run(main()), metrics


def access_lines(formatter: logging.Formatter, *paths: str, **options: Any) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.getLogger("service.access")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        for path in paths:
            ask(path, **options)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue().splitlines()


def test_valid_request_id_is_kept_and_echoed() -> None:
    answer, _ = ask(headers={"x-request-id": "abc-1.2:3"})
    assert answer.json() == answer.headers["x-request-id"] == "abc-1.2:3"


@pytest.mark.parametrize("offered", ["", "a b", "x" * 129, "é", '"'])
def test_invalid_request_id_is_replaced(offered: str) -> None:
    answer, _ = ask(headers=[(b"x-request-id", offered.encode())])
    assert answer.headers["x-request-id"] != offered
    assert answer.json() == answer.headers["x-request-id"]
    assert len(answer.json()) == 16


def test_response_names_the_server_and_its_timings() -> None:
    answer, _ = ask()
    assert answer.headers["server"] == "turbofno/9"
    assert answer.headers["server-timing"] == "decode;dur=1.000, compute;dur=250.000"


def test_request_is_counted_with_its_steps() -> None:
    _, metrics = ask()
    read, labels = metrics.registry.get_sample_value, {"model": "m", "version": "1"}
    counted = read("turbofno_requests_total", {**labels, "protocol": "predict", "code": "200"})
    assert counted == 1
    assert read("turbofno_compute_seconds_sum", labels) == 0.25
    assert read("turbofno_decode_seconds_count", labels) == 1
    assert read("turbofno_queue_seconds_count", labels) is None


def test_unknown_paths_do_not_become_labels() -> None:
    _, metrics = ask("/some/invented/path")
    labels = {"model": "", "version": "", "protocol": "admin", "code": "404"}
    assert metrics.registry.get_sample_value("turbofno_requests_total", labels) == 1


@pytest.mark.parametrize(
    ("method", "path", "protocol", "status"),
    [
        ("POST", "/v1/models/tiny-1d:predict", "predict", 401),
        ("GET", "/v1/models/invented:rollout", "rollout", 401),
        ("POST", "/v2/models/tiny-1d/versions/1/infer", "oip", 401),
        ("POST", "/v2/models/tiny-1d/load", "admin", 401),
        ("GET", "/v1/models/tiny-1d:vjp", "vjp", 405),
        ("PUT", "/v2/models/tiny-1d/infer", "oip", 405),
        ("GET", "/v1/models/tiny-1d:invented", "admin", 404),
    ],
)
def test_a_request_refused_by_its_head_counts_to_the_protocol_of_its_path(
    tmp_path: Path, method: str, path: str, protocol: str, status: int
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"someone {'k' * 16}\n")
    answer, metrics = asyncio.run(
        _refused(method, path, {"api_keys_file": keys} if status == 401 else {})
    )
    assert answer.status_code == status
    assert _counted(metrics, protocol=protocol, code=str(status)) == 1


def test_a_preflight_is_not_counted_as_a_prediction() -> None:
    origin = "https://app.example"
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    path = "/v1/models/tiny-1d:predict"
    answer, metrics = asyncio.run(_refused("OPTIONS", path, {"cors_origins": origin}, asked))
    assert answer.status_code == 204
    assert _counted(metrics, protocol="admin", code="204") == 1


@pytest.mark.parametrize(
    ("path", "model", "version"),
    [
        ("/v1/models/broken:predict", "broken", "1"),
        ("/v2/models/broken/versions/1/infer", "broken", "1"),
        # Without statuses, as before the first engine, any name would do.
        ("/v1/models/invented:predict", "", ""),
    ],
)
def test_a_request_of_a_model_that_is_not_ready_counts_to_it_if_it_is_known(
    path: str, model: str, version: str
) -> None:
    answer, metrics = asyncio.run(_refused("POST", path, {}))
    assert answer.status_code == 503
    assert _counted(metrics, model=model, version=version, code="503") == 1


async def _refused(
    method: str, path: str, settings: dict[str, Any], headers: dict[str, str] | None = None
) -> tuple[httpx.Response, Metrics]:
    """The reply of an application without ready models, and its metrics."""
    app, engine = application(**settings)

    def unready(model: str, version: str | None = None) -> Any:
        raise Unavailable(f"{model} {version} is not ready")

    engine.config = unready  # type: ignore[method-assign]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.request(method, path, headers=headers)
        return answer, app.state.context.metrics


def _counted(metrics: Metrics, **labels: str) -> float:
    (family,) = [one for one in metrics.registry.collect() if one.name == "turbofno_requests"]
    return sum(
        one.value
        for one in family.samples
        if one.name.endswith("_total") and labels.items() <= one.labels.items()
    )


def test_json_access_line_has_status_times_sizes_and_model() -> None:
    (text,) = access_lines(JsonFormatter(), "/x?q=1", headers={"x-request-id": "abc"})
    line = json.loads(text)
    assert line["message"] == "GET /x"
    assert line["request_id"] == "abc"
    assert (line["status"], line["model"], line["compute_ms"]) == (200, "m", 250.0)
    assert line["out"] == len('"abc"')


def test_a_long_path_is_logged_by_its_beginning() -> None:
    first, second = access_lines(JsonFormatter(), "/" + "a" * 60_000, "/" + "b" * 255)
    assert json.loads(first)["message"] == "GET /" + "a" * 255 + "..."
    assert json.loads(second)["message"] == "GET /" + "b" * 255


def test_console_line_cannot_be_forged_by_a_path() -> None:
    lines = access_lines(ConsoleFormatter(), "/a%0Ab%1B[31m")
    assert len(lines) == 1
    assert "GET /a%0Ab%1B[31m" in lines[0]


def test_console_line_cannot_be_forged_by_a_message() -> None:
    """As of a model that is not loaded since its config.json has such a key."""
    key = "\n08:40:00.000 INFO    loaded model x \x1b[32m\u2028"
    record = logging.LogRecord("x", logging.ERROR, "", 0, "no model: %s", (key,), None)
    text = ConsoleFormatter().format(record)
    assert text.isprintable()
    assert r"no model: \n08:40:00.000 INFO    loaded model x \x1b[32m\u2028" in text


def test_warnings_of_libraries_are_lines_of_the_log() -> None:
    program = (
        "import warnings; from turbofno.service.logs import configure; from turbofno.service.settings import Settings; "
        "configure(Settings(log_format='json'), process='engine-0'); warnings.warn('this GPU is old\\nvery old')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    line = json.loads(ran.stderr)
    assert line["process"] == "engine-0"
    assert "UserWarning: this GPU is old\nvery old" in line["message"]


def test_lines_show_neither_caller_nor_thread_nor_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, getattr(logging, name))
    omit_origins()
    for formatter in (ConsoleFormatter("frontend-0"), JsonFormatter("frontend-0")):
        caplog.clear()
        (line,) = access_lines(formatter, "/x")
        (record,) = caplog.records
        assert (record.lineno, record.thread, record.process) == (0, None, None)
        assert "frontend-0" in line
        assert "GET /x" in line


def test_health_polls_are_not_logged_at_info() -> None:
    assert access_lines(ConsoleFormatter(), "/healthz") == []


def test_an_exception_outside_operations_is_answered_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inside")

    monkeypatch.setattr("turbofno.service.http.asgi.begin", fail)
    answer, _ = ask("/v2", headers={"X-Request-Id": "mine"})
    assert answer.status_code == 500
    assert "mine" in answer.json()["error"]
    assert "inside" not in answer.text
    assert caplog.text.count("RuntimeError: inside") == 1
