"""How many event streams each principal keeps open to be told of changes, over all transports (requirement R54).

Streams that answer a call are not counted here: calls have limits of their own. Opens no stream itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR


class TooManyStreams(McpError):
    """The principal already has `most` streams open."""

    def __init__(self, most: int) -> None:
        sentence = f"all your {most} event streams are in use (limits.max_streams_per_principal); end one"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class StreamLimits:
    def __init__(self, context: TransportContext) -> None:
        self._context = context
        self._open: Counter[str] = Counter()
        """By the names of principals."""
        self._none_open = asyncio.Event()

    def open(self, principal: Principal) -> None:
        """Counts one more, until it is closed. Raises TooManyStreams."""
        most = self._context.proxy.limits.max_streams_per_principal
        if self._open[principal.name] >= most:
            raise TooManyStreams(most)
        self._open[principal.name] += 1

    def close(self, principal: Principal) -> None:
        self._open[principal.name] -= 1
        if not self._open[principal.name]:
            del self._open[principal.name]
        if not self._open:
            self._none_open.set()

    async def wait_closed(self) -> None:
        """Returns once no stream is open."""
        while self._open:
            self._none_open.clear()
            await self._none_open.wait()
