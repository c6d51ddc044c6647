"""A Prometheus process on a free loopback port, and the queries of the dashboard."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tests.e2e.server_process import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DASHBOARD = ROOT / "deploy" / "grafana" / "turbofno.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
JOB = "turbofno"
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
)
MISSING = "Debian's package prometheus is not installed (apt-get install prometheus)"


def installed() -> bool:
    """True if prometheus and promtool are installed."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


class Prometheus:
    """Scrapes `targets` every second and evaluates our alert rules; a context manager that ends the process."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": JOB, "static_configs": [{"targets": targets}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-c", _DIE_WITH_PARENT, str(shutil.which("prometheus")),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def __enter__(self) -> Prometheus:
        until = time.monotonic() + 30
        while time.monotonic() < until and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/-/ready").status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        self.__exit__()
        raise AssertionError(f"Prometheus did not start\n{self._log.read_text()[-3000:]}")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and current value of every series of the expression."""
        result = self._get("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def value(self, expression: str) -> float:
        """The value of an expression with one series."""
        [(_, value)] = self.query(expression)
        return value

    def history(
        self, expression: str, start: float, end: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels and (seconds since start, value) of every series, at each second."""
        found = self._get("query_range", query=expression, start=start, end=end, step=1)["result"]
        return [(one["metric"], [(t - start, float(v)) for t, v in one["values"]]) for one in found]

    def wait_for(self, expression: str, seconds: float = 15.0) -> None:
        """Return once the expression has a series; fail after `seconds`."""
        until = time.monotonic() + seconds
        while not self.query(expression):
            assert time.monotonic() < until, f"no data for {expression} within {seconds:g} s"
            time.sleep(0.2)

    def _get(self, what: str, **parameters: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]


@dataclass(frozen=True, slots=True)
class Target:
    """A query of a panel with Grafana's variables replaced."""

    panel: str
    unit: str
    expression: str
    legend: str

    def name(self, labels: Mapping[str, str]) -> str:
        """The legend of the series with these labels."""
        text = self.legend
        for label in ("instance", "process", *labels):
            text = text.replace("{{" + label + "}}", labels.get(label, ""))
        return " ".join(text.split())


def dashboard_targets() -> list[Target]:
    """Every query of the dashboard, over all models and the last five seconds."""
    filled = {"$job": JOB, "$model": ".*", "$__rate_interval": "5s"}
    targets = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for variable, value in filled.items():
                expression = expression.replace(variable, value)
            unit = panel["fieldConfig"]["defaults"]["unit"]
            targets.append(Target(panel["title"], unit, expression, target["legendFormat"]))
    return targets


def finite(values: list[tuple[dict[str, str], float]]) -> bool:
    """True if there is data and all of it is finite."""
    return bool(values) and all(math.isfinite(value) for _, value in values)
