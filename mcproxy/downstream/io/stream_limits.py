"""How many event streams each caller keeps open to be told of changes, of all transports (requirement R54).

Those that answer a call are not among them: calls have limits of their own. Opens no stream itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR


class TooManyStreams(McpError):
    """One more than a caller may keep open."""

    def __init__(self, most: int) -> None:
        sentence = f"all your {most} event streams are in use (limits.max_streams_per_principal); end one"
        super().__init__(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)


class StreamLimits:
    def __init__(self, edge: TransportContext) -> None:
        self._edge = edge
        self._of_principal: Counter[str] = Counter()
        self._none = asyncio.Event()

    def open(self, principal: Principal) -> None:
        """Counts one more, until it is closed. Raises TooManyStreams."""
        most = self._edge.proxy.limits.max_streams_per_principal
        if self._of_principal[principal.name] >= most:
            raise TooManyStreams(most)
        self._of_principal[principal.name] += 1

    def close(self, principal: Principal) -> None:
        self._of_principal[principal.name] -= 1
        if not self._of_principal[principal.name]:
            del self._of_principal[principal.name]
        if not self._of_principal:
            self._none.set()

    async def closed(self) -> None:
        """Returns once none is open."""
        while self._of_principal:
            self._none.clear()
            await self._none.wait()
