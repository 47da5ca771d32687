"""HTTPS of the listener: its own certificate, and whose certificates it takes. Whom those name is no matter here."""

from __future__ import annotations

import ssl
from typing import Final

from mcproxy.settings import Tls

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}


def context(tls: Tls) -> ssl.SSLContext | None:
    """None for plain HTTP. Raises OSError (`ssl.SSLError` is one) where the files are not what they should be."""
    if tls.certificate is None:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
    made.minimum_version = _VERSIONS[tls.minimum_version]
    made.verify_mode = ssl.CERT_NONE if tls.client_ca is None else _CLIENTS[tls.client_certificate]
    renew(made, tls)
    return made


def renew(context: ssl.SSLContext, tls: Tls) -> None:
    """Has new connections get the certificate that is in the files now. Raises OSError, and then changes nothing."""
    assert tls.certificate is not None
    # Into another one first: what does not fit must not take the place of what does.
    for taker in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        # A password, or OpenSSL would ask the terminal for that of a key that has one.
        taker.load_cert_chain(tls.certificate, tls.key, password="")
