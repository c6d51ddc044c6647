"""TLS options for uvicorn, checked before the server starts; certificates are reloaded while it runs."""

from __future__ import annotations

import ssl
from typing import Any

from turbofno.service.settings import Settings, env_name


def tls_options(settings: Settings) -> dict[str, Any]:
    """TLS arguments of uvicorn.Config; none without a certificate.

    TLS 1.2 is the minimum. With `tls_client_ca` clients need a certificate of that authority.

    Raises:
        ValueError: a file cannot be read, or key and certificate do not match.
    """
    if settings.tls_certificate is None:
        return {}
    _read(settings)
    authority = settings.tls_client_ca
    return {
        "ssl_certfile": settings.tls_certificate,
        "ssl_keyfile": settings.tls_key,
        "ssl_ca_certs": authority,
        "ssl_cert_reqs": ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
    }


class Certificates:
    """The certificates of new connections; a reload does not affect open ones."""

    def __init__(self, settings: Settings, listening: ssl.SSLContext) -> None:
        """Attach to `listening`, the context of a socket. Raises ValueError if the files cannot be used."""
        self._settings = settings
        self.reload()
        # Called in every handshake, with or without a server name.
        listening.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again; on an error, raise ValueError and keep the present certificates."""
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
    """Raise OSError: without a callback OpenSSL prompts at the terminal, and the server hangs."""
    raise OSError("the key is encrypted; give one that is not")
