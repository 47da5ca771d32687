"""Fetches upstreams' lists into the catalogue: when one connects, says that a list changed, or is polled (R19).

Listeners hear of a change only if their own view differs. A list whose changes its upstream does not announce is
fetched again when it is asked for after its TTL, and at the configured polling interval. Otherwise serving a list
fetches and announces nothing; a list that cannot be fetched stays as it was.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from functools import partial
from typing import Final, assert_never

import anyio
import structlog
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Failed, LoginRequired, Outcome
from mcproxy.call.clients import ListChanged, Listener
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    LinkState,
    LoginAwaited,
    PushChannel,
    Retired,
    ServerIdentity,
    UnannouncedLists,
    Upstream,
    UpstreamChanged,
    UpstreamEvent,
)
from mcproxy.catalog.freshness import DOUBTFUL, stated
from mcproxy.catalog.naming import Space
from mcproxy.catalog.views.snapshots import EMPTY, read_listing, reading
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.coalescer import Coalescer
from mcproxy.concurrency.pace import Pace
from mcproxy.concurrency.wakeup import Wakeup
from mcproxy.gateway.component import LINK_EVENTS, Component, Reconfiguration
from mcproxy.gateway.listings.internal_calls import internal_call, retry_delay
from mcproxy.gateway.listings.keys import LinkKey, ListKey
from mcproxy.gateway.listings.list_reports import ListReports
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.pagination import FetchedPages, PageLimits, fetch_pages
from mcproxy.gateway.listings.state import Catalogue, rules_of
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, Params
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from mcproxy.settings import UpstreamSettings as Spec
from mcproxy.settings.differences import shows_same
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts
from mcproxy.telemetry.metrics import UNKNOWN, Metrics

log = structlog.get_logger()

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 1.0
"""Seconds between two fetches of a list whose upstream keeps announcing changes: from FIRST_PAUSE up to this."""

SOONEST_AGAIN: Final = 1.0
"""Seconds for which a list is served without another fetch, however short its TTL."""

ASSUMED_TTL: Final = 60.0
"""Seconds of the TTL of a list whose upstream gives none and does not announce changes."""


Refetch = Callable[[ListKey, Call], Awaitable[Failed | None]]
"""Fetches a list for a call, over a link that is made if there is none; returns the failure, if any."""


class ListFetcher(Component):
    """Fetches lists that are unknown, changed or past their TTL; `known` and `fresh` wait for that."""

    goes_by = frozenset({"access", "endpoints", "proxy", "upstreams"})
    heeds = LINK_EVENTS | {ListChanged, PushChannel, UnannouncedLists}

    def __init__(
        self,
        catalogue: Catalogue,
        upstreams: Mapping[str, Upstream],
        timeouts: Mapping[str, UpstreamTimeouts],
        listeners: Listeners,
        settings: Settings,
        metrics: Metrics,
        sleep: Sleep = anyio.sleep,
        now: Clock = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._listeners = listeners
        self._settings = settings
        self._proxy = settings.proxy
        self._specs: dict[str, Spec] = {spec.name: spec for spec in settings.upstreams}
        self._metrics = metrics
        self._reports = ListReports(catalogue, metrics)
        self._now = now
        self._chance = chance
        self._fetches: Coalescer[ListKey] = Coalescer(self._fetch, sleep)
        self._connecting: Coalescer[LinkKey] = Coalescer(self._connect)
        self._expiries: Coalescer[LinkKey] = Coalescer(self._expire, sleep)
        self._failures: Counter[ListKey] = Counter()
        self._pace: Pace[ListKey] = Pace(FIRST_PAUSE, LONGEST_PAUSE)
        self._due: set[ListKey] = set()
        """Changed lists, fetched once their pause is over."""
        self._hanging: set[LinkKey] = set()
        """Links on which a list was awaited in vain; until their next answer no other list is awaited there."""
        self._changed_since: dict[ListKey, float] = {}
        """The time since which each change is known that no listener was told of yet."""
        self._callers: dict[LinkKey, Caller] = {}
        """The caller with whose credentials each wanted link is made."""
        self._unannounced: dict[LinkKey, frozenset[Kind]] = {}
        """Lists whose upstream declares `listChanged` but refused to announce their changes, while the link is up."""
        self._remembered: set[LinkKey] = set()
        """Links that have not been made in this run, whose lists are of an earlier one."""
        self._wakeup = Wakeup()

    def reconfigure(self, change: Reconfiguration) -> None:
        previous, self._settings = self._settings, change.settings
        settings = change.settings
        if not shows_same(previous, settings):
            with self._listeners.telling_list_changes(UNKNOWN):
                self._catalogue.reconfigure(rules_of(settings))
        before, self._proxy = self._specs, settings.proxy
        self._specs = {spec.name: spec for spec in settings.upstreams}
        for link in self._catalogue.known.up():
            if before[link.upstream].list_poll != self._specs[link.upstream].list_poll:
                for kind in Kind:
                    self._poll(ListKey(link, kind))
        for listener in self._listeners:
            self._connect_own(listener, change.upstreams.keys() - change.kept)

    async def run(self) -> None:
        """Fetches until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fetches.run)
            tasks.start_soon(self._connecting.run)
            tasks.start_soon(self._expiries.run)

    def on_event(self, event: UpstreamEvent) -> None:
        """Never blocks."""
        link = LinkKey(event.upstream, event.owner)
        match event:
            case Connected(identity=identity):
                self._remembered.discard(link)
                self._expiries.forget(link)
                self._unannounced.pop(link, None)
                is_new = self._catalogue.known.identity(link) is None
                with self._listeners.telling_list_changes(link.upstream, is_new=is_new):
                    self._catalogue.known.connect(link, identity)
                if not self._catalogue.vetted.has_approved_instructions(link):
                    log.warning("its instructions are not approved (access.pins)", upstream=link.upstream)
                self._fetch_all(link)
            case Disconnected():
                if self._catalogue.known.is_up(link) or link in self._remembered:
                    self._expiries.want_after(link, self._proxy.grace)
                self._catalogue.known.disconnect(link)
            case Idled(identity=identity, lists=lists):
                self._catalogue.known.idle(link)
                if identity is not None:
                    self._recall(link, identity, lists)
            case Retired():
                self._retire(link)
            case LoginAwaited(awaited=awaited):
                with self._listeners.telling_list_changes(link.upstream):
                    self._catalogue.known.await_login(link, awaited=awaited)
                if not awaited and self._catalogue.known.is_up(link):
                    self._fetch_all(link)
            case UpstreamChanged(change=ListChanged(kind=kind)):
                self._changed(ListKey(link, kind))
            case UpstreamChanged(change=PushChannel.LOST):
                self._not_announced(link, frozenset(Kind))
            case UpstreamChanged(change=PushChannel.RESTORED):
                self._unannounced.pop(link, None)
                self._regained(link)
            case UpstreamChanged(change=UnannouncedLists(kinds=kinds)):
                self._not_announced(link, kinds)
            case UpstreamChanged():
                pass
            case _:
                assert_never(event)
        self._wakeup.notify_all()

    def remember(self, link: LinkKey, identity: ServerIdentity, lists: Mapping[Kind, tuple[Raw, ...]]) -> None:
        """Takes the lists of an earlier run, which stand until those of this run arrive.

        If its server cannot be reached, they go after the grace period, as those of a lost server do.
        """
        self._remembered.add(link)
        self._recall(link, identity, lists)

    def is_fetching(self, link: LinkKey) -> bool:
        """Whether any list of a link is being fetched, or will be."""
        keys = [ListKey(link, kind) for kind in Kind]
        return any(self._fetches.busy(key) or key in self._due for key in keys)

    def _recall(self, link: LinkKey, identity: ServerIdentity, lists: Mapping[Kind, tuple[Raw, ...]]) -> None:
        """Takes the recorded lists of an upstream that does not run (`start: on_demand`)."""
        with self._listeners.telling_list_changes(link.upstream):
            found = {kind: read_listing(link.upstream, kind, entries) for kind, entries in lists.items()}
            self._catalogue.known.recall(link, identity, found)
        for kind, listing in found.items():
            self._reports.measure(ListKey(link, kind), listing)

    def join(self, listener: Listener) -> None:
        """Makes the links that are the listener's own, so that their lists are known when it asks."""
        self._connect_own(listener, self._upstreams)

    def _connect_own(self, listener: Listener, upstreams: Container[str]) -> None:
        for link in self._catalogue.links(listener.caller):
            is_own = link.owner not in (None, listener.caller.principal.key, listener.caller.authority)
            if is_own and link.upstream in upstreams and not self._catalogue.known.is_up(link):
                self._connecting.want(link)

    def connect_for_principal(self, caller: Caller) -> None:
        """Makes the links for which the caller's principal logged in: only those list what it may use."""
        for space in self._catalogue.layout(caller).spaces:
            link = self._catalogue.link(space, caller)
            if space.spec.has_own_logins and not self._catalogue.known.is_up(link):
                self._callers[link] = caller
                self._connecting.want(link)

    async def connect_with_credentials(self, caller: Caller) -> None:
        """Makes the links for `caller`'s credentials; returns once each has listed or failed, or after `list_wait`."""
        own = caller.credentials
        links = [link for link in self._catalogue.links(caller) if own is not None and link.owner == own.key]
        unknown = [link for link in links if self._catalogue.known.identity(link) is None]
        for link in unknown:
            self._callers[link] = caller
            self._connecting.want(link)
        with anyio.move_on_after(self._proxy.list_wait):
            for link in unknown:
                await self._connecting.done(link)
            for kind in Kind:
                await self._known(unknown, kind, self._proxy.list_wait)

    async def known(self, caller: Caller, kind: Kind, seconds: float) -> None:
        """Returns when every list of `kind` in the caller's view is known or hopeless, or after `seconds`."""
        await self._known(self._catalogue.links(caller), kind, seconds)

    async def _known(self, links: Collection[LinkKey], kind: Kind, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            while any(self._is_awaited(ListKey(link, kind)) for link in links):
                await self._wakeup.wait()

    async def fresh(self, caller: Caller, kind: Kind, seconds: float) -> None:
        """As `known`; also fetches lists again that are past their TTL and whose changes are not announced."""
        keys = [ListKey(link, kind) for link in self._catalogue.links(caller)]
        outdated = [key for key in keys if self._is_outdated(key)]
        for key in outdated:
            if not self._fetches.busy(key):
                self._fetches.want(key)
        if self._hanging:
            keys = [key for key in keys if key.link not in self._hanging]
            outdated = [key for key in outdated if key.link not in self._hanging]
        if not outdated and not any(self._is_awaited(key) for key in keys):
            return
        with anyio.move_on_after(seconds) as waiting:
            await self._known([key.link for key in keys], kind, seconds)
            for key in outdated:
                await self._fetches.done(key)
        if waiting.cancelled_caught or any(self._is_awaited(key) for key in keys):
            slow = [key for key in keys if self._is_awaited(key) or (key in outdated and self._fetches.busy(key))]
            self._hanging.update(key.link for key in slow)

    async def settled(self) -> None:
        """Returns when every upstream has connected and listed, or has failed its first attempt."""
        links = [LinkKey(name, None) for name in self._upstreams]
        bounds = (timeouts.connect + timeouts.list for timeouts in self._timeouts.values())
        with anyio.move_on_after(max(bounds, default=0)):
            for kind in Kind:
                await self._known(links, kind, float("inf"))

    async def refetched(self, key: ListKey, call: Call) -> Failed | None:
        """Fetches a list anew, over a link that is made if there is none; returns the failure, if any."""
        link = key.link
        if not self._catalogue.known.is_up(link):
            outcome = await self._ask(link, key.kind, {}, call.listener, call.caller)
            if isinstance(outcome, Failed) and outcome.reason is Reason.UNAVAILABLE:
                return outcome
        await self._fetches.done(key)
        if key not in self._failures:
            return None
        sentence = f"upstream {link.upstream!r}: its {key.kind.value} could not be listed, and may not be as approved"
        return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM, Reason.UNAVAILABLE)

    async def reach(self, space: Space, kind: Kind, call: Call) -> None:
        """Makes one attempt to fetch an unknown list.

        Raises McpError if the upstream cannot be reached (R53), and LoginRequired if it lists nothing without a login,
        be it that it let the gateway connect (R67).
        """
        link, known = self._catalogue.link(space, call.caller), self._catalogue.known
        if known.listing(link, kind) is not None:
            return
        if not known.is_up(link) or known.awaits_login(link):
            await self._demand(link, kind, call)
        timeouts = self._timeouts.get(space.upstream, space.spec.timeouts)
        await self.known(call.caller, kind, timeouts.list)
        if known.listing(link, kind) is None:
            if known.awaits_login(link):
                await self._demand(link, kind, call)
            sentence = f"upstream {space.upstream!r}: its {kind.value} are not known; it does not list them"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)

    async def _demand(self, link: LinkKey, kind: Kind, call: Call) -> None:
        """Asks for a list to learn why there is none. Raises as `reach`. While a login is awaited nothing is sent."""
        outcome = await self._ask(link, kind, {}, call.listener, call.caller)
        if isinstance(outcome, Failed) and outcome.login is not None:
            raise LoginRequired(outcome)
        if isinstance(outcome, Failed) and outcome.reason is Reason.UNAVAILABLE:
            raise McpError(outcome.error.code, outcome.error.message, reason=Reason.UNAVAILABLE)

    # What follows runs in the task group of `run`.

    async def _fetch(self, key: ListKey) -> None:
        link, kind = key
        if not self._catalogue.known.is_up(link):
            return
        limits, spec = self._proxy.limits, self._specs[link.upstream]
        bounds = PageLimits(limits.max_list_pages, limits.max_list_entries, spec.max_message_bytes)
        owner = self._listeners.of(link.owner) if link.owner is not None else None
        if owner is None and link.owner is not None and spec.connection == "session":
            return
        self._metrics.list_fetches.labels(link.upstream, kind.value).inc()
        asked, noticed = self._now(), self._changed_since.pop(key, None)
        self._due.discard(key)
        if noticed is not None:
            self._pace.begin(key, asked)
        lasts = partial(self._catalogue.known.lasts, link, self._catalogue.known.identity(link))
        fetched = await fetch_pages(lambda params: self._page(key, params, owner), kind, bounds)
        if not lasts():
            return
        self._hanging.discard(link)
        if isinstance(fetched, Failed):
            self._note_change(key, noticed)
            self._retry(key, fetched)
        else:
            self._failures.pop(key, None)
            await self._store(key, fetched, lasts)
            if not lasts():
                return
            # A change that came meanwhile may not be in what was fetched (R35).
            hints = fetched.hints
            if hints.ttl is None and kind.extension is not None:
                # No notification announces changes of such a list: without a TTL it is out of date at once.
                hints = replace(hints, ttl=0.0)
            self._catalogue.known.renew(link, kind, DOUBTFUL if self._is_wanted(key) else stated(hints, asked))
            self._poll(key)
            self._observe_delay(key, noticed)
        self._wakeup.notify_all()

    def _is_wanted(self, key: ListKey) -> bool:
        """Whether the list changed since its last fetch began."""
        return key in self._due or self._fetches.wanted(key)

    async def _page(self, key: ListKey, params: Params, owner: Listener | None) -> Outcome:
        """One page; none for a session that is gone: the request would make a link that nothing releases (R14)."""
        if owner is not None and owner not in self._listeners:
            error = ErrorObject(INTERNAL_ERROR, f"upstream {key.link.upstream!r}: the session has ended")
            return Failed(error, Party.CLIENT, Reason.CANCELLED)
        return await self._ask(key.link, key.kind, params, owner)

    async def _ask(
        self,
        link: LinkKey,
        kind: Kind,
        params: Params,
        listener: Listener | None,
        caller: Caller | None = None,
        *,
        hurries: bool = True,
    ) -> Outcome:
        """One page, within the upstream's timeout for lists; time to connect, if needed, comes on top."""
        if link.upstream not in self._upstreams:
            return _gone(link)
        timeouts = self._timeouts[link.upstream]
        seconds = timeouts.list + (0 if self._catalogue.known.is_up(link) else timeouts.connect)
        with anyio.move_on_after(seconds):
            call = internal_call(link, kind.list_method, params, listener, caller, hurries=hurries)
            return await self._upstreams[link.upstream](call)
        sentence = f"upstream {link.upstream!r}: no answer to {kind.list_method} in {seconds:g} s"
        return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM, Reason.TIMEOUT)

    async def _connect(self, link: LinkKey) -> None:
        """Makes an owner's link by a call over it; its lists are fetched upon `Connected`."""
        owner = self._listeners.of(link.owner) if link.owner is not None else None
        caller = self._callers.pop(link, None)
        if (owner or caller) is not None and not self._catalogue.known.is_up(link):
            await self._ask(link, Kind.TOOLS, {}, owner, caller, hurries=False)
        self._wakeup.notify_all()

    async def _expire(self, link: LinkKey) -> None:
        """Ends the grace period of a lost upstream (R10). Lists that only wait for a login stay."""
        if not self._catalogue.known.is_up(link) and not self._catalogue.known.awaits_login(link):
            with self._listeners.telling_list_changes(link.upstream):
                self._catalogue.known.empty(link)

    def _not_announced(self, link: LinkKey, kinds: frozenset[Kind]) -> None:
        """From now on treats these lists as if their upstream did not declare `listChanged` (R75)."""
        self._unannounced[link] = kinds
        for kind in kinds:
            if self._catalogue.known.is_up(link) and self._catalogue.known.tells_changes(link, kind):
                self._poll(ListKey(link, kind))

    def _announces_changes(self, key: ListKey) -> bool:
        """Whether the upstream declares that it announces changes of the list, and its push channel is up (R75)."""
        return self._catalogue.known.tells_changes(*key) and key.kind not in self._unannounced.get(key.link, ())

    def _regained(self, link: LinkKey) -> None:
        """Treats every list as changed: notifications may have been lost with the link."""
        for kind in Kind:
            if self._catalogue.known.tells_changes(link, kind) or kind.extension is not None:
                self._changed(ListKey(link, kind))

    def _changed(self, key: ListKey) -> None:
        link, kind = key
        if not self._catalogue.known.announces(link, kind):
            return
        if self._is_wanted(key):
            self._metrics.coalesced_notifications.labels(link.upstream, kind.value).inc()
        self._note_change(key, self._now())
        self._catalogue.known.renew(link, kind, DOUBTFUL)
        wait = self._pace.wait(key, self._now())
        if not wait:
            self._fetches.want(key)
        elif key not in self._due:
            self._due.add(key)
            self._fetches.want_after(key, wait)

    def _note_change(self, key: ListKey, since: float | None) -> None:
        if since is not None:
            self._changed_since[key] = min(since, self._changed_since.get(key, since))

    def _observe_delay(self, key: ListKey, noticed: float | None) -> None:
        if noticed is not None:
            labels = key.link.upstream, key.kind.value
            self._metrics.notification_delay.labels(*labels).observe(self._now() - noticed)

    def _fetch_all(self, link: LinkKey) -> None:
        for kind in Kind:
            self._failures.pop(ListKey(link, kind), None)
            if self._catalogue.known.announces(link, kind):
                self._fetches.want(ListKey(link, kind))

    def _retire(self, link: LinkKey) -> None:
        self._expiries.forget(link)
        self._connecting.forget(link)
        self._callers.pop(link, None)
        self._unannounced.pop(link, None)
        self._remembered.discard(link)
        for kind in Kind:
            self._fetches.forget(ListKey(link, kind))
            self._failures.pop(ListKey(link, kind), None)
            self._changed_since.pop(ListKey(link, kind), None)
            self._pace.forget(ListKey(link, kind))
            self._due.discard(ListKey(link, kind))
        self._hanging.discard(link)
        with self._listeners.telling_list_changes(link.upstream):
            self._catalogue.known.retire(link)

    def _retry(self, key: ListKey, failed: Failed) -> None:
        self._failures[key] += 1
        if failed.reason is Reason.LOGIN_NEEDED:
            return  # The list is fetched once the login is made.
        delay = retry_delay(self._failures[key])
        log.warning(
            "a list could not be fetched and stays as it was",
            upstream=key.link.upstream,
            list=key.kind.value,
            why=failed.error.message,
            again_in=delay,
        )
        self._fetches.want_after(key, delay)

    def _poll(self, key: ListKey) -> None:
        """Polls the list again later (caching: those who poll "MUST apply jitter and backoff"; `_retry` backs off)."""
        seconds = self._specs[key.link.upstream].list_poll
        if seconds and not self._is_wanted(key) and not self._announces_changes(key):
            self._fetches.want_after(key, seconds * (0.75 + self._chance() / 2))

    async def _store(self, key: ListKey, fetched: FetchedPages, lasts: Callable[[], bool]) -> None:
        """Takes in a list, if its connection `lasts`. Calls and lists go on until all of it is worked out."""
        link, kind = key
        if fetched.cut is not None:
            log.warning("a list was cut", upstream=link.upstream, list=kind.value, why=fetched.cut)
        before = self._catalogue.known.listing(link, kind)
        turns = self._catalogue.turns
        listing = await turns.take(reading(link.upstream, kind, fetched.items, before or EMPTY))
        if listing == before or not lasts():
            return
        await turns.take(self._catalogue.exposures.preparing(key, listing, self._reports.showings(kind)))
        if not lasts():
            return
        with self._listeners.telling_list_changes(link.upstream, is_new=before is None):
            self._catalogue.known.replace(link, kind, listing)
        self._reports.measure(key, listing)
        self._reports.warn(key)

    def _is_awaited(self, key: ListKey) -> bool:
        link = key.link
        if self._catalogue.known.listing(link, key.kind) is not None:
            return False
        if self._catalogue.known.is_up(link):
            return key not in self._failures
        if link.owner is not None:
            return self._connecting.busy(link)
        upstream = self._upstreams.get(link.upstream)
        return upstream is not None and upstream.status.state is LinkState.CONNECTING

    def _is_outdated(self, key: ListKey) -> bool:
        """Whether the list is past its TTL, its changes are not announced, and its last fetch did not fail."""
        freshness, now = self._catalogue.known.freshness(*key), self._now()
        if freshness is DOUBTFUL or self._announces_changes(key) or key in self._failures:
            return False
        if freshness.until is None:
            return now >= freshness.asked + ASSUMED_TTL
        return freshness.over(now) and now >= freshness.asked + SOONEST_AGAIN


def _gone(link: LinkKey) -> Failed:
    sentence = f"upstream {link.upstream!r} is no longer configured"
    return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.GATEWAY, Reason.UNAVAILABLE)
