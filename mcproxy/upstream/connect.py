"""Which link reaches an upstream: its transport, and the era that is spoken over it. The one place that chooses.

The newest era is tried first, and an older one where the server is found to be of it (2026-07-28, versioning);
the other way round for a link whose callers are of the handshake era.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from mcproxy.pending_requests import PeerGone
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.child import process as stdio
from mcproxy.upstream.handshake import conversation as handshake
from mcproxy.upstream.handshake import http_sse as sse
from mcproxy.upstream.handshake import streamable_http as streamable
from mcproxy.upstream.link import Connect, Duplex, Hop, Link, Rejected, Unreachable
from mcproxy.upstream.stateless import stdio as stateless_stdio
from mcproxy.upstream.stateless import streamable_http as stateless_http
from mcproxy.upstream.stateless.probe import QUESTION_AGAIN, Older

OLD_SERVER: Final = frozenset({400, 404, 405})
"""What a server of HTTP+SSE answers to a POST at its URL (transports, Backwards Compatibility)."""


def connected(hop: Hop) -> AbstractAsyncContextManager[Link]:
    """A link to the upstream of `hop`, by the transport that its settings name or imply."""
    return _CONNECT[transport(hop.spec)](hop)


def transport(spec: UpstreamSettings) -> str:
    """`stdio`, `http` or `sse`; `auto` where a URL leaves it open."""
    return "stdio" if spec.command is not None else spec.type


def address(spec: UpstreamSettings) -> tuple[str, int] | None:
    """The host and port of an upstream that has a URL."""
    parts = urlsplit(spec.url or "")
    if parts.hostname is None:
        return None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


@asynccontextmanager
async def _stdio(hop: Hop) -> AsyncIterator[Link]:
    for connecting in _ways_to_child(hop):
        async with connecting(hop) as link:
            if link is not None:
                yield link
                return
    async with stdio.child(hop) as pipe, handshake.over(pipe, hop) as link:
        yield link


def _ways_to_child(hop: Hop) -> list[Callable[[Hop], AbstractAsyncContextManager[Link | None]]]:
    if hop.spec.era == "legacy":
        return []
    return [_handshaken_child, _probed_child] if _is_handshake_first(hop) else [_probed_child]


def _is_handshake_first(hop: Hop) -> bool:
    return hop.spec.era == "auto" and hop.findings.handshake_first


@asynccontextmanager
async def _handshaken_child(hop: Hop) -> AsyncIterator[Link | None]:
    """Gives None where the child refused the handshake."""
    async with AsyncExitStack() as stack:
        pipe = await stack.enter_async_context(stdio.child(hop))
        try:
            link = await stack.enter_async_context(handshake.over(pipe, hop))
        except (Unreachable, Rejected):
            hop.findings.handshake_first = False
        else:
            yield link
            return
    yield None


@asynccontextmanager
async def _probed_child(hop: Hop) -> AsyncIterator[Link | None]:
    """Gives None where the child did not survive the question: such servers of old there are."""
    async with AsyncExitStack() as stack:
        pipe = await stack.enter_async_context(stdio.child(hop))
        relay = await stack.enter_async_context(stateless_stdio.relayed(pipe))
        try:
            link = await _over_pipe(relay, hop, stack)
        except PeerGone as gone:
            if hop.spec.era == "modern":
                raise Unreachable(str(gone)) from gone
        else:
            yield link
            return
    yield None


async def _over_pipe(pipe: Duplex, hop: Hop, stack: AsyncExitStack) -> Link:
    """stdio, Backward Compatibility: any other error than a modern one, and silence, are of an older server."""
    patience = hop.spec.timeouts
    if hop.spec.era == "modern":
        return await stack.enter_async_context(_insisted(stateless_stdio.over(pipe, hop, patience.connect)))
    try:
        return await stack.enter_async_context(stateless_stdio.over(pipe, hop, patience.probe))
    except Older as older:
        silent = older.silent
    try:
        return await stack.enter_async_context(handshake.over(pipe, hop))
    except Unreachable:
        if not silent:
            raise
    # It was not older, but slow to start.
    again = stateless_stdio.over(pipe, hop, patience.connect, QUESTION_AGAIN)
    return await stack.enter_async_context(_insisted(again))


@asynccontextmanager
async def _insisted(connecting: AbstractAsyncContextManager[Link]) -> AsyncIterator[Link]:
    """Falls back to nothing."""
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(connecting)
        except Older as older:
            raise Unreachable(f"it does not speak the stateless era: {older}") from older
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


def _stateless_or(older: Connect) -> Connect:
    """The newest era over HTTP, or else what `older` connects; what was found is remembered while it holds."""

    @asynccontextmanager
    async def connect(hop: Hop) -> AsyncIterator[Link]:
        async with AsyncExitStack() as stack:
            yield await _over_http(hop, older, stack)

    return connect


async def _over_http(hop: Hop, older: Connect, stack: AsyncExitStack) -> Link:
    patience, era, findings = hop.spec.timeouts, hop.spec.era, hop.findings
    if era == "modern":
        return await stack.enter_async_context(_insisted(stateless_http.connected(hop, patience.connect)))
    if _is_handshake_first(hop):
        with suppress(Unreachable, Rejected):
            return await stack.enter_async_context(older(hop))
        findings.handshake_first = False
    silent = False
    if era == "auto" and not findings.is_older:
        try:
            return await stack.enter_async_context(stateless_http.connected(hop, patience.probe))
        except Older as found:
            silent = found.silent
    findings.is_older = False
    link = await stack.enter_async_context(older(hop))
    findings.is_older = not silent
    return link


_CONNECT: Final[dict[str, Connect]] = {
    "stdio": _stdio,
    "http": _stateless_or(streamable.connected),
    "sse": _sse,
    "auto": _stateless_or(_streamable_or_sse),
}
