"""Starts the service as several processes: the settings of each process, then the supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from turbofno.service import logs
from turbofno.service.processes.fork_server import ForkServer
from turbofno.service.processes.port import reserve
from turbofno.service.processes.supervisor import Supervisor
from turbofno.service.settings import (
    Settings,
    env_name,
    exposure_warnings,
    http_url,
    misspelt_variables,
)
from turbofno.service.system import cores, with_descriptors

logger = logging.getLogger(__name__)


def run_processes(settings: Settings, *, for_people: bool) -> int:
    """Serve until a signal. Returns 0 after a drain, 1 if the start failed or the drain was aborted."""
    logs.configure(settings, process="supervisor")
    for problem in (*misspelt_variables(os.environ), *exposure_warnings(settings)):
        logger.warning(problem)
    if not sys.platform.startswith("linux"):
        logger.error("cannot start: several processes need Linux; leave frontends at 0 here")
        return 1
    # If it was ignored, the exit status of no child would arrive.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fork_server = ForkServer()
    try:
        settings = with_descriptors(settings)
        # Before the sockets, which it does not need.
        fork_server.fork()
        reserved = reserve(settings)
    except ValueError as error:
        logger.error("cannot start: %s", error)
        return 1
    except OSError as error:
        logger.error(
            "cannot start: %s:%d: %s; set another %s or %s",
            settings.host, settings.port, error.strerror, env_name("host"), env_name("port"),
        )  # fmt: skip
        return 1
    with reserved:
        settings = settings.model_copy(update={"port": reserved.getsockname()[1]})
        logger.info(
            "%d front ends on %s, engines on %s", settings.frontends,
            http_url(settings.host, settings.port, tls=settings.tls_certificate is not None),
            ", ".join(settings.devices or (settings.device,)),
        )  # fmt: skip
        supervisor = Supervisor(
            settings,
            engines=engine_settings(settings),
            frontends=settings.frontends,
            banner=for_people,
            fork_server=fork_server,
        )
        return asyncio.run(supervisor.run(signals=True))


def engine_settings(settings: Settings) -> list[Settings]:
    """Settings of each engine, with its own devices. Ranks on CPUs share the cores, except one for HTTP."""
    engines = settings.devices or (settings.device,)
    ranks = sum(len(engine.split("+")) for engine in engines)
    threads = max(1, (cores() - 1) // ranks)
    return [
        settings.model_copy(
            update={
                "device": engine.split("+")[0],
                "devices": settings.devices and (engine,),
                "torch_threads": settings.torch_threads
                or (threads if engine.startswith("cpu") else None),
            }
        )
        for engine in engines
    ]
