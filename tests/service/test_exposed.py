"""A server process with API keys and TLS: which requests it accepts, and that secrets stay out of its log."""

from __future__ import annotations

import io
import shutil
import signal
import socket
import ssl
import subprocess
import time
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from tests.clock import within
from tests.e2e.server_process import ServerProcess, limited
from tests.service.processes.running import until
from tests.service.tiny import rollable_module, save_rollable, save_tiny
from turbofno.service.http.tls import tls_options
from turbofno.service.settings import Settings
from turbofno_client import Client, ConnectionFailed, TurboFNOError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]

KEY = "alice-0123456789abcdef"
UNREAD = 'turbofno_rejections_total{model="",reason="unread"}'
FIELD = np.sin(np.linspace(0, 6, 16, dtype=np.float32)).reshape(1, 1, 16)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """authority.pem; server.* for 127.0.0.1 and client.*, signed by it; stranger.*, self-signed."""
    folder = tmp_path_factory.mktemp("certificates")
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    # From 3.13 on Python refuses an authority without `keyUsage`, and what it signed without its key's identifier (RFC 5280).
    usage = "keyUsage=keyCertSign,digitalSignature"
    for name in ("authority", "stranger"):
        openssl(
            folder, *new, "-x509", "-addext", usage, "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem",
        )  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    for name in ("server", "client"):
        openssl(folder, *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", "request")
        openssl(
            folder, "x509", "-req", "-in", "request", "-CA", "authority.pem", "-CAkey", "authority.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem",
        )  # fmt: skip
    return folder


def over_tls(certificates: Path, folder: Path, *options: str, fault: str = "") -> ServerProcess:
    save_tiny(folder / "repository")
    words = ["--tls-certificate", str(certificates / "server.pem")]
    words += ["--tls-key", str(certificates / "server.key"), *options]
    log, trust = folder / "log.txt", trusting(certificates)
    return ServerProcess(folder / "repository", log, *words, fault=fault, trust=trust)


def trusting(certificates: Path, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates / "authority.pem")
    if client is not None:
        context.load_cert_chain(certificates / f"{client}.pem", certificates / f"{client}.key")
    return context


def connect(
    server: ServerProcess, known: ssl.SSLContext, opened: ExitStack, *, unread: int = 0
) -> ssl.SSLSocket:
    """A TLS connection, whose client's socket takes about `unread` bytes that it has not read, if that is given."""
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    if unread:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, unread)
    return opened.enter_context(known.wrap_socket(plain, server_hostname="127.0.0.1"))


def metric(server: ServerProcess, known: ssl.SSLContext, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", verify=known).text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_keys_and_client_certificates_on_a_real_server(certificates: Path, tmp_path: Path) -> None:
    save_tiny(tmp_path / "repository")
    (tmp_path / "keys").write_text(f"alice {KEY} fields=4\n")
    options = {
        "api-keys-file": tmp_path / "keys",
        "tls-certificate": certificates / "server.pem",
        "tls-key": certificates / "server.key",
        "tls-client-ca": certificates / "authority.pem",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    known = trusting(certificates, "client")
    server = ServerProcess(tmp_path / "repository", tmp_path / "log.txt", *words, trust=known)
    with server:
        for stranger in (trusting(certificates), trusting(certificates, "stranger")):
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                httpx.get(f"{server.url}/healthz", verify=stranger)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/healthz", verify=True)
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http"))
        with (
            Client(server.url, verify=known) as client,
            pytest.raises(TurboFNOError, match="Authorization") as refused,
        ):
            client.models()
        assert refused.value.status == 401
        with Client(server.url, verify=known, api_key=KEY, retries=0) as client:
            assert client.predict("tiny-1d", FIELD).shape == (1, 2, 16)
            with pytest.raises(TurboFNOError, match="API key 'alice'") as over:
                client.predict("tiny-1d", np.repeat(FIELD, 5, axis=0))
            assert over.value.status == 413
        assert server.stop() == 0, server.tail()
    log = server.log.read_text()
    assert f"ready at https://127.0.0.1:{server.port}" in log
    assert "alice" in log
    assert KEY not in log
    assert "Traceback" not in log


@pytest.mark.parametrize("options", [(), ("--frontends", "2")], ids=["one", "several"])
def test_connections_that_never_begin_tls_hold_descriptors_for_a_limited_time(
    certificates: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    known = trusting(certificates)
    options += ("--header-timeout-seconds", "2")

    def serves() -> bool:
        try:
            return httpx.get(f"{server.url}/healthz", verify=known).status_code == 200
        except httpx.TransportError:
            return False

    server = over_tls(certificates, tmp_path, *options, fault=limited(200, 200))
    with server, ExitStack() as silent:
        began = time.monotonic()
        for _ in range(600):
            address = ("127.0.0.1", server.port)
            silent.enter_context(socket.create_connection(address, timeout=10))
        assert not serves(), "no descriptor is left"
        until(serves, 20)
        # The event loop's own limit is a minute.
        within(time.monotonic() - began, 10.0)
        assert server.stop() == 0, server.tail()
    assert "Traceback" not in server.log.read_text()


def test_a_burst_of_tls_connections_is_served(certificates: Path, tmp_path: Path) -> None:
    """Those that wait behind the first are accepted by the service itself, with the same TLS and limits."""
    known = trusting(certificates)
    server = over_tls(certificates, tmp_path, "--header-timeout-seconds", "2")
    with server, ExitStack() as open_ones:
        server.process.send_signal(signal.SIGSTOP)
        waiting = [
            open_ones.enter_context(
                socket.create_connection(("127.0.0.1", server.port), timeout=20)
            )
            for _ in range(12)
        ]
        silent, noisy, *others = waiting
        noisy.sendall(b"GET / HTTP/1.1\r\n\r\n")
        server.process.send_signal(signal.SIGCONT)
        for one in others:
            with known.wrap_socket(one, server_hostname="127.0.0.1") as secure:
                secure.sendall(
                    b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
                )
                assert secure.recv(12) == b"HTTP/1.1 200"
        for one in (silent, noisy):
            # Ended, by a limit and by an error.
            with suppress(ConnectionResetError):
                while one.recv(4096):
                    pass
        assert server.stop() == 0, server.tail()
    assert "Traceback" not in server.log.read_text()


def test_a_refused_connection_does_not_count_until_its_client_ends_tls(
    certificates: Path, tmp_path: Path
) -> None:
    known = trusting(certificates)
    server = over_tls(certificates, tmp_path, "--max-connections", "3")
    with server, ExitStack() as opened:

        def status(connection: ssl.SSLSocket) -> int:
            with suppress(ConnectionError, ssl.SSLError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return int(connection.recv(1000).split(maxsplit=2)[1])

        def accepted() -> ssl.SSLSocket:
            found: list[ssl.SSLSocket] = []

            def one_more() -> bool:
                found.append(connect(server, known, opened))
                return status(found[-1]) == 200

            until(one_more, 10)
            return found[-1]

        first, *_ = [accepted() for _ in range(3)]
        assert status(connect(server, known, opened)) == 503
        first.close()
        accepted()
        assert server.stop() == 0, server.tail()
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("options", [(), ("--frontends", "1")], ids=["one", "several"])
def test_a_large_answer_over_tls_is_held_until_it_is_read_and_dropped_if_it_is_not(
    certificates: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """TLS buffers a write of any size, which would count against no limit, and end with the time of an idle connection."""
    known = trusting(certificates)
    save_tiny(tmp_path / "repository", "tiny-2d", n_dim=2)
    words = ("--keep-alive-seconds", "2", "--header-timeout-seconds", "1", *options)
    body = bytes(512 * 64 * 64 * 4)
    head = (
        "POST /v2/models/tiny-2d/infer?shape=512,1,64,64 HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: 0\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    server = over_tls(certificates, tmp_path, *words)
    with server, ExitStack() as opened:

        def asked() -> ssl.SSLSocket:
            connection = connect(server, known, opened, unread=1 << 17)
            connection.sendall(head.encode() + body)
            assert connection.recv(12) == b"HTTP/1.1 200"
            return connection

        slow, got = asked(), 0
        began = time.monotonic()
        while got < 2 * len(body):
            piece = slow.recv(1 << 16)
            assert piece, f"ended after {got} bytes"
            got += len(piece)
            time.sleep(0.005)
        assert time.monotonic() - began > 3.5, "longer than an idle connection lives"
        asked()
        until(lambda: metric(server, known, "turbofno_inflight_bytes") > len(body), 10)
        until(lambda: metric(server, known, UNREAD) == 1, 10)
        for _ in range(4):
            asked().close()
        until(lambda: server.log.read_text().count("status=499") == 5, 10)
        assert metric(server, known, "turbofno_inflight_bytes") == 0
        assert server.stop() == 0, server.tail()


def test_a_large_frame_over_tls_is_held_until_it_is_read_and_dropped_if_it_is_not(
    certificates: Path, tmp_path: Path
) -> None:
    """As whole answers above."""
    known = trusting(certificates)
    save_rollable(tmp_path / "repository", rollable_module())
    most = ("--max-fields-per-request", "32768", "--max-queued-fields-per-model", "32768")
    words = ("--keep-alive-seconds", "2", "--max-queued-fields", "32768", *most)
    with io.BytesIO() as array:
        np.save(array, np.zeros((32768, 1, 64), "<f4"))
        body = array.getvalue()
    head = (
        "POST /v1/models/tiny-flow:rollout?steps=1 HTTP/1.1\r\nHost: localhost\r\nAccept: application/vnd.turbofno.frames\r\n"
        f"Content-Type: application/x-npy\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with over_tls(certificates, tmp_path, *words) as server, ExitStack() as opened:
        connection = connect(server, known, opened, unread=1 << 17)
        connection.sendall(head.encode() + body)
        assert connection.recv(12) == b"HTTP/1.1 200"
        until(lambda: metric(server, known, UNREAD) == 1, 10)
        assert metric(server, known, "turbofno_inflight_bytes") == 0
        assert server.stop() == 0, server.tail()


@pytest.mark.parametrize("options", [(), ("--frontends", "2")], ids=["one", "several"])
def test_sighup_has_keys_and_certificates_read_again(
    certificates: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    save_tiny(tmp_path / "repository")
    paths = {name: tmp_path / name for name in ("keys", "certificate", "key", "authority")}
    paths["keys"].write_text(f"alice {KEY}\n")
    for name, source in {
        "certificate": "server.pem",
        "key": "server.key",
        "authority": "authority.pem",
    }.items():
        shutil.copy(certificates / source, paths[name])
    words = ["--api-keys-file", str(paths["keys"]), "--tls-certificate", str(paths["certificate"])]
    words += ["--tls-key", str(paths["key"]), "--tls-client-ca", str(paths["authority"])]
    known = trusting(certificates, "client")
    log = tmp_path / "log.txt"

    def hang_up(said: str) -> None:
        """Send SIGHUP, and wait until every process with HTTP has logged the text."""
        before = log.read_text().count(said)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: log.read_text().count(said) == before + (2 if options else 1), 20)

    def status(key: str, trust: ssl.SSLContext = known) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{server.url}/v1/models", headers=headers, verify=trust).status_code

    def presented() -> str:
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            known.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            certificate = secure.getpeercert()
        assert certificate is not None
        return str(dict(pair for (pair,) in certificate["subject"])["commonName"])

    with ServerProcess(tmp_path / "repository", log, *words, *options, trust=known) as server:
        started = "Application startup complete"
        until(lambda: log.read_text().count(started) == (2 if options else 1), 20)
        until(lambda: {status(KEY) for _ in range(8)} == {200}, 20)
        assert (status(KEY[::-1]), presented()) == (401, "server")

        paths["keys"].write_text(f"bob {KEY[::-1]}\n")
        for name, source in {"certificate": "client.pem", "key": "client.key"}.items():
            shutil.copy(certificates / source, paths[name])
        hang_up("SIGHUP: the certificates were read again")
        assert (status(KEY), status(KEY[::-1]), presented()) == (401, 200, "client")

        # unusable files leave the old ones in use
        paths["keys"].write_text("nonsense\n")
        paths["key"].write_text("nonsense")
        hang_up("SIGHUP: the certificates stay as they were: TLS cannot be set up")
        assert "SIGHUP: the keys stay as they were: TURBOFNO_API_KEYS_FILE" in log.read_text()
        assert (status(KEY), status(KEY[::-1]), presented()) == (401, 200, "client")

        # clients of an authority that was removed are refused
        shutil.copy(certificates / "client.key", paths["key"])
        shutil.copy(certificates / "stranger.pem", paths["authority"])
        hang_up("SIGHUP: the certificates were read again")
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            status(KEY[::-1])
        stranger = trusting(certificates, "stranger")
        assert status(KEY[::-1], stranger) == 200
        assert server.stop() == 0, server.tail()
    text = log.read_text()
    assert KEY not in text
    assert KEY[::-1] not in text
    assert "Traceback" not in text


class _Empty(BaseHTTPRequestHandler):
    """A server without models."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"models": []}')

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


@pytest.fixture
def self_signed(certificates: Path) -> Iterator[str]:
    """URL of a server whose certificate only the test's authority signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_client_trusts_the_systems_authorities(
    certificates: Path, self_signed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of an organisation, which are no part of the package certifi."""

    def of_the_system(context: ssl.SSLContext, _: ssl.Purpose) -> None:
        context.load_verify_locations(certificates / "authority.pem")

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", of_the_system)
    with Client(self_signed) as client:
        assert client.models() == []


def test_the_client_checks_certificates_according_to_verify(
    self_signed: str, certificates: Path
) -> None:
    for verify in (str(certificates / "authority.pem"), trusting(certificates), False):
        with Client(self_signed, verify=verify) as client:
            assert client.models() == []
    for stranger in (True, str(certificates / "stranger.pem")):
        with (
            Client(self_signed, verify=stranger, retries=0) as client,
            pytest.raises(ConnectionFailed, match="certificate verify failed"),
        ):
            client.models()
    with pytest.raises(OSError, match="No such file"):
        Client(self_signed, verify=str(certificates / "absent.pem"))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"tls_certificate": "absent.pem"}, "No such file"),
        ({"tls_certificate": "server.pem"}, "TURBOFNO_TLS_CERTIFICATE"),
        ({"tls_certificate": "server.pem", "tls_key": "client.key"}, "MISMATCH"),
        ({"tls_certificate": "server.pem", "tls_key": "locked.key"}, "encrypted"),
        ({"tls_certificate": "names", "tls_key": "server.key"}, "PEM"),
        (
            {"tls_certificate": "server.pem", "tls_key": "server.key", "tls_client_ca": "names"},
            "TURBOFNO_TLS_CLIENT_CA",
        ),
    ],
)
def test_unusable_files_fail_the_start_with_their_names(
    certificates: Path, names: dict[str, str], says: str
) -> None:
    openssl(
        certificates, "rsa", "-aes128", "-passout", "pass:secret",
        "-in", "server.key", "-out", "locked.key",
    )  # fmt: skip
    paths = {name: certificates / file for name, file in names.items()}
    with pytest.raises(ValueError, match="TLS cannot be set up") as caught:
        tls_options(Settings(**paths))  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_without_a_certificate_there_are_no_tls_options() -> None:
    assert tls_options(Settings()) == {}
