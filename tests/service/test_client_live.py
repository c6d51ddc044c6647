"""The client over real connections: shared by threads and processes, concurrent in asyncio, without a server."""

from __future__ import annotations

import asyncio
import gc
import io
import math
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import numpy as np
import pytest

from turbofno_client import AsyncClient, BadInput, Client, ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIELD = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(1, 12)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


class _Doubling(BaseHTTPRequestHandler):
    """A real server that returns twice its input, after refusing the first request to each path.

    The id of a request is the client's port, which tells its connections apart.
    """

    protocol_version = "HTTP/1.1"
    turned_away: set[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path not in self.turned_away:
            self.turned_away.add(self.path)
            self._answer(429, b"", {"Retry-After": "0"})
            return
        answer = _npy(2 * np.load(io.BytesIO(body)))
        self._answer(200, answer, {"X-Request-Id": str(self.client_address[1])})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


@pytest.fixture
def live_url() -> Iterator[str]:
    handler = type("Handler", (_Doubling,), {"turned_away": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_sync_client_is_shared_by_threads_over_real_connections(live_url: str) -> None:
    results: dict[int, np.ndarray] = {}
    with Client(live_url) as client:

        def work(number: int) -> None:
            results[number] = client.predict(f"m{number}", FIELD + number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for number in range(4):
        np.testing.assert_array_equal(results[number], 2 * (FIELD + number))


def _in_a_fork(call: Callable[[], object]) -> str:
    """Return the call's result in a forked process as text, or the name of its exception."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writer, str(call()).encode())
        except Exception as error:
            os.write(writer, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result


def test_a_forked_process_does_not_share_the_connections_of_its_parent(live_url: str) -> None:
    with Client(live_url) as client:

        def connection() -> str | None:
            return client.predict_detailed("m", FIELD).request_id

        ours = connection()
        theirs = _in_a_fork(connection)
        assert theirs.isdigit()
        assert theirs != ours
        assert connection() == ours


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_event_loops_one_after_the_other_share_an_asyncio_client(live_url: str) -> None:
    """Python's warning of connections that a loop leaves open when it ends is ignored."""
    client = AsyncClient(live_url)
    for number in range(3):
        doubled = asyncio.run(client.predict("m", FIELD + number))
        np.testing.assert_array_equal(doubled, 2 * (FIELD + number))
    asyncio.run(client.close())
    with pytest.raises(BadInput, match="the client is closed"):
        asyncio.run(client.predict("m", FIELD))
    gc.collect()


def test_a_closed_client_is_closed_in_a_forked_process_too(live_url: str) -> None:
    client = Client(live_url)
    client.close()
    assert _in_a_fork(lambda: client.predict("m", FIELD)) == "BadInput"


def test_no_time_limit_is_an_infinite_one(live_url: str) -> None:
    with Client(live_url, timeout=math.inf) as client:
        np.testing.assert_array_equal(client.predict("m", FIELD, deadline=math.inf), 2 * FIELD)


def test_async_client_predicts_concurrently_over_real_connections(live_url: str) -> None:
    async def main() -> list[np.ndarray]:
        async with AsyncClient(live_url) as client:
            return await asyncio.gather(*(client.predict(f"m{i}", FIELD + i) for i in range(8)))

    for number, result in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(result, 2 * (FIELD + number))


def test_connection_failed_when_nothing_listens(free_port: int) -> None:
    with (
        Client(f"http://127.0.0.1:{free_port}", retries=1) as client,
        pytest.raises(ConnectionFailed, match=f"127.0.0.1:{free_port}"),
    ):
        client.predict("m", FIELD)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
