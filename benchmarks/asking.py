"""Requests as a client of either era puts them on the wire, with a place for a number in each.

Pure but for `open_session` and `answered`, which ask one thing over a connection of their own.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from benchmarks.variants import KEY
from mcproxy.protocol.eras import (
    LATEST,
    LATEST_HANDSHAKE,
    META_CLIENT_CAPABILITIES,
    META_CLIENT_INFO,
    META_VERSION,
    Era,
)
from mcproxy.protocol.headers import standard_headers
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import row_of
from mcproxy.upstream.handshake.streamable_http import SESSION, VERSION

NUMBER: Final = "#########"
"""Stands where each request has its own number, of as many digits."""
PATIENCE: Final = 10.0
"""Seconds for a proxy to answer at all."""
PAUSE: Final = 0.01
NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})
_INFO: Final = {"name": "bench", "version": "1"}

HEADERS: Final = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
    "Authorization": f"Bearer {KEY}",
}

Json = dict[str, Any]

INITIALIZE: Final[Json] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": LATEST_HANDSHAKE, "capabilities": {}, "clientInfo": _INFO},
}
INITIALIZED: Final[Json] = {"jsonrpc": "2.0", "method": "notifications/initialized"}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and by what its answer is known."""

    method: str
    params: Mapping[str, Any]
    mark: str
    at_least: int
    """Bytes of the answer's body."""


@dataclass(frozen=True, slots=True)
class Post:
    """One POST; NUMBER may stand in both parts."""

    headers: Mapping[str, str]
    body: str

    def wire(self, port: int, path: str = "/mcp") -> str:
        fields = {"Host": f"127.0.0.1:{port}", **self.headers, "Content-Length": str(len(self.body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {path} HTTP/1.1\r\n{head}\r\n{self.body}"


def post(ask: Ask, era: Era, session: str | None, fields: Mapping[str, str] = NO_FIELDS) -> Post:
    """`session` is None in the stateless era, and where a server gave none. `fields` go beside those of the era."""
    if era is Era.HANDSHAKE:
        return Post({**handshake_headers(session), **fields}, _message(ask.method, ask.params))
    meta = {**ask.params.get("_meta", {}), META_VERSION: LATEST, META_CLIENT_INFO: _INFO, META_CLIENT_CAPABILITIES: {}}
    params = {**ask.params, "_meta": meta}
    mirrored = standard_headers(LATEST, row_of(ask.method), {name: raw(value) for name, value in params.items()})
    return Post({**HEADERS, **mirrored, **fields}, _message(ask.method, params))


def handshake_headers(session: str | None) -> dict[str, str]:
    """Of every request in a session."""
    return {**HEADERS, VERSION: LATEST_HANDSHAKE, **({} if session is None else {SESSION: session})}


def _message(method: str, params: Mapping[str, Any]) -> str:
    # A number of nine digits, wherever the text NUMBER is all of a value.
    text = json.dumps({"jsonrpc": "2.0", "id": NUMBER, "method": method, "params": params}, separators=(",", ":"))
    return text.replace(f'"{NUMBER}"', NUMBER)


def open_session(port: int) -> str | None:
    """The id of a new handshake session. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", "/mcp", json.dumps(INITIALIZE), HEADERS)
        response = connection.getresponse()
        session = response.headers.get(SESSION)
        response.read()
        connection.request("POST", "/mcp", json.dumps(INITIALIZED), handshake_headers(session))
        connection.getresponse().read()
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
    return session


def answered(port: int, ask: Ask, era: Era) -> str | None:
    """Asks until the answer is as expected, in a session that is returned. Raises TimeoutError with the last answer."""
    said, deadline = "nothing", time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            session = open_session(port) if era is Era.HANDSHAKE else None
            said = _exchange(port, post(ask, era, session))
        except OSError as error:
            said = str(error)
        else:
            if ask.mark in said and len(said) >= ask.at_least:
                return session
        time.sleep(PAUSE)
    raise TimeoutError(f"no answer to {ask.method} on port {port}; the last was: {said[:500]}")


def _exchange(port: int, asked: Post) -> str:
    number = "1" * len(NUMBER)
    headers = {name: value.replace(NUMBER, number) for name, value in asked.headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", "/mcp", asked.body.replace(NUMBER, number), headers)
        return connection.getresponse().read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
