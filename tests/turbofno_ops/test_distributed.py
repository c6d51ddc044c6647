"""`turbofno_ops.distributed`: 2 and 3 processes on CPUs (gloo), and one for each GPU (NCCL), against one in float64."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist

from tests.service import forked
from tests.turbofno_ops import slab_checks
from tests.turbofno_ops.random_fno import network
from turbofno_ops import GraphCache, compile_fno, distributed, native_status, plan
from turbofno_ops._slab import Slab
from turbofno_ops.distributed import SlabFNO

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "how-to" / "poisson_slabs.py"
_SECONDS = 170

Outcomes = dict[str, list[str]]
"""What failed of each check, by rank."""


def checked(backend: str, count: int, folder: Path) -> Outcomes:
    """Run all checks by `count` processes."""
    program = f"import os, runpy; os.setsid(); runpy.run_module({slab_checks.__name__!r}, run_name='__main__')"
    arguments = (backend, str(count), str(folder))
    with (folder / "log").open("w") as log:
        process = forked.start(program, *arguments, cwd=ROOT, env=os.environ, output=log)
    try:
        process.wait(_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    outcomes: Outcomes = {name: [] for name in slab_checks.NAMES}
    for rank in range(count):
        found = folder / f"{rank}.json"
        if found.is_file():
            said = json.loads(found.read_text())
        else:
            logs = [folder / "log", folder / f"{rank}.log"]
            said = dict.fromkeys(outcomes, "".join(of.read_text() for of in logs if of.is_file()))
        for name, failure in said.items():
            if failure is not None:
                outcomes[name].append(f"rank {rank} of {count}: {failure}")
    return outcomes


@pytest.fixture(scope="module", params=[2, 3])
def on_cpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return checked("gloo", request.param, tmp_path_factory.mktemp("gloo"))


@pytest.fixture(scope="module", params=[1, 2, 4, 8])
def on_gpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    count, there = request.param, torch.cuda.device_count()
    if count > there:
        pytest.skip(f"needs {count} GPUs, there are {there}")
    if not native_status().loaded:
        pytest.skip(native_status().detail)
    return checked("nccl", count, tmp_path_factory.mktemp("nccl"))


@pytest.mark.parametrize("check", slab_checks.NAMES)
def test_on_cpus(on_cpus: Outcomes, check: str) -> None:
    assert not on_cpus[check], "\n".join(on_cpus[check])


@pytest.mark.parametrize("check", slab_checks.NAMES)
def test_on_gpus(on_gpus: Outcomes, check: str) -> None:
    assert not on_gpus[check], "\n".join(on_gpus[check])


def test_the_kernels_are_asked_about_every_slab(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = compile_fno(network(slab_checks.PLAIN).description(), device="cpu")._chain
    cut = Slab(cast("dist.ProcessGroup", None), rank=0, count=4)
    compiled = SlabFNO("", [], chain, torch.device("cpu"), "fp32", (1,), GraphCache(), cut)
    compiled.backend = "cuda"
    asked: set[object] = set()

    def product(_batch: int, _c_in: int, _c_out: int, *grids: object) -> str | None:
        asked.add(grids[0])
        return "too few" if grids[0] == (9, 21) else None

    monkeypatch.setattr(plan, "program_refusal", lambda *_, size, **__: asked.add(size))
    monkeypatch.setattr(plan, "product_refusal", product)
    assert compiled.refusal((48, 20)) is None
    assert asked == {(12, 20)}
    # 12, 12, 12 and 9 rows: every process learns what the last one cannot run
    refused = compiled.refusal((45, 21))
    assert refused == "in layer 1 of 3: too few"
    # 6, 6, 6 and 3 rows for 6 modes
    refused = compiled.refusal((21, 20))
    assert refused is not None
    assert "use fewer processes" in refused


def test_without_a_group_the_error_names_the_call() -> None:
    with pytest.raises(ValueError, match="init_process_group"):
        distributed.slab_rows(8)


def test_the_example_solves_the_equation(tmp_path: Path) -> None:
    """By two processes with the variables that torchrun sets."""
    program = f"import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    group = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    said = [tmp_path / f"{rank}" for rank in range(2)]
    processes = []
    for rank, file in enumerate(said):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with file.open("w") as output:
            processes.append(
                forked.start(program, cwd=tmp_path, env=os.environ | group | place, output=output)
            )
    try:
        assert [one.wait(_SECONDS) for one in processes] == [0, 0], [f.read_text() for f in said]
    finally:
        for one in processes:
            one.kill()
    first, second = (file.read_text() for file in said)
    count, error = re.fullmatch(r"(\d+) processes, largest error (\S+)\n", first).groups()
    assert (int(count), second) == (2, "")
    assert float(error) < 1e-12
