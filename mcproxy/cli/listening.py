"""Whether the gateway can listen where its configuration says, and what to do where it cannot."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from mcproxy.configuration.loading import Configuration
from mcproxy.configuration.problems import Problem
from mcproxy.settings import Admin, Proxy

_SECTIONS: Final = ("proxy", "admin")


def obstacles(configuration: Configuration) -> Iterator[Problem]:
    """Ports of the configuration that cannot be listened on now; that includes those of a gateway that runs."""
    for section in _SECTIONS:
        listener = _listener(configuration, section)
        if not listener.port:
            continue
        try:
            _try(listener.host, listener.port)
        except OSError as error:
            if (problem := obstacle(configuration, section, error)) is not None:
                yield problem


def obstacle(configuration: Configuration, section: str, error: BaseException) -> Problem | None:
    """Why the listener of `proxy` or `admin` could not be opened, with its key and a remedy; None for other errors."""
    listener = _listener(configuration, section)
    host, port = listener.host, listener.port
    other = "another port here" + (", or with --port" if section == "proxy" else "")
    match error.errno if isinstance(error, OSError) else None:
        case errno.EADDRINUSE:
            sentence, key = f"{host}:{port} is in use: stop the program that listens there, or choose {other}", "port"
        case errno.EACCES:
            sentence, key = f"listening on port {port} is not permitted: choose one above 1023", "port"
        case errno.EADDRNOTAVAIL:
            sentence, key = f"{host} is no address of this machine: choose one of its own, or 0.0.0.0 for all", "host"
        case _:
            return None
    return configuration.problem(sentence, section, key)


def _listener(configuration: Configuration, section: str) -> Proxy | Admin:
    settings = configuration.settings
    return settings.admin if section == "admin" else settings.proxy


def _try(host: str, port: int) -> None:
    """Opens a listener and closes it again. Raises OSError; a name that is not resolved is none of its errors."""
    with suppress(socket.gaierror):
        for family, kind, number, _, address in socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, number) as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen(1)
