"""The listener's TLS context: its certificate, which can be renewed, and the authorities for client certificates."""

from __future__ import annotations

import ssl
from typing import Final

from mcproxy.settings import Tls

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL}


def context(tls: Tls) -> ssl.SSLContext | None:
    """The TLS context; None for plain HTTP. Raises OSError (as `ssl.SSLError`) if a file is missing or invalid."""
    if tls.certificate is None:
        return None
    made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.client_ca)
    made.minimum_version = _VERSIONS[tls.minimum_version]
    made.verify_mode = ssl.CERT_NONE if tls.client_ca is None else _CLIENTS[tls.client_certificate]
    renew(made, tls)
    return made


def renew(context: ssl.SSLContext, tls: Tls) -> None:
    """Loads the certificate files anew, for new connections. Raises OSError, and then changes nothing."""
    assert tls.certificate is not None
    # First into a fresh context: a certificate that does not load must not replace one that did.
    for loading in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        # With a password, or OpenSSL would prompt for that of an encrypted key on the terminal.
        loading.load_cert_chain(tls.certificate, tls.key, password="")
