"""Smoke test of a deployed service: `python deploy/smoke.py https://host`. Needs only the standard library.

Exits with 0 if everything works, otherwise with 1 and the reason.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import struct
import sys
import time
import urllib.error
import urllib.request
from typing import Any

_LENGTH = "Inference-Header-Content-Length"


class Failed(Exception):
    """A check failed."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an answer: urllib would send the API key on to whatever host it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Service:
    """The service at `url`. Each call opens a new connection."""

    def __init__(self, url: str, headers: dict[str, str], timeout: float) -> None:
        self._url, self._headers, self._timeout = url.rstrip("/"), headers, timeout
        self._open = urllib.request.build_opener(_NoRedirect).open

    def call(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, Any]:
        """Status, body and headers of the answer, also of an error."""
        request = urllib.request.Request(
            self._url + path, data=body, headers={**self._headers, **(headers or {})}
        )
        try:
            with self._open(request, timeout=self._timeout) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), error.headers
        except OSError as error:
            raise Failed(f"{self._url}{path} cannot be reached: {error}") from None

    def get(self, path: str) -> Any:
        """The JSON answer. Raises Failed unless the status is 200."""
        status, body, _ = self.call(path)
        if status != 200:
            raise Failed(f"{path} gave {status}, expected 200: {body[:300]!r}")
        return json.loads(body)


def field_of(description: dict[str, Any]) -> tuple[list[int], list[float]]:
    """Shape and values of a smooth field on the model's training grid, with the mean and spread of its training data."""
    grid = description["grid"]["training"]
    channels = description["input"]["channels"]
    points = math.prod(grid)
    statistics = (description["statistics"] or {}).get("inputs") or [{}] * len(channels)
    values = []
    for channel in statistics:
        mean, spread = channel.get("mean", 0.0), channel.get("std", 1.0)
        values += [mean + spread * math.sin(2 * math.pi * i / points) for i in range(points)]
    return [1, len(channels), *grid], values


def check_model(service: Service, name: str) -> str:
    """Compare the binary and the JSON answer of a model, if JSON may be as large. Returns a line for the report."""
    shape, values = field_of(service.get(f"/v1/models/{name}"))
    started = time.perf_counter()
    binary = predict_binary(service, name, shape, values)
    seconds = time.perf_counter() - started
    if not all(map(math.isfinite, binary)):
        raise Failed(f"{name} gave NaN or infinity")
    line = f"{name} {'x'.join(map(str, shape[2:]))}: {seconds * 1e3:.1f} ms"
    plain = predict_json(service, name, shape, values)
    if plain is None:
        return f"{line} (a field is too large for JSON)"
    if len(plain) != len(binary):
        raise Failed(f"{name}: {len(plain)} numbers in JSON, {len(binary)} in binary")
    scale = max(map(abs, binary))
    worst = max(abs(a - b) for a, b in zip(plain, binary, strict=True))
    if not scale or worst > 1e-2 * scale:
        raise Failed(f"{name}: JSON and binary answers differ by {worst:g}, values reach {scale:g}")
    return line


def predict_binary(
    service: Service, name: str, shape: list[int], values: list[float]
) -> tuple[float, ...]:
    """The prediction by the Open Inference Protocol with binary tensors."""
    blob = struct.pack(f"<{len(values)}f", *values)
    tensor = {
        "name": "input",
        "shape": shape,
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(blob)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    status, body, headers = service.call(
        f"/v2/models/{name}/infer",
        head + blob,
        {"Content-Type": "application/octet-stream", _LENGTH: str(len(head))},
    )
    if status != 200:
        raise Failed(f"infer of {name} gave {status}, expected 200: {body[:300]!r}")
    numbers = body[int(headers[_LENGTH]) :]
    return struct.unpack(f"<{len(numbers) // 4}f", numbers)


def predict_json(
    service: Service, name: str, shape: list[int], values: list[float]
) -> list[float] | None:
    """The prediction by the Open Inference Protocol in JSON; None if a body of that size may not be JSON."""
    tensor = {"name": "input", "shape": shape, "datatype": "FP32", "data": values}
    status, body, _ = service.call(
        f"/v2/models/{name}/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    if status == 413:
        return None
    if status != 200:
        raise Failed(f"infer of {name} in JSON gave {status}, expected 200: {body[:300]!r}")
    [output] = json.loads(body)["outputs"]
    return list(output["data"])


def check_refusal(service: Service, name: str) -> None:
    """Check that an invalid request gets a 4xx status with a reason."""
    status, body, _ = service.call(
        f"/v1/models/{name}:predict", b'{"inputs": [', {"Content-Type": "application/json"}
    )
    if not 400 <= status < 500 or "detail" not in json.loads(body):
        raise Failed(f"broken JSON gave {status} {body[:300]!r}, expected 4xx with a reason")


def check(service: Service, *, metrics: bool) -> list[str]:
    """Run all checks. Returns the report; raises Failed."""
    service.get("/healthz")
    status, body, _ = service.call("/readyz")
    if status != 200:
        raise Failed(f"alive, but not ready: {body[:500]!r}")
    models = [one for one in service.get("/v1/models")["models"] if one["state"] == "READY"]
    if not models:
        raise Failed("no model is loaded")
    report = [
        f"{one['name']} {one['version']}: {one['backend']}, {one['precision']}" for one in models
    ]
    names = dict.fromkeys(one["name"] for one in models)
    report += [check_model(service, name) for name in names]
    check_refusal(service, next(iter(names)))
    if metrics:
        status, body, _ = service.call("/metrics")
        if status != 200 or b"turbofno_fields_total" not in body:
            raise Failed(f"/metrics gave {status} without turbofno_fields_total")
    return report


def main() -> int:
    """Run the checks against the URL of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="URL of the service, for example http://127.0.0.1:8080")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one call")
    parser.add_argument(
        "--no-metrics", action="store_true", help="skip /metrics, for example if a gateway hides it"
    )
    arguments = parser.parse_args()
    key = os.environ.get("TURBOFNO_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        service = Service(arguments.url, headers, arguments.timeout)
        report = check(service, metrics=not arguments.no_metrics)
    except Failed as reason:
        sys.stderr.write(f"FAILED: {reason}\n")
        return 1
    sys.stdout.write("\n".join([*report, "all well", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
