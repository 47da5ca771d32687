"""The log level that each upstream is asked for: the most verbose that a client wants (2025-11-25, logging).

Messages too verbose for a client are dropped where they are handed to it. An upstream is asked for no level until a
client names one, for its session or, in the stateless era, in a call: without a level "the server MAY decide", and some
decide to log nothing. From then on the level follows what clients want: none outlives the session that named it, or
silences a stateless client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import anyio
import structlog

from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.clients import Listener
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, LinkOwner
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    Retired,
    ServerIdentity,
    Upstream,
    UpstreamChanged,
    UpstreamEvent,
)
from mcproxy.catalog.naming import Space
from mcproxy.concurrency.coalescer import Coalescer
from mcproxy.gateway.component import LINK_EVENTS, Component, Reconfiguration
from mcproxy.gateway.listings.internal_calls import internal_call
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, INVALID_REQUEST, parse_text, raw
from mcproxy.protocol.methods import DEFAULT_LOG_LEVEL, LOG_LEVELS, METHODS, SET_LEVEL, is_audible

log = structlog.get_logger()

T = TypeVar("T")


class _Counted(NamedTuple):
    """What was counted for one listener."""

    links: Sequence[LinkKey]
    level: str | None
    names: bool
    """Whether it named that level."""


class LogLevels(Component):
    """`timeout` is for how many seconds a client's request waits for upstreams, and how long each upstream may take."""

    goes_by = frozenset({"access", "endpoints", "proxy", "upstreams"})
    heeds = LINK_EVENTS

    def __init__(
        self, catalogue: Catalogue, upstreams: Mapping[str, Upstream], listeners: Listeners, timeout: float
    ) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams
        self._listeners = listeners
        self._timeout = timeout
        self._named: set[Listener] = set()
        """Listeners that named a level."""
        self._counted: dict[Listener, _Counted] = {}
        self._levels: Counter[tuple[LinkKey, str]] = Counter()
        """How many listeners of each level each link serves, so that a change of one looks at no other (R78)."""
        self._naming: Counter[LinkKey] = Counter()
        """How many of them named their level."""
        self._sent: dict[LinkKey, str] = {}
        """The level that each link's upstream agreed to."""
        self._of_calls: dict[LinkKey, str] = {}
        """The most verbose level that a stateless call asked each link for since nothing needed the link."""
        self._syncs: Coalescer[LinkKey] = Coalescer(self._sync)

    def reconfigure(self, change: Reconfiguration) -> None:
        self._timeout = change.settings.proxy.list_wait
        for listener in self._listeners:
            self._count(listener)

    def join(self, listener: Listener) -> None:
        """Counts a listener, or again where other links serve it than before."""
        self._count(listener)

    async def run(self) -> None:
        """Sets levels upstream until cancelled."""
        await self._syncs.run()

    async def set_level(self, call: Call) -> Outcome:
        """Answers once the upstreams have the level, so that it holds for the next call, or after `timeout` seconds."""
        level = parse_text(call.params.get("level", b""))
        if level not in LOG_LEVELS:
            raise McpError(INVALID_PARAMS, f'"level" must be one of {", ".join(LOG_LEVELS)}')
        if call.listener is None:
            raise McpError(INVALID_REQUEST, "this client keeps no log level between its calls")
        call.listener.set_log_level(level)
        if call.listener not in self._listeners:
            return Complete({})
        self._named.add(call.listener)
        with anyio.move_on_after(self._timeout):
            for link in self._refresh(self._count(call.listener)):
                await self._syncs.done(link)
        return Complete({})

    async def ask_for(self, space: Space, caller: Caller) -> None:
        """Asks an upstream for a stateless call's level before the call is sent.

        An upstream that has agreed to no level, or has no logging, is asked again only for a more verbose one.
        """
        link, level = self._catalogue.link(space, caller), caller.log_level
        if level is None or level not in LOG_LEVELS:
            return
        asked = self._sent.get(link) or self._of_calls.get(link)
        if asked is not None and is_audible(level, asked):
            return
        if self._catalogue.known.era(link) is Era.STATELESS:
            return  # the call itself carries the level
        self._of_calls[link] = level
        self._syncs.want(link)
        with anyio.move_on_after(self._timeout):
            await self._syncs.done(link)

    def leave(self, listener: Listener) -> None:
        """Forgets the level that a listener named."""
        links = self._discount(listener)
        if listener in self._named:
            self._named.discard(listener)
            self._refresh(links)

    def _count(self, listener: Listener) -> Sequence[LinkKey]:
        """Counts a listener as it is now, and returns the links that serve it."""
        self._discount(listener)
        level, names = listener.caller.log_level, listener in self._named
        counted = self._counted[listener] = _Counted(self._catalogue.links(listener.caller), level, names)
        self._add(counted, 1)
        return counted.links

    def _discount(self, listener: Listener) -> Sequence[LinkKey]:
        """Takes a listener out of the counts, and returns the links that served it."""
        counted = self._counted.pop(listener, None)
        if counted is None:
            return ()
        self._add(counted, -1)
        return counted.links

    def _add(self, counted: _Counted, number: int) -> None:
        for link in counted.links:
            if counted.level in LOG_LEVELS:
                _add(self._levels, (link, counted.level), number)
            if counted.names:
                _add(self._naming, link, number)

    def on_event(self, event: UpstreamEvent) -> None:
        """Never blocks."""
        link = LinkKey(event.upstream, event.owner)
        match event:
            case Connected():
                self._syncs.want(link)  # what was wanted while it was being prepared
            case Disconnected():
                self._sent.pop(link, None)  # what calls asked for stays: one of them may wait for the next connection
            case Idled() | Retired():
                self._forget(link)
            case UpstreamChanged():
                pass

    async def prepare(self, upstream: str, owner: LinkOwner, identity: ServerIdentity, send: Handler) -> None:
        """Sets the level over a new link before any call goes over it: the messages of that call would be lost.

        `send` sends over that link and never raises.
        """
        key = LinkKey(upstream, owner)
        with anyio.move_on_after(self._timeout):
            while True:
                level = self._wanted(key, identity)
                if level is None or level == self._sent.get(key) or not await self._send(key, level, send):
                    return

    def _refresh(self, links: Sequence[LinkKey]) -> list[LinkKey]:
        """Those of `links` whose wanted level differs from the one in force; their tasks are woken."""
        up = filter(self._catalogue.known.is_up, links)
        stale = [link for link in up if self._wanted_now(link) not in (None, self._sent.get(link))]
        for link in stale:
            self._syncs.want(link)
        return stale

    def _forget(self, link: LinkKey) -> None:
        self._sent.pop(link, None)
        self._of_calls.pop(link, None)

    def _wanted(self, link: LinkKey, identity: ServerIdentity | None) -> str | None:
        """The level to ask for; None where no client named one, or the upstream has no logging."""
        if identity is None or METHODS[SET_LEVEL].capability not in identity.capabilities:
            return None
        is_named = link in self._naming
        if not is_named and link not in self._sent and link not in self._of_calls:
            return None
        wanted = {self._of_calls.get(link), None if is_named else DEFAULT_LOG_LEVEL}
        return next((level for level in LOG_LEVELS if level in wanted or (link, level) in self._levels), None)

    def _wanted_now(self, link: LinkKey) -> str | None:
        return self._wanted(link, self._catalogue.known.identity(link))

    async def _sync(self, link: LinkKey) -> None:
        """Runs in the task group of `run`."""
        level = self._wanted_now(link)
        if level is not None and level != self._sent.get(link) and self._catalogue.known.is_up(link):
            await self._send(link, level, self._upstreams[link.upstream])

    async def _send(self, key: LinkKey, level: str, handler: Handler) -> bool:
        """Returns whether the upstream has the level now."""
        outcome: Outcome | None = None
        with anyio.move_on_after(self._timeout):
            outcome = await handler(internal_call(key, SET_LEVEL, {"level": raw(level)}))
        if isinstance(outcome, Complete):
            self._sent[key] = level
            return True
        why = outcome.error.message if isinstance(outcome, Failed) else "no answer"
        log.warning("an upstream took no log level", upstream=key.upstream, why=why)
        return False


def _add(counts: Counter[T], key: T, number: int) -> None:
    """Adds to a count; one that comes to nothing goes."""
    counts[key] += number
    if not counts[key]:
        del counts[key]
