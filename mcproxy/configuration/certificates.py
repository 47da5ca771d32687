"""Check that the files of `proxy.tls` can be used together, before the gateway listens."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from mcproxy.settings import Tls


def certificate_faults(tls: Tls) -> Iterator[tuple[str, str]]:
    """What is wrong with the files, each with its key in `proxy.tls`."""
    if tls.certificate is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With a password: OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(tls.certificate, tls.key, password="")
    except (ssl.SSLError, OSError) as error:
        yield _fault(tls, str(getattr(error, "reason", None) or error))
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (ssl.SSLError, OSError):
            yield "client_ca", "holds no certificate in PEM format"


def _fault(tls: Tls, reason: str) -> tuple[str, str]:
    key = "certificate" if tls.key is None else "key"
    if reason == "KEY_VALUES_MISMATCH":
        return key, f"is not the private key of the certificate in {tls.certificate}"
    if not _has_certificate(tls):
        return "certificate", "holds no certificate in PEM format"
    if tls.key is None:
        return "certificate", "holds no private key that can be used: set proxy.tls.key"
    return "key", "holds no private key in PEM format without a password"


def _has_certificate(tls: Tls) -> bool:
    assert tls.certificate is not None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(tls.certificate)
    except (ssl.SSLError, OSError):
        return False
    return True
