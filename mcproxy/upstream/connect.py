"""Connects to an upstream: chooses the transport, and the era to speak over it. No other module chooses.

The newest era is tried first, and an older one if the server turns out to be older (2026-07-28, versioning). The order
is reversed for a server known to be older, and on a link for callers of the handshake era.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import anyio

from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import Era
from mcproxy.protocol.methods import DISCOVER
from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.child import process as stdio
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import conversing
from mcproxy.upstream.handshake import http_sse as sse
from mcproxy.upstream.handshake import streamable_http as streamable
from mcproxy.upstream.handshake.dialect import HandshakeDialect
from mcproxy.upstream.link import Connect, CutOff, Duplex, Link, Refused, Rejected, Unreachable, task_group
from mcproxy.upstream.pipe import PipeTransport, shared_pipe
from mcproxy.upstream.stateless import streamable_http as stateless_http
from mcproxy.upstream.stateless.dialect import StatelessDialect
from mcproxy.upstream.stateless.probe import Older
from mcproxy.upstream.stateless.stdio import PipeProbe

OLD_SERVER: Final = frozenset({400, 404, 405})
"""Statuses by which a server of HTTP+SSE refuses a POST to its URL (transports, Backwards Compatibility)."""


@asynccontextmanager
async def connected(context: LinkContext) -> AsyncIterator[Link]:
    """Makes a link to the upstream of `context`, by the transport that its settings name or imply."""
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
    death = ""
    if context.spec.era != "legacy":
        async with AsyncExitStack() as stack:
            pipe = await stack.enter_async_context(stdio.child(context))
            shared = await stack.enter_async_context(shared_pipe(pipe))
            try:
                link = await over_pipe(shared, context, stack)
            except PeerGone as gone:
                if context.spec.era == "modern":
                    raise Unreachable(str(gone)) from gone
                death = str(gone)
            else:
                context.hints.note_success(link.identity.era)
                yield link
                return
    # Some older servers exit on an unknown method.
    async with AsyncExitStack() as stack:
        pipe = await stack.enter_async_context(stdio.child(context))
        try:
            link = await stack.enter_async_context(handshake_over_pipe(pipe, context))
        except Unreachable as error:
            if not death or death in str(error):
                raise
            raise Unreachable(f"{error}; asked {DISCOVER} before, {death}") from error
        context.hints.note_success(link.identity.era)
        yield link


def handshake_over_pipe(
    pipe: Duplex, context: LinkContext, give_up: anyio.Event | None = None
) -> AbstractAsyncContextManager[Link]:
    """A link of the handshake era. Raises Unreachable or Rejected. `give_up` ends an unfinished handshake."""
    return conversing(context, HandshakeDialect(context), PipeTransport(pipe, context, give_up))


@asynccontextmanager
async def stateless_over_pipe(pipe: Duplex, context: LinkContext, probe: PipeProbe) -> AsyncIterator[Link]:
    """A link to the server that answered the probe. Raises as `PipeProbe.identity` does."""
    dialect = StatelessDialect(context, probe.identity())
    async with conversing(context, dialect, PipeTransport(pipe, context)) as conversation:
        yield conversation


async def over_pipe(pipe: Duplex, context: LinkContext, stack: AsyncExitStack) -> Link:
    """Connects in the expected era and, after a silence, tries the other too: the first answer counts.

    stdio, Backward Compatibility. Raises Unreachable, or PeerGone if the child exits upon the probe.
    """
    timeouts, expected = context.spec.timeouts, context.hints.expected
    tasks = await stack.enter_async_context(task_group())
    probe = PipeProbe(pipe, context)
    is_later = expected is Era.HANDSHAKE and context.spec.era == "auto"
    tasks.start_soon(probe.run, timeouts.probe if is_later else 0)
    if context.spec.era == "modern":
        await probe.answered.wait()
        return await stack.enter_async_context(_without_fallback(stateless_over_pipe(pipe, context, probe)))
    if not is_later:
        # A server known to be stateless may be slow to start: it gets longer before the other era is tried.
        with anyio.move_on_after(timeouts.probe if expected is None else timeouts.connect / 2):
            await probe.answered.wait()
        if probe.answered.is_set() and not isinstance(probe.outcome, Older):
            return await stack.enter_async_context(stateless_over_pipe(pipe, context, probe))
    try:
        return await stack.enter_async_context(handshake_over_pipe(pipe, context, give_up=probe.found))
    except Unreachable as error:
        if isinstance(error, Refused):
            probe.ask()
            with anyio.move_on_after(timeouts.probe):
                await probe.answered.wait()
        elif isinstance(error, CutOff) and probe.is_sent:
            # A child that is slow to start may have died of the probe.
            await probe.answered.wait()
            if isinstance(probe.outcome, PeerGone):
                raise probe.outcome from error
        if not probe.found.is_set():
            raise
    finally:
        probe.stop()
    return await stack.enter_async_context(stateless_over_pipe(pipe, context, probe))


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
async def _streamable_or_sse(context: LinkContext) -> AsyncIterator[Link]:
    async with AsyncExitStack() as stack:
        try:
            link = await stack.enter_async_context(streamable.handshake_over_http(context))
        except Rejected as rejected:
            if rejected.status not in OLD_SERVER:
                raise
            link = await stack.enter_async_context(sse.handshake_over_sse(context))
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
    "http": _stateless_or(streamable.handshake_over_http),
    "sse": sse.handshake_over_sse,
    "auto": _stateless_or(_streamable_or_sse),
}
