"""Loaded and unloaded models survive a restart of the engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.service.processes.running import Service, running, until
from tests.service.tiny import save_tiny

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)

BODY = json.dumps({"inputs": {"u0": [0.5] * 16}}).encode()


def kill_engine(service: Service) -> None:
    pid = service.pids()["engine-0"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: service.pids().get("engine-0", pid) != pid, 10)


def statuses(service: Service) -> dict[str, int]:
    """Status of a prediction with each known model."""
    names = [model["name"] for model in service.get("/v1/models").json()["models"]]
    return {name: service.post(f"/v1/models/{name}:predict", BODY).status_code for name in names}


def control(service: Service, action: str, name: str) -> None:
    answer = service.post(f"/v2/repository/models/{name}/{action}")
    assert answer.status_code == 200, answer.text


def refused_for_good(service: Service, name: str) -> bool:
    """True if the refusal of an unloaded model does not say when to retry, since it will not come back by itself.

    The killed engine told every front end that the model is unloaded, but one may not have received it. That one expects
    the model back until the next engine reports its models.
    """
    refused = service.post(f"/v1/models/{name}:predict", BODY)
    assert (refused.status_code, name in refused.text) == (503, True)
    return "Retry-After" not in refused.headers


def test_an_engine_has_the_models_that_its_killed_predecessor_had(tmp_path: Path) -> None:
    for name in ("kept", "unloaded", "later", "removed", "never"):
        save_tiny(tmp_path, name)
    with running(tmp_path, models="kept,unloaded,removed") as service:
        service.until_ready()
        control(service, "load", "later")
        control(service, "unload", "unloaded")
        # At once, before another heartbeat.
        kill_engine(service)
        until(lambda: refused_for_good(service, "unloaded"), 30)
        service.until_ready()
        expected = {"kept": 200, "later": 200, "removed": 200, "unloaded": 503}
        assert statuses(service) == expected
        assert service.post("/v1/models/never:predict", BODY).status_code == 404

        # A model that can no longer be loaded blocks neither the others nor readiness.
        shutil.rmtree(tmp_path / "removed")
        control(service, "unload", "later")
        control(service, "load", "unloaded")
        kill_engine(service)
        service.until_ready()
        expected = {"kept": 200, "later": 503, "removed": 503, "unloaded": 200}
        assert statuses(service) == expected
        assert "no longer holds it" in service.get("/v2/models/removed").text

        # A state without loaded models is restored, too.
        control(service, "unload", "kept")
        control(service, "unload", "unloaded")
        kill_engine(service)
        until(lambda: len(service.pids()) == 3 and answers_itself(service), 30)
        assert statuses(service) == dict.fromkeys(expected, 503)
        control(service, "load", "kept")
        assert statuses(service)["kept"] == 200


def answers_itself(service: Service) -> bool:
    """True if an engine answers: it refuses to load an unknown model with 404, not 503."""
    return service.post("/v2/repository/models/nothing/load").status_code == 404
