"""The server process: uvicorn with the service's limits, and a drain on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from turbofno.service import logs
from turbofno.service.app import create_app, drain
from turbofno.service.context import AppContext
from turbofno.service.http.acceptor import Acceptor
from turbofno.service.http.edge import Edge
from turbofno.service.http.tls import Certificates, tls_options
from turbofno.service.processes.port import bind
from turbofno.service.settings import env_name, exposure_warnings, http_url, misspelt_variables
from turbofno.service.system import (
    SWITCH_SECONDS,
    keep_imports,
    keep_models,
    on_hangup,
    with_descriptors,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from types import FrameType

    from fastapi import FastAPI

    from turbofno.service.settings import Settings

    OnReady = Callable[[str, AppContext], None]

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 2
"""Time for clients to read the responses that are ready when the drain ends."""


def run(settings: Settings, *, on_ready: OnReady | None = None) -> int:
    """Serve until a signal; return the exit status.

    The status is 0 after a drain, 1 if the start failed or was aborted, or if the GPU failed (after a drain). While the
    device is busy or a model is loaded, the function ends the process with that status instead of returning.

    `on_ready` is called once with the server's URL and context, when all models are warm.
    """
    # Imports PyTorch, which front ends do not need.
    from turbofno.service.pipeline.worker import THREAD_NAME
    from turbofno.service.runtime.repository import LOADER_NAME

    logs.configure(settings)
    logs.omit_origins()
    sys.setswitchinterval(SWITCH_SECONDS)
    terminal_is_gone = on_hangup()
    for problem in (*misspelt_variables(os.environ), *exposure_warnings(settings)):
        logger.warning(problem)
    try:
        settings = with_descriptors(settings)
        app = create_app(settings)
        server = DrainingServer(app, on_ready, terminal_is_gone)
    except (ValueError, OSError) as error:
        logger.error("cannot start: %s", error)
        return 1
    keep_imports()
    context: AppContext = app.state.context
    try:
        server.run()
    except SystemExit:
        # uvicorn could not listen, and has logged the address and the error.
        logger.error("cannot start: set another %s or %s", env_name("host"), env_name("port"))
        return 1
    failed = bool(context.engine.failure)
    status = 1 if server.force_exit or failed else 0
    busy = (THREAD_NAME, LOADER_NAME)
    if failed or any(thread.name.startswith(busy) for thread in threading.enumerate()):
        # At interpreter exit, torch would abort the process if a batch still runs or the GPU failed, and a load would be
        # waited for.
        logging.shutdown()
        os._exit(status)
    return status


def server_config(app: FastAPI) -> uvicorn.Config:
    """The configuration of uvicorn. Raises ValueError if TLS cannot be set up."""
    settings: Settings = app.state.context.settings
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=Edge,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=FLUSH_SECONDS,
        **tls_options(settings),
        # limit_concurrency is unset: its response is plain text, and it counts idle connections.
    )


class DrainingServer(uvicorn.Server):
    """A uvicorn server that drains on the first SIGTERM or SIGINT, and aborts on the second.

    While it drains, it keeps listening and answers 503 to new requests, so that load balancers see that it is not ready
    before connections are refused. SIGHUP reloads keys and certificates, or, if the terminal was closed, acts as SIGTERM.
    """

    def __init__(
        self,
        app: FastAPI,
        on_ready: OnReady | None,
        terminal_is_gone: Callable[[], bool],
    ) -> None:
        """Raises ValueError if TLS cannot be set up."""
        super().__init__(server_config(app))
        self._context: AppContext = app.state.context
        self._on_ready = on_ready
        self._terminal_is_gone = terminal_is_gone
        self._certificates: Certificates | None = None
        self._warm = False
        self._draining = False
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Start the drain or abort. Unlike uvicorn's, it does not raise the signal again: the exit status is 0."""
        if self._draining or not self.started:
            self.force_exit = self.should_exit = True
            return
        self._draining = True
        self._context.admission.start_draining()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, listen as `_listen` does, and handle SIGHUP."""
        loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            self._certificates = Certificates(self._context.settings, self.config.ssl)
        loop.create_server = partial(self._listen, loop.create_server)  # type: ignore[method-assign]
        if threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        # A SIGHUP since they were read was ignored.
        self._read_again("start")
        await super().startup(sockets)

    async def _listen(
        self, create_server: Callable[..., Awaitable[asyncio.Server]], factory: Any, **options: Any
    ) -> asyncio.Server:
        """The event loop's `create_server` with what uvicorn has no options for."""
        settings = self._context.settings
        if "host" in options and settings.host == "::":
            # The event loop's own socket would refuse IPv4.
            del options["host"], options["port"]
            options["sock"] = bind(settings, shared=False)
        tls: dict[str, Any] = {"ssl": options.pop("ssl")}
        if tls["ssl"] is not None:
            # The event loop's limits are a minute and half of one. A connection counts from the end of its handshake only,
            # and not once it is refused, so max_connections does not bound the descriptors of silent clients.
            seconds = settings.header_timeout_seconds
            tls |= {"ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
        connections = self._context.connections
        acceptor = Acceptor(factory, lambda: settings.max_connections - connections.total, **tls)
        server = await create_server(acceptor, **options, **tls)
        acceptor.attend(server)
        return server

    def _on_hangup(self) -> None:
        if self._terminal_is_gone():
            self.handle_exit(signal.SIGHUP, None)
            return
        for what in self._read_again("SIGHUP"):
            logger.info("SIGHUP: the %s were read again", what)

    def _read_again(self, why: str) -> list[str]:
        """Read keys and certificates again; return which were read. Of others the present ones stay."""
        read = []
        for what, held in (("keys", self._context.keys), ("certificates", self._certificates)):
            if held is None:
                continue
            try:
                held.reload()
            except (ValueError, OSError) as error:
                logger.error("%s: the %s stay as they were: %s", why, what, error)
            else:
                read.append(what)
        return read

    @property
    def url(self) -> str:
        """The URL at which this machine reaches the listening socket."""
        host, port, *_ = self.servers[0].sockets[0].getsockname()
        return http_url(host, port, tls=self.config.is_ssl)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, then abort connections whose clients do not read: the process would wait for them."""
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            if isinstance(connection, Edge) and connection.flow.write_paused:
                connection.transport.abort()

    async def on_tick(self, counter: int) -> bool:
        if not self._warm and self._context.engine.ready:
            self._warm = True
            keep_models()
            if self._on_ready is not None:
                self._on_ready(self.url, self._context)
        if self._context.engine.failure and not self._draining:
            logger.critical("exiting with status 1: %s", self._context.engine.failure)
            self._draining = True
            self._context.admission.start_draining()
        if self._draining and self._drain is None:
            logger.info("draining: refusing new requests, finishing accepted ones")
            self._drain = asyncio.create_task(
                drain(self._context, self._context.settings.drain_seconds)
            )
        if self._drain is not None and self._drain.done():
            self.should_exit = True
        return await super().on_tick(counter)
