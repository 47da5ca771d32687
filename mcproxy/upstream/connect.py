"""Connects to an upstream: chooses the transport, and the era that is spoken over it. The one place that chooses.

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
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.handshake import conversation as handshake
from mcproxy.upstream.handshake import http_sse as sse
from mcproxy.upstream.handshake import streamable_http as streamable
from mcproxy.upstream.link import Connect, Duplex, Link, Rejected, Unreachable
from mcproxy.upstream.stateless import stdio as stateless_stdio
from mcproxy.upstream.stateless import streamable_http as stateless_http
from mcproxy.upstream.stateless.probe import QUESTION_AGAIN, Older

OLD_SERVER: Final = frozenset({400, 404, 405})
"""Statuses with which a server of HTTP+SSE refuses a POST at its URL (transports, Backwards Compatibility)."""


def connected(context: LinkContext) -> AbstractAsyncContextManager[Link]:
    """A link to the upstream of `context`, by the transport that its settings name or imply."""
    return _CONNECT[transport(context.spec)](context)


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
async def _stdio(context: LinkContext) -> AsyncIterator[Link]:
    for connecting in _ways_to_child(context):
        async with connecting(context) as link:
            if link is not None:
                yield link
                return
    async with stdio.child(context) as pipe, handshake.connected(pipe, context) as link:
        yield link


def _ways_to_child(context: LinkContext) -> list[Callable[[LinkContext], AbstractAsyncContextManager[Link | None]]]:
    if context.spec.era == "legacy":
        return []
    return [_handshaken_child, _probed_child] if _is_handshake_first(context) else [_probed_child]


def _is_handshake_first(context: LinkContext) -> bool:
    return context.spec.era == "auto" and context.hints.handshake_first


@asynccontextmanager
async def _handshaken_child(context: LinkContext) -> AsyncIterator[Link | None]:
    """Gives None where the child refused the handshake."""
    async with AsyncExitStack() as stack:
        pipe = await stack.enter_async_context(stdio.child(context))
        try:
            link = await stack.enter_async_context(handshake.connected(pipe, context))
        except (Unreachable, Rejected):
            context.hints.handshake_first = False
        else:
            yield link
            return
    yield None


@asynccontextmanager
async def _probed_child(context: LinkContext) -> AsyncIterator[Link | None]:
    """Gives None where the child exits on an unknown method, as some older servers do."""
    async with AsyncExitStack() as stack:
        pipe = await stack.enter_async_context(stdio.child(context))
        relay = await stack.enter_async_context(stateless_stdio.handover(pipe))
        try:
            link = await _over_pipe(relay, context, stack)
        except PeerGone as gone:
            if context.spec.era == "modern":
                raise Unreachable(str(gone)) from gone
        else:
            yield link
            return
    yield None


async def _over_pipe(pipe: Duplex, context: LinkContext, stack: AsyncExitStack) -> Link:
    """stdio, Backward Compatibility: silence, and any error that is not a modern one, are of an older server."""
    timeouts = context.spec.timeouts
    if context.spec.era == "modern":
        return await stack.enter_async_context(
            _without_fallback(stateless_stdio.connected(pipe, context, timeouts.connect))
        )
    try:
        return await stack.enter_async_context(stateless_stdio.connected(pipe, context, timeouts.probe))
    except Older as older:
        silent = older.silent
    try:
        return await stack.enter_async_context(handshake.connected(pipe, context))
    except Unreachable:
        if not silent:
            raise
    # It was not older, but slow to start.
    again = stateless_stdio.connected(pipe, context, timeouts.connect, QUESTION_AGAIN)
    return await stack.enter_async_context(_without_fallback(again))


@asynccontextmanager
async def _without_fallback(connecting: AbstractAsyncContextManager[Link]) -> AsyncIterator[Link]:
    """Turns Older into Unreachable, where the settings allow no other era."""
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(connecting)
        except Older as older:
            raise Unreachable(f"it does not speak the stateless era: {older}") from older
        yield link


@asynccontextmanager
async def _sse(context: LinkContext) -> AsyncIterator[Link]:
    async with sse.stream(context) as pipe, handshake.connected(pipe, context) as link:
        yield link


@asynccontextmanager
async def _streamable_or_sse(context: LinkContext) -> AsyncIterator[Link]:
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(streamable.connected(context))
        except Rejected as rejected:
            if rejected.status not in OLD_SERVER:
                raise
            link = await stack.enter_async_context(_sse(context))
        yield link


def _stateless_or(older: Connect) -> Connect:
    """Connects in the newest era over HTTP, or else by `older`; the era that was found is remembered."""

    @asynccontextmanager
    async def connect(context: LinkContext) -> AsyncIterator[Link]:
        async with AsyncExitStack() as stack:
            yield await _over_http(context, older, stack)

    return connect


async def _over_http(context: LinkContext, older: Connect, stack: AsyncExitStack) -> Link:
    timeouts, era, hints = context.spec.timeouts, context.spec.era, context.hints
    if era == "modern":
        return await stack.enter_async_context(_without_fallback(stateless_http.connected(context, timeouts.connect)))
    if _is_handshake_first(context):
        with suppress(Unreachable, Rejected):
            return await stack.enter_async_context(older(context))
        hints.handshake_first = False
    silent = False
    if era == "auto" and not hints.is_older:
        try:
            return await stack.enter_async_context(stateless_http.connected(context, timeouts.probe))
        except Older as found:
            silent = found.silent
    hints.is_older = False
    link = await stack.enter_async_context(older(context))
    hints.is_older = not silent
    return link


_CONNECT: Final[dict[str, Connect]] = {
    "stdio": _stdio,
    "http": _stateless_or(streamable.connected),
    "sse": _sse,
    "auto": _stateless_or(_streamable_or_sse),
}
