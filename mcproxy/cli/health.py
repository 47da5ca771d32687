"""`mcproxy health`: whether the gateway of this configuration runs on this machine, for containers and supervisors.

Asks the operators' listener where there is one, else the callers'. Checks no certificate: it connects to itself.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Final

from mcproxy.cli.output import print_err, print_out
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import Configuration
from mcproxy.settings import Proxy

TIMEOUT: Final = 2.0
"""Seconds for the gateway to answer."""

_ANY: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104  # nothing is bound here
"""Where a gateway can be reached that listens on every address."""


def health(configuration: Configuration, *, ready: bool) -> int:
    """Prints the gateway's answer; FAILED where it does not run, or with `ready`, where it wants no traffic."""
    settings = configuration.settings
    at_admin = settings.admin.port is not None
    section, listener = ("admin", settings.admin) if at_admin else ("proxy", settings.proxy)
    if not listener.port:
        sentence = "is any free port, which cannot be known here: choose one"
        print_err(str(configuration.problem(sentence, section, "port")))
        return ExitCode.INPUT
    host = _ANY.get(listener.host.strip("[]"), listener.host)
    encrypted = not at_admin and settings.proxy.tls.certificate is not None
    try:
        status, text = _answer(host, listener.port, "/readyz" if ready else "/healthz", encrypted=encrypted)
    except (OSError, http.client.HTTPException) as error:
        reset = isinstance(error, ConnectionResetError) and settings.proxy.tls.client_ca is not None
        if isinstance(error, ssl.SSLError) or (encrypted and reset):
            # It speaks TLS and wants a certificate of the client: so it lives, and says no more. Its alert may be lost
            # to the reset that follows it.
            why = getattr(error, "reason", None) or error
            print_err(f"{host}:{listener.port} asks for a client's certificate: {why}")
            return ExitCode.FAILED if ready else ExitCode.OK
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        print_err(f"{host}:{listener.port} does not answer: {why}; see its log, or start it: mcproxy serve")
        return ExitCode.FAILED
    print_out(text, lines=True)
    return ExitCode.OK if status == http.client.OK else ExitCode.FAILED


def listening_at(proxy: Proxy) -> str | None:
    """The base URL of the callers' listener on this machine; None where no gateway answers there."""
    if not proxy.port:
        return None
    host, encrypted = _ANY.get(proxy.host.strip("[]"), proxy.host), proxy.tls.certificate is not None
    try:
        status, _ = _answer(host, proxy.port, "/healthz", encrypted=encrypted)
    except (OSError, http.client.HTTPException):
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if encrypted else 'http'}://{shown}:{proxy.port}" if status == http.client.OK else None


def _answer(host: str, port: int, path: str, *, encrypted: bool) -> tuple[int, str]:
    if encrypted:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=TIMEOUT, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(65536).decode(errors="replace").rstrip()
    finally:
        connection.close()
