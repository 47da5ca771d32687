"""The control socket from the command's side: find the gateway of a configuration, and ask it."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mcproxy.service import control_socket

TIMEOUT: Final = 10.0
"""Seconds for an answer."""


class NotRunning(Exception):
    """No gateway of this configuration runs, or none that this user may reach. The text says what to do."""


class RefusedByGateway(Exception):
    """The gateway refused; the text is its own. `is_missing`: it has no such thing; else the input is wrong."""

    def __init__(self, sentence: str, *, is_missing: bool) -> None:
        super().__init__(sentence)
        self.is_missing = is_missing


class RunningGateway:
    """The gateway that was started last with a configuration. Raises NotRunning."""

    def __init__(self, configuration: Path) -> None:
        sockets = control_socket.live_sockets(configuration)
        if not sockets:
            raise NotRunning(f"no gateway runs here with {configuration}: start it, or name another file with --config")
        self._path = sockets[0]
        self.others = len(sockets) - 1
        """Further gateways that run with the same configuration, started by hosts, say."""

    def get(self, path: str) -> dict[str, Any]:
        """The answer to a question. Raises NotRunning and RefusedByGateway."""
        return self._ask("GET", path, None)

    def post(self, path: str, text: str = "") -> dict[str, Any]:
        """The answer to an order. Raises NotRunning and RefusedByGateway."""
        return self._ask("POST", path, text)

    def _ask(self, method: str, path: str, text: str | None) -> dict[str, Any]:
        connection = _UnixConnection(self._path)
        try:
            connection.request(method, path, text)
            response = connection.getresponse()
            found = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotRunning(f"the gateway does not answer at {self._path}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            sentence = str(found.get("error", response.status))
            raise RefusedByGateway(sentence, is_missing=response.status == http.client.NOT_FOUND)
        return dict(found)


def server_path(name: str, what: str) -> str:
    """The path of an upstream's `what`."""
    return f"/servers/{quote(name, safe='')}/{what}"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._unix_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._unix_path))
