"""What both HTTP transports share: requests with headers made from scratch, bounded bodies, errors in our own words.

Follows redirects within one origin only, so that no credential leaves it (requirements R40, R43). Speaks no MCP.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from contextlib import closing
from typing import Final

import aiohttp
import anyio
from yarl import URL

from mcproxy import __version__
from mcproxy.channel import GOODBYE, PeerGone
from mcproxy.settings import Upstream
from mcproxy.upstream.link import Hop, NotAccepted, Rejected

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
AUTHENTICATION: Final = frozenset({401, 403})
"""Statuses that speak of credentials."""
EXCERPT_BYTES: Final = 16 * 1024
EXCERPT_CHARS: Final = 300
EXCERPT_PATIENCE: Final = 5.0
MAX_REDIRECTS: Final = 3
_SAME_METHOD_REDIRECTS: Final = frozenset({307, 308})


def session(spec: Upstream) -> aiohttp.ClientSession:
    """A connection pool of one link's own: its cookies and connections are shared with nobody (R39)."""
    return aiohttp.ClientSession(
        headers={"User-Agent": f"mcproxy/{__version__}", **spec.headers},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=spec.timeouts.connect),
        connector=aiohttp.TCPConnector(limit=0),  # calls are bounded by `max_in_flight`: nothing queues here (R47)
        max_line_size=32 * 1024,
        max_field_size=32 * 1024,
    )


def origin(url: URL) -> tuple[str, str | None, int | None]:
    return url.scheme, url.host, url.port


class Requester:
    """Requests of one link to one server."""

    def __init__(self, http: aiohttp.ClientSession, hop: Hop) -> None:
        self._http = http
        self._hop = hop

    async def request(
        self, method: str, url: URL, headers: Mapping[str, str], data: bytes | None = None
    ) -> aiohttp.ClientResponse:
        """The response, its body not read. The caller releases it, or closes it.

        Raises NotAccepted where no connection could be made, PeerGone where it broke, Rejected for a redirect
        that is not followed.
        """
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._send(method, url, headers, data)
            target = _redirect(response)
            if target is None:
                return response
            response.close()
            if response.status not in _SAME_METHOD_REDIRECTS or origin(target) != origin(url):
                raise Rejected(
                    f"HTTP {response.status} redirects to {target.origin() if target.absolute else target}, "
                    "which is not followed; set `url` to the final address",
                    response.status,
                )
            url = target
        raise Rejected(f"more than {MAX_REDIRECTS} redirects")

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str], data: bytes | None
    ) -> aiohttp.ClientResponse:
        try:
            return await self._http.request(method, url, headers=headers, data=data, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError) as error:
            # ValueError: a URL or headers that cannot be sent
            raise NotAccepted(self._hop.redact(f"no connection to {url.origin()}: {_obstacle(error)}")) from error
        except (aiohttp.ClientError, OSError) as error:
            raise PeerGone(self._hop.redact(f"the connection to {url.origin()} broke: {_reason(error)}")) from error

    def rejection(self, response: aiohttp.ClientResponse, body: bytes) -> Rejected:
        """What to say of a response that is not of the protocol: its status and a short excerpt, no secret."""
        text = " ".join(self._hop.redact(body.decode(errors="replace")).split())[:EXCERPT_CHARS]
        sentence = f"HTTP {response.status} {response.reason or ''}".rstrip()
        if response.status in AUTHENTICATION:
            sentence += ": the server wants other credentials; set `headers` of this upstream"
        elif response.ok:
            sentence = f"it answered with {response.content_type!r}, neither JSON nor an event stream"
        return Rejected(f"{sentence}: {text}" if text else sentence, response.status)


async def read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body. Raises Rejected over `limit` (decompressed) bytes, PeerGone where it breaks off."""
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > limit:
                raise Rejected(f"an answer is larger than {limit} bytes (max_message_bytes)")
            chunks.append(chunk)
    except (aiohttp.ClientError, OSError) as error:
        raise PeerGone(f"the answer broke off: {_reason(error)}") from error
    return b"".join(chunks)


async def excerpt(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of an error's body, as far as it comes in a short time."""
    body = b""
    with anyio.move_on_after(EXCERPT_PATIENCE):
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) >= EXCERPT_BYTES:
                    break
        except (aiohttp.ClientError, OSError):
            return body
    return body[:EXCERPT_BYTES]


async def finish(response: aiohttp.ClientResponse) -> None:
    """Waits shortly for the end of a stream that has said all, so that its connection can serve again."""
    with closing(response), anyio.move_on_after(GOODBYE):
        await excerpt(response)


def _redirect(response: aiohttp.ClientResponse) -> URL | None:
    if not 300 <= response.status < 400:
        return None
    try:
        return response.url.join(URL(response.headers["Location"]))
    except (KeyError, ValueError):
        return None


def _obstacle(error: Exception) -> str:
    """Why there is no connection. aiohttp's own sentences say the address again."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return "it does not answer"
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as refused):
            return f"its certificate is not accepted: {refused.verify_message}"
        case aiohttp.ClientConnectorSSLError(os_error=failed):
            return f"it does not speak TLS as we do: {failed.strerror}"
        case aiohttp.ClientConnectorDNSError(os_error=failed):
            return f"its name is not known: {failed.strerror}"
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))):
            return os.strerror(number)
        case _:
            return _reason(error)


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
