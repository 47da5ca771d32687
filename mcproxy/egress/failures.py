"""Says why a connection was not made, with the setting that would change that. Names no address and no password."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final

from mcproxy.http.client import ConnectFailed, ProxyFailed

EXPIRED: Final = 10
NOT_YET_VALID: Final = 9
SELF_SIGNED: Final = 18
OTHER_NAME: Final = frozenset({62, 63, 64})
UNKNOWN_ISSUER: Final = frozenset({19, 20, 21})
"""OpenSSL's codes (X509_V_ERR_...) for certificates."""

HTTP_2: Final = "it speaks only HTTP/2, and the gateway HTTP/1.1: have it, or a proxy in front of it, accept HTTP/1.1"
CLIENT_CERTIFICATE: Final = "it wants a client certificate: set `tls.certificate` and `tls.key`"


def connect_failure(error: ConnectFailed, settings: str = "tls") -> str:
    """The reason, as a phrase. `settings` is the key with `ca` that is for this server: `tls` or `proxy.egress`."""
    cause = error.__cause__
    if error.proxy is None:
        return reason(cause, settings)
    if isinstance(cause, ssl.SSLError):
        return f"through the proxy {error.proxy}: {reason(cause, settings)}"
    return f"the proxy {error.proxy} ({error.proxy.source}) fails: {reason(cause, settings)}"


def reason(cause: BaseException | None, settings: str) -> str:
    """The reason of a direct connection, or of that to the proxy."""
    match cause:
        case TimeoutError():
            return "it does not answer"
        case ProxyFailed() as failed:
            return str(failed)
        case ssl.SSLCertVerificationError() as refused:
            return f"its certificate is not accepted: {_refusal(refused, settings)}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER" | "HTTP_REQUEST"):
            return "it does not speak TLS: correct the port, or write http://"
        case ssl.SSLError() as failed:
            return alert(str(failed)) or f"it does not speak TLS as we do: {failed.reason or failed}"
        case socket.gaierror() as failed:
            return f"its name is not known: {failed.strerror}"
        case ConnectionRefusedError(errno=int(number)):
            return f"{os.strerror(number)}: nothing listens there"
        case OSError(errno=int(number)):
            return os.strerror(number)
        case _:
            return str(cause)


def alert(text: str) -> str | None:
    """What a TLS alert of the server asks for, if that is clear: some arrive only after the handshake."""
    said = text.lower().replace("_", " ")  # by its name or in words, as OpenSSL and the loop have it
    if "no application protocol" in said:
        return HTTP_2
    if "certificate required" in said or "alert handshake failure" in said:
        return CLIENT_CERTIFICATE
    if "alert unknown ca" in said or "alert bad certificate" in said or "alert certificate " in said:
        return f"it does not accept the client certificate (`tls.certificate`): {text}"
    return None


def _refusal(refused: ssl.SSLCertVerificationError, settings: str) -> str:
    own, said = settings == "tls", refused.verify_message
    match refused.verify_code:
        case code if code == EXPIRED:
            advice = "renew it at the server"
        case code if code == NOT_YET_VALID:
            advice = "check the clocks of both machines"
        case code if code in OTHER_NAME:
            advice = "correct the host in `url`" + (", or set `tls.server_name` to a name in it" if own else "")
        case code if code == SELF_SIGNED:
            advice = f"set `{settings}.ca` to a file with this certificate"
        case code if code in UNKNOWN_ISSUER:
            both = " (or `proxy.egress.ca` for all)" if own else ""
            advice = f"set `{settings}.ca`{both} to a file with the authority that signed it"
        case _:
            return said
    return f"{said}: {advice}"
