"""TLS as uvicorn takes it, checked before the server starts."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

from service.settings import env_name

if TYPE_CHECKING:
    from service.settings import Settings


def tls_options(settings: Settings) -> dict[str, Any]:
    """Keywords of uvicorn.Config for the TLS that the settings ask for; none without a certificate.

    TLS 1.2 is the oldest that is spoken. With `tls_client_ca` only clients with a certificate of that authority
    are let in.

    Raises:
        ValueError: a file cannot be read, or key and certificate do not belong together.
    """
    if settings.tls_certificate is None:
        return {}
    certificate, key, authority = (
        settings.tls_certificate, settings.tls_key, settings.tls_client_ca,
    )  # fmt: skip
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password=_no_password)
        if authority is not None:
            context.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as error:
        names = ", ".join(
            f"{env_name(name)}={value}"
            for name in ("tls_certificate", "tls_key", "tls_client_ca")
            if (value := getattr(settings, name)) is not None
        )
        raise ValueError(f"TLS cannot be set up with {names}: {error}") from None
    options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key}
    if authority is not None:
        options |= {"ssl_ca_certs": str(authority), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal, and a server without one would hang."""
    raise OSError("the key is encrypted; give one that is not")
