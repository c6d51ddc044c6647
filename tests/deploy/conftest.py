"""Fixture: a service under load, scraped by Prometheus."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.clock import within
from tests.deploy.monitoring import MISSING, Prometheus, installed
from tests.deploy.traffic import gpu_stand_in, load
from tests.e2e.server_process import ServerProcess
from tests.service.tiny import save_judged, save_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES = {"one process": (), "several processes": ("--frontends", "2")}
"""Mode of the service -> options of `serve`."""

LOAD_SECONDS = 5.0
FEWEST_FIELDS = 400
"""With fewer in that time the machine stalled: some windows have no request, and latency alerts are right to fire."""
LAST_TO_COME = ("turbofno:slow_ratio:rate5m > -1", "turbofno:queue_wait_seconds >= 0")
"""Series of rules: they have a number for a model once two scrapes have seen its requests, and then every window has."""
GRIDS = {"tiny-1d": (32,), "tiny-2d": (16, 24), "tiny-judged": (32,)}


@dataclass(frozen=True, slots=True)
class Watched:
    """A running service and the Prometheus that scraped it under load from `since` to `until` (Unix times)."""

    service: ServerProcess
    prometheus: Prometheus
    predicted: int
    since: float
    until: float


@pytest.fixture(scope="module", params=MODES.values(), ids=list(MODES))
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """The service, still running, after the load."""
    if not installed():
        pytest.skip(MISSING)
    models, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("watched")
    for name, grid in GRIDS.items():
        if name == "tiny-judged":
            save_judged(models)
        else:
            save_tiny(models, name, n_dim=len(grid))
    options = (
        "--triton-metrics",
        "true",
        "--max-body-bytes",
        "1000000",
        "--max-json-bytes",
        "100000",
    )
    with ExitStack() as stack:
        gpu = stack.enter_context(gpu_stand_in())
        service = stack.enter_context(
            ServerProcess(models, folder / "service.log", *options, *request.param)
        )
        prometheus = stack.enter_context(
            Prometheus(folder, [service.url.removeprefix("http://"), gpu])
        )
        prometheus.wait_for("turbofno_model_loaded")
        with load(service.url, GRIDS) as predicted:
            for series in LAST_TO_COME:
                prometheus.wait_for(f"count({series}) == {len(GRIDS)}", seconds=60.0)
            since, before = time.time(), sum(predicted)
            time.sleep(LOAD_SECONDS)
            until, after = time.time(), sum(predicted)
        within(FEWEST_FIELDS, after - before)
        yield Watched(service, prometheus, sum(predicted), since, until)
