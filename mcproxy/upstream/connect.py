"""Connects to an upstream: chooses the transport, and the era to speak over it. No other module chooses.

The newest era is tried first, and an older one if the server turns out to be older (2026-07-28, versioning). The order
is reversed for a server known to be older, and on a link for callers of the handshake era.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from mcproxy.protocol.eras import Era
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.child import process as stdio
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.handshake import http_sse as sse
from mcproxy.upstream.handshake import streamable_http as streamable
from mcproxy.upstream.link import Connect, Link, Refused, Rejected, Unreachable
from mcproxy.upstream.pipe_era import over_pipe
from mcproxy.upstream.stateless import streamable_http as stateless_http
from mcproxy.upstream.stateless.probe import Older

OLD_SERVER: Final = frozenset({400, 404, 405})
"""Statuses by which a server of HTTP+SSE refuses a POST to its URL (transports, Backwards Compatibility)."""


@asynccontextmanager
async def connected(context: LinkContext) -> AsyncIterator[Link]:
    """Makes a link to the upstream of `context`, by the transport that its settings name or imply."""
    if context.spec.fault is not None:
        raise Unreachable(context.spec.fault)
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(_CONNECT[transport(context.spec)](context))
        except BaseException:  # includes the attempt's deadline
            context.hints.note_failure()
            raise
        yield link


def transport(spec: UpstreamSettings) -> str:
    """`stdio`, `http` or `sse`; `auto` if the settings give a URL and no type."""
    return "stdio" if spec.command is not None else spec.type


def address(spec: UpstreamSettings) -> tuple[str, int] | None:
    """The host and port of an upstream that has a URL."""
    parts = urlsplit(spec.url or "")
    if parts.hostname is None:
        return None
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


@asynccontextmanager
async def _stdio(context: LinkContext) -> AsyncIterator[Link]:
    async with AsyncExitStack() as stack:
        link = await over_pipe(lambda: stdio.child(context), context, stack)
        context.hints.note_success(link.identity.era)
        yield link


@asynccontextmanager
async def _without_fallback(connecting: AbstractAsyncContextManager[Link]) -> AsyncIterator[Link]:
    """Turns Older into Unreachable if the settings allow no other era."""
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(connecting)
        except Older as older:
            raise Unreachable(f"it does not speak the stateless era: {older}") from older
        yield link


@asynccontextmanager
async def _initialized(context: LinkContext) -> AsyncIterator[Link]:
    """Connects over Streamable HTTP of the handshake era, and notes the status of a refusal."""
    async with AsyncExitStack() as stack:
        context.hints.refused_with = None
        try:
            link = await stack.enter_async_context(streamable.handshake_over_http(context))
        except Rejected as rejected:
            context.hints.refused_with = rejected.status
            raise
        yield link


@asynccontextmanager
async def _streamable_or_sse(context: LinkContext) -> AsyncIterator[Link]:
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(_initialized(context))
        except Rejected as rejected:
            if rejected.status not in OLD_SERVER:
                raise
            try:
                link = await stack.enter_async_context(sse.handshake_over_sse(context))
            except (Rejected, Unreachable) as older:
                # A server of today that fails is far more frequent than one of HTTP+SSE.
                raise Rejected(f"{rejected} (and as HTTP+SSE: {older})", rejected.status, rejected.said) from older
        yield link


def _stateless_or(older: Connect) -> Connect:
    """Connects in the newest era over HTTP, else by `older`; remembers the era that worked."""

    @asynccontextmanager
    async def connect(context: LinkContext) -> AsyncIterator[Link]:
        async with AsyncExitStack() as stack:
            yield await _over_http(context, older, stack)

    return connect


async def _over_http(context: LinkContext, older: Connect, stack: AsyncExitStack) -> Link:
    timeouts, era, hints = context.spec.timeouts, context.spec.era, context.hints
    if era == "modern":
        return await stack.enter_async_context(
            _without_fallback(stateless_http.stateless_over_http(context, timeouts.connect))
        )
    if era == "legacy":
        return await stack.enter_async_context(older(context))
    if hints.expected is Era.HANDSHAKE:
        with suppress(Refused, Rejected):
            link = await stack.enter_async_context(older(context))
            hints.note_success(Era.HANDSHAKE)
            return link
    if hints.only_initialize and (before := hints.refused_with) is not None:
        try:
            return await stack.enter_async_context(_initialized(context))
        except Rejected as rejected:
            if rejected.status == before:
                raise
        except Refused:
            pass
    undecided = False
    try:
        link = await stack.enter_async_context(stateless_http.stateless_over_http(context, timeouts.probe))
    except Older as found:
        undecided = found.undecided
    else:
        hints.note_success(Era.STATELESS)
        return link
    link = await stack.enter_async_context(older(context))
    hints.note_success(None if undecided else Era.HANDSHAKE)
    return link


_CONNECT: Final[dict[str, Connect]] = {
    "stdio": _stdio,
    "http": _stateless_or(_initialized),
    "sse": sse.handshake_over_sse,
    "auto": _stateless_or(_streamable_or_sse),
}
