"""`serve run` of a file of deploy/ray, on Ray nodes of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from tests.e2e.server_process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "SERVE_REPLICA::turbofno"


@contextmanager
def serve_run(
    folder: Path,
    file: str,
    *,
    nodes: int,
    args: dict[str, str],
    scaling: dict[str, Any],
    gpus: int = 0,
) -> Iterator[str]:
    """The URL of the deployment, on one port, with the models in `folder`/models.

    `args` and `scaling` replace values of the file's settings and autoscaling_config. Each node has `gpus` GPUs that only
    Ray believes in.
    """
    port = free_port()
    config = yaml.safe_load((ROOT / "deploy" / "ray" / file).read_text())
    config |= {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": port}}
    (app,) = config["applications"]
    app["args"] |= {"model_repository": str(folder / "models"), **args}
    (deployment,) = app["deployments"]
    deployment["ray_actor_options"]["num_cpus"] = 1
    deployment["autoscaling_config"] |= scaling
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    with ExitStack() as stack:
        # not in the test's folder: the paths of Ray's sockets must be short
        scratch = tempfile.mkdtemp(prefix="ray-")
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("RAY_TMPDIR", scratch)
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # otherwise the proxy would send nearly all requests to replicas of its node
        environment.setenv("RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING", "0")
        path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        environment.setenv("PYTHONPATH", os.pathsep.join(path))
        node = {"num_cpus": 2, "num_gpus": gpus, "object_store_memory": 100 * 2**20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        stack.callback(cluster.shutdown)
        for _ in range(nodes - 1):
            cluster.add_node(**node)
        log = stack.enter_context((folder / "log").open("w"))
        serving = subprocess.Popen(
            [sys.executable, "-c", "from ray.serve.scripts import cli; cli()",
             "run", "--address", cluster.address, str(folder / "serve.yaml")],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        stack.callback(serving.wait)
        stack.callback(serving.kill)
        url = f"http://127.0.0.1:{port}"
        until(lambda: _is_ready(url, serving), 120, lambda: (folder / "log").read_text()[-6000:])
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        stack.callback(ray.shutdown)
        yield url


def _is_ready(url: str, serving: subprocess.Popen[bytes]) -> bool:
    assert serving.poll() is None
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def until(met: Any, seconds: float, what: Any = lambda: "condition") -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds} s: {what()}"
        time.sleep(0.1)


def replicas() -> list[str]:
    """Names of the replicas' actors."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in actors if one["name"].startswith(PREFIX))
