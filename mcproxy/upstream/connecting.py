"""Which link reaches an upstream: its transport, and the era that is spoken over it. The one place that chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Final

from mcproxy.settings import Upstream
from mcproxy.upstream import handshake, sse, stdio, streamable
from mcproxy.upstream.link import Connect, Hop, Link, Rejected

OLD_SERVER: Final = frozenset({400, 404, 405})
"""What a server of HTTP+SSE answers to a POST at its URL (transports, Backwards Compatibility)."""


def connected(hop: Hop) -> AbstractAsyncContextManager[Link]:
    """A link to the upstream of `hop`, by the transport that its settings name or imply."""
    return _CONNECT[transport(hop.spec)](hop)


def transport(spec: Upstream) -> str:
    """`stdio`, `http` or `sse`; `auto` where a URL leaves it open."""
    return "stdio" if spec.command is not None else spec.type


@asynccontextmanager
async def _stdio(hop: Hop) -> AsyncIterator[Link]:
    async with stdio.child(hop) as pipe, handshake.over(pipe, hop) as link:
        yield link


@asynccontextmanager
async def _sse(hop: Hop) -> AsyncIterator[Link]:
    async with sse.stream(hop) as pipe, handshake.over(pipe, hop) as link:
        yield link


@asynccontextmanager
async def _streamable_or_sse(hop: Hop) -> AsyncIterator[Link]:
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(streamable.connected(hop))
        except Rejected as rejected:
            if rejected.status not in OLD_SERVER:
                raise
            link = await stack.enter_async_context(_sse(hop))
        yield link


_CONNECT: Final[dict[str, Connect]] = {
    "stdio": _stdio,
    "http": streamable.connected,
    "sse": _sse,
    "auto": _streamable_or_sse,
}
