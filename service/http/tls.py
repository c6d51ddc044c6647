"""TLS as uvicorn takes it, checked before the server starts, and read again while it runs."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from turbofno.service.settings import Settings


def tls_options(settings: Settings) -> dict[str, Any]:
    """Keywords of uvicorn.Config for the TLS that the settings ask for; none without a certificate.

    TLS 1.2 is the oldest that is spoken. With `tls_client_ca` only clients with a certificate of that authority
    are let in.

    Raises:
        ValueError: a file cannot be read, or key and certificate do not belong together.
    """
    if settings.tls_certificate is None:
        return {}
    _read(settings)
    authority = settings.tls_client_ca
    options: dict[str, Any] = {
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
    }
    if authority is not None:
        options |= {"ssl_ca_certs": str(authority), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


class Certificates:
    """The certificates that new connections of a running server get; those that are open keep theirs."""

    def __init__(self, settings: Settings, listening: ssl.SSLContext) -> None:
        """Have `listening`, the context of a socket, hand them out. Raises ValueError if the files cannot be used."""
        self._settings = settings
        self.reload()
        # called in every handshake, whether the client names a host or not
        listening.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again. Raises ValueError, and keeps what was, if they cannot be used."""
        self._current = _read(self._settings)

    def _choose(self, connection: ssl.SSLObject, *_: object) -> None:
        connection.context = self._current


def _read(settings: Settings) -> ssl.SSLContext:
    authority = settings.tls_client_ca
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        assert settings.tls_certificate is not None
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=_no_password)
        if authority is not None:
            context.load_verify_locations(authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError) as error:
        names = ", ".join(
            f"{env_name(name)}={value}"
            for name in ("tls_certificate", "tls_key", "tls_client_ca")
            if (value := getattr(settings, name)) is not None
        )
        raise ValueError(f"TLS cannot be set up with {names}: {error}") from None
    return context


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal, and a server without one would hang."""
    raise OSError("the key is encrypted; give one that is not")
