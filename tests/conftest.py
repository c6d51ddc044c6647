"""Fixtures of all tests: one PyTorch thread, and the same random numbers in every run (`tests/draws.py`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.draws import VARIABLE, seeded, settle_run_seed

# hypothesis' deadline and this health check would measure the load on the machine
settings.register_profile("turbofno", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turbofno")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    try:
        seed = settle_run_seed()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    # before hypothesis reads its option
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(seed)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let pytest-rerunfailures send nothing: a worker tells the first process of each test, which reads byte by byte.

    It uses that to run tests again that ended their worker, which pytest-xdist refuses with --dist loadfile.
    """
    reruns = getattr(session.config, "failures_db", None)
    if hasattr(session.config, "workerinput") and hasattr(reruns, "sock"):
        from pytest_rerunfailures import StatusDB

        reruns.sock.close()
        session.config.failures_db = StatusDB()


def pytest_report_header() -> str:
    return f"{VARIABLE}={settle_run_seed()}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Seed shared fixtures, so that they do not depend on which test uses them first."""
    if fixturedef.scope == "function":
        return (yield)
    with seeded(f"{fixturedef.baseid}::{fixturedef.argname}[{request.param_index}]"):
        return (yield)


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> Iterator[None]:
    # pytest shows this line with a failure
    print(f"draws follow {VARIABLE}={settle_run_seed()}")  # noqa: T201
    with seeded(request.node.nodeid):
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one PyTorch thread: for small fields more threads are slower, especially on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
