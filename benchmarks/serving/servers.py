"""The compared servers: packages, start commands, body formats."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import forms
from benchmarks.serving.forms import Form

ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENTS = ROOT / ".venv-peers"
_PEERS = "benchmarks.serving.peers"

MAX_BATCH = 16
"""Largest batch, for every server that batches."""
MAX_WAITING = 256
"""Queue limit, for every server that has one."""


@dataclass(frozen=True)
class Place:
    """The checkpoint's folder, the port to listen on, and a folder for the server's files."""

    checkpoint: Path
    port: int
    scratch: Path


@dataclass(frozen=True)
class Server:
    """One row of the comparison. Pinned `packages` are installed into an environment of its own."""

    name: str
    forms: Mapping[str, Form]
    command: Callable[[Place], list[str | Path]]
    packages: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


def _python(name: str) -> Path:
    return _ENVIRONMENTS / name / "bin" / "python"


def _turbofno(*options: str) -> Callable[[Place], list[str | Path]]:
    def command(place: Place) -> list[str | Path]:
        return [
            *(sys.executable, "-m", "turbofno.service", "serve", "--port", str(place.port)),
            *("--model-repository", place.checkpoint.parent, "--models", place.checkpoint.name),
            *("--device", "cpu", "--max-batch-size", str(MAX_BATCH)),
            *("--max-queued-fields-per-model", str(MAX_WAITING)),
            *("--max-fields-per-request", str(MAX_BATCH)),
            *("--log-level", "warning", *options),
        ]

    return command


def _mlserver(place: Place) -> list[str | Path]:
    """Write MLServer's configuration files and return its command."""
    model = {
        "name": place.checkpoint.name,
        "implementation": f"{_PEERS}.mlserver_model.Runtime",
        "max_batch_size": MAX_BATCH,
        # Its queue holds one batch, which it takes at once; with 0 it would run each request alone.
        "max_batch_time": 0.001,
    }
    server = {
        "host": "127.0.0.1",
        "http_port": place.port,
        "grpc_port": 0,
        "metrics_endpoint": None,
        "parallel_workers": 0,
        "gzip_enabled": False,
        "debug": False,
    }
    (place.scratch / "model-settings.json").write_text(json.dumps(model))
    (place.scratch / "settings.json").write_text(json.dumps(server))
    return [_ENVIRONMENTS / "mlserver" / "bin" / "mlserver", "start", place.scratch]


def _bentoml(place: Place) -> list[str | Path]:
    service = f"{_PEERS}.bentoml_service:Fields"
    return [
        *(_ENVIRONMENTS / "bentoml" / "bin" / "bentoml", "serve", service),
        *("--host", "127.0.0.1", "--port", str(place.port)),
    ]


OURS, BARE = "turbofno", "bare uvicorn + torch"
SERVERS = (
    Server(OURS, forms.TURBOFNO, _turbofno()),
    Server(f"{OURS} --frontends 1", forms.TURBOFNO, _turbofno("--frontends", "1")),
    Server(BARE, forms.PLAIN, lambda _: [sys.executable, "-m", f"{_PEERS}.bare"]),
    Server(
        "LitServe 0.2.19",
        forms.LITSERVE,
        lambda _: [_python("litserve"), "-m", f"{_PEERS}.litserve_server"],
        packages=("litserve==0.2.19", "fastapi==0.165.0", "starlette==1.10.0", "pyzmq==27.3.0"),
    ),
    Server(
        "MLServer 1.7.1",
        forms.MLSERVER,
        _mlserver,
        packages=("mlserver==1.7.1", "fastapi==0.115.14", "starlette==0.46.2"),
    ),
    Server(
        "BentoML 1.4.39",
        forms.PLAIN,
        _bentoml,
        packages=("bentoml==1.4.39", "starlette==1.10.0"),
        environment=(("BENTOML_DO_NOT_TRACK", "true"),),
    ),
    Server(
        "Ray Serve 2.60.0",
        forms.PLAIN,
        lambda _: [_python("ray"), "-m", f"{_PEERS}.ray_app"],
        packages=("ray[serve]==2.60.0", "fastapi==0.165.0", "starlette==1.10.0"),
        environment=(
            ("RAY_SERVE_ENABLE_HA_PROXY", "1"),
            ("RAY_SERVE_HAPROXY_NBTHREAD", "1"),
            ("RAY_SERVE_THROUGHPUT_OPTIMIZED", "1"),
            ("RAY_USAGE_STATS_ENABLED", "0"),
        ),
    ),
)

ARITHMETIC = {
    "OMP_NUM_THREADS": "1",
    # as `turbofno serve` sets them
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
}
"""Environment variables of every process that runs the network."""


def environment(server: Server, place: Place) -> dict[str, str]:
    """Environment variables of a server: checkpoint, limits, one thread, malloc settings.

    `turbofno` is not installed in the peers' environments; `make build/importable` makes it importable there.
    """
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "build" / "importable", ROOT))),
        "BENCH_CHECKPOINT": str(place.checkpoint),
        "BENCH_PORT": str(place.port),
        "BENCH_SCRATCH": str(place.scratch),
        "BENCH_MAX_BATCH": str(MAX_BATCH),
        "BENCH_MAX_WAITING": str(MAX_WAITING),
        **ARITHMETIC,
        **dict(server.environment),
    }


def install(server: Server) -> None:
    """Create the server's environment, once. PyTorch and numpy come from the project's, after its own packages.

    Raises:
        subprocess.CalledProcessError: pip could not install the packages.
    """
    if not server.packages:
        return
    folder = _ENVIRONMENTS / server.packages[0].split("==")[0].split("[")[0]
    ready = folder / ".ready"
    wanted = "\n".join(server.packages)
    if ready.is_file() and ready.read_text() == wanted:
        return
    print(f"installing {server.name} into {folder.relative_to(ROOT)}")
    venv.create(folder, clear=True, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *server.packages], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    # a path file instead of --system-site-packages: the peer's own pins come first
    (packages / "zz-torch.pth").write_text(f"{_own_packages()}\n")
    ready.write_text(wanted)


def _own_packages() -> Path:
    import torch

    return Path(torch.__file__).parents[1]
