"""Requests that are not MCP: small documents, webhooks, tokens, vectors. Each body is bounded by who reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from yarl import URL

from mcproxy import __version__
from mcproxy.egress.egress import Egress
from mcproxy.egress.failures import connect_failure
from mcproxy.http.client import (
    ClientResponse,
    ConnectFailed,
    ConnectionBroken,
    Pool,
    ResponseHead,
    ResponseTooLarge,
    write_head,
)
from mcproxy.http.client.decoding import DecodedBody, codings

CONNECT_TIMEOUT = 15.0
"""Seconds that a connection may take; callers bound the whole request."""


class NotAnswered(Exception):
    """No answer, or none that can be read. The text says why, for operators."""


class OutgoingResponse:
    """A response whose body is not read yet."""

    def __init__(self, response: ClientResponse) -> None:
        self._response = response
        self.status = response.head.status

    @property
    def head(self) -> ResponseHead:
        """Its status and fields."""
        return self._response.head

    async def read(self, limit: int) -> bytes | None:
        """The whole body, decoded; None if it has more than `limit` bytes. Raises NotAnswered and ConnectionBroken."""
        listed = codings(self.head.content_encoding)
        if listed is None:
            raise NotAnswered(f"its answer is compressed ({self.head.content_encoding[:20]!r}), though not asked for")
        try:
            return await (DecodedBody(self._response, listed) if listed else self._response).read(limit)
        except ResponseTooLarge:
            return None


class OutgoingClient:
    """Requests to one service or few. `kept` connections stay open while idle; `aclose` ends them.

    `public`: only to addresses that anybody can reach (R43). `settings` is the key that holds `ca`, for errors.
    """

    def __init__(self, egress: Egress, *, public: bool = False, kept: int = 0, settings: str = "proxy.egress") -> None:
        self._egress = egress
        self._public = public
        self._kept = kept
        self._settings = settings
        self._pool: Pool | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may have connections to close."""
        return self._pool is not None

    @asynccontextmanager
    async def request(
        self, method: str, url: str | URL, fields: Mapping[str, str], body: bytes | None = None
    ) -> AsyncIterator[OutgoingResponse]:
        """The response. Follows no redirect. Raises NotAnswered, and ValueError for fields that cannot be sent."""
        target = URL(url)
        own = {"User-Agent": f"mcproxy/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
        names = {name.lower() for name in fields}
        sent = {**{name: own[name] for name in own if name.lower() not in names}, **fields}
        head = write_head(method, target, sent)
        pool = self._connections()
        try:
            response = await pool.request(method, target, head, body)
            try:
                yield OutgoingResponse(response)
            finally:
                response.release()
        except ConnectFailed as error:
            why = connect_failure(error, self._settings)
            raise NotAnswered(f"no connection to {target.origin()}: {why}") from error
        except ConnectionBroken as error:
            raise NotAnswered(f"the connection to {target.origin()} broke: {error}") from error
        finally:
            if pool is not self._pool:
                pool.close()

    async def aclose(self) -> None:
        """Closes the connections; a later request opens new ones."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.close()

    def _connections(self) -> Pool:
        if self._pool is not None:
            return self._pool
        pool = Pool(CONNECT_TIMEOUT, self._kept, ways=partial(self._egress.way, public=self._public))
        if self._kept:
            self._pool = pool
        return pool
