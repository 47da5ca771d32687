"""One upstream subscription for each resource of a link, however many clients watch it (requirements R20, R21).

First in subscribes upstream, last out unsubscribes, and a link that is heard again is subscribed anew. Whenever changes
may have gone unheard, watchers get one `updated`, and what is cached is in doubt. `Watchers` knows who watches what;
`Subscriptions` makes upstreams agree with it, one request at a time for each resource.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import anyio
import structlog

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import Listener, ResourceUpdated
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    PushChannel,
    Retired,
    Upstream,
    UpstreamChanged,
    UpstreamEvent,
)
from mcproxy.catalog.naming import Layout
from mcproxy.catalog.uris import MAX_URI, canonical
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.coalescer import Coalescer
from mcproxy.gateway.listings.internal_calls import internal_call, retry_delay
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.listings.listeners import Listeners, label_of
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.targets import Resolver, check_brought
from mcproxy.gateway.subscriptions.watchers import Watchers
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    ErrorObject,
    Params,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import SUBSCRIBE, UNSUBSCRIBE, Kind
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()


class Subscriptions:
    """`doubt` hears of each topic that may have changed unheard, before any listener does."""

    def __init__(
        self,
        catalogue: Catalogue,
        resolver: Resolver,
        upstreams: Mapping[str, Upstream],
        listeners: Listeners,
        limit: int,
        metrics: Metrics,
        doubt: Callable[[ResourceKey], None],
        sleep: Sleep = anyio.sleep,
        now: Clock = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._resolver = resolver
        self._upstreams = upstreams
        self._listeners = listeners
        self._limit = limit
        self._metrics = metrics
        self._doubt = doubt
        self._now = now
        self._watchers = Watchers()
        self._made: set[ResourceKey] = set()
        """What upstreams have agreed to, as far as we know; what is also in `_missed` they may have dropped since."""
        self._refusals: dict[ResourceKey, Failed] = {}
        self._failures: Counter[ResourceKey] = Counter()
        """How often in a row an upstream refused what others than newcomers watch."""
        self._missed: set[ResourceKey] = set()
        """Topics that were not subscribed for a while: their watchers get one `updated`."""
        self._epochs: Counter[LinkKey] = Counter()
        """How often each link came up."""
        self._syncs: Coalescer[ResourceKey] = Coalescer(self._sync, sleep)
        self._gauge()

    def reconfigure(self, limit: int) -> None:
        """Goes by other settings from now on. Who is served by another link than before watches over that one."""
        self._limit = limit
        self._gauge()
        for listener, topic, spelling in self._watchers.everybody():
            self._move(listener, topic, spelling)
            if topic.link.upstream not in self._upstreams:
                self._missed.add(topic)

    def follow(self, listener: Listener) -> None:
        """The same for one listener, whose caller may be served by other links than before."""
        for topic, spelling in self._watchers.held(listener):
            self._move(listener, topic, spelling)

    def _move(self, listener: Listener, topic: ResourceKey, spelling: str) -> None:
        now = ResourceKey(self._link(listener, topic), topic.uri)
        if now != topic:
            self.unwatch(topic, listener, spelling)
            self._watchers.add(now, listener, spelling)
            self._syncs.want(now)
            self._missed.add(now)

    async def run(self) -> None:
        """Subscribes and unsubscribes upstream until cancelled."""
        await self._syncs.run()

    async def subscribe(self, call: Call) -> Outcome:
        """Answers once the upstream agreed, or at once where it is away: then it is asked when it returns."""
        listener, spelling = _listener(call), _uri(call)
        if listener not in self._listeners:
            raise McpError(INVALID_REQUEST, "this session has ended")
        space, own = self._resolver.resource(spelling, call)
        check_brought(space, call.caller)
        return await self.watch(ResourceKey(self._catalogue.link(space, call.caller), own), listener, spelling)

    async def unsubscribe(self, call: Call) -> Outcome:
        """Answers once the upstream was told where it had to be, whether anything was subscribed or not."""
        listener, uri = _listener(call), _uri(call)
        left = [(topic, spelling) for topic, spelling in self._watchers.held(listener) if spelling == uri]
        for topic, spelling in left:
            self.unwatch(topic, listener, spelling)
        for topic, _ in left:
            await self._syncs.done(topic)
        return Complete({})

    async def watch(self, topic: ResourceKey, listener: Listener, spelling: str) -> Outcome:
        """Has `listener` hear of updates as `spelling`; where the upstream refuses, nothing is kept."""
        if len(spelling) > MAX_URI:
            raise McpError(INVALID_PARAMS, f"nobody can watch a URI of more than {MAX_URI} characters")
        if len(self._watchers.held(listener)) >= self._limit:
            sentence = f"too many subscriptions: {self._limit} a session (proxy.limits.max_subscriptions_per_session)"
            raise McpError(INVALID_REQUEST, sentence)
        added = self._watchers.add(topic, listener, spelling)
        settled = False
        try:
            refusal = await self._agreed(topic)
            settled = refusal is None
        finally:
            if added and not settled:
                self.unwatch(topic, listener, spelling)
        return refusal or Complete({})

    def unwatch(self, topic: ResourceKey, listener: Listener, spelling: str) -> None:
        if self._watchers.remove(topic, listener, spelling):
            self._syncs.want(topic)

    def drop(self, listener: Listener) -> None:
        """Ends all that a listener holds. A link of its own ends with it, and is told nothing."""
        for topic, spelling in self._watchers.held(listener):
            if topic.link.owner is not None:
                self._made.discard(topic)
            self.unwatch(topic, listener, spelling)

    def on_event(self, event: UpstreamEvent) -> None:
        """Never blocks."""
        link = LinkKey(event.upstream, event.owner)
        match event:
            case Connected():
                self._replay(link)
            case Disconnected():
                self._forget(link)
            case Retired():
                self._forget(link)
                self._epochs.pop(link, None)
            case UpstreamChanged(change=ResourceUpdated() as update):
                self._updated(link, update)
            case UpstreamChanged(change=PushChannel.RESTORED):
                self._renew(link)
            case UpstreamChanged():
                pass

    def _updated(self, link: LinkKey, update: ResourceUpdated) -> None:
        noticed = self._now()
        meant = self._watchers.meant(link, update.uri)
        for topic in meant:
            self._tell_all(topic, update)
        if meant:
            labels = link.upstream, label_of(update)
            self._metrics.notification_delay.labels(*labels).observe(self._now() - noticed)

    def _tell_all(self, topic: ResourceKey, update: ResourceUpdated) -> None:
        """Those who use one spelling are told the very same, and what many see alike is asked once."""
        itself = _is_itself(topic, update.uri)
        # By identity: all that is told apart so is kept for as long as this takes.
        heard: dict[tuple[str, int, str], ResourceUpdated | None] = {}
        layouts: dict[int, tuple[Layout, bool]] = {}
        changes: dict[str, ResourceUpdated] = {}
        told = 0
        for listener, spelling in self._watchers.hearers(topic):
            caller = listener.caller
            whose = caller.endpoint, id(caller.principal), spelling
            if whose not in heard:
                layout = self._catalogue.layout(caller)
                if id(layout) not in layouts:
                    layouts[id(layout)] = layout, _may_hear(layout, topic, update.uri)
                heard[whose] = None
                if layouts[id(layout)][1]:
                    uri = spelling if itself else layout.space(topic.link.upstream).expose_uri(update.uri)
                    heard[whose] = changes.get(uri) or changes.setdefault(uri, _update(uri, update.params))
            change = heard[whose]
            if change is not None:
                listener.signal(change)
                told += 1
        self._listeners.count(topic.link.upstream, update, told)

    def _tell(self, listener: Listener, topic: ResourceKey, uri: str, params: Params) -> None:
        """Not of what the listener may not read by now."""
        if self._catalogue.may_read(listener.caller, topic.link.upstream, topic.uri):
            self._listeners.signal(listener, topic.link.upstream, _update(uri, params))

    def _replay(self, link: LinkKey) -> None:
        self._forget(link)
        came_back = self._epochs[link] > 0
        self._epochs[link] += 1
        for topic in self._watchers.of(link):
            self._failures.pop(topic, None)
            if came_back:
                self._missed.add(topic)
            self._syncs.want(topic)

    def _renew(self, link: LinkKey) -> None:
        """The upstream may still hold what it agreed to, or not: it is asked again."""
        for topic in self._watchers.of(link):
            self._failures.pop(topic, None)
            self._missed.add(topic)
            self._syncs.want(topic)

    def _link(self, listener: Listener, topic: ResourceKey) -> LinkKey:
        """The link that serves a listener now; of an upstream that is not there, what served it last."""
        layout = self._catalogue.layout(listener.caller)
        if not layout.shows(topic.link.upstream):
            return topic.link
        return self._catalogue.link(layout.space(topic.link.upstream), listener.caller)

    def _gauge(self) -> None:
        for name in self._upstreams:
            self._metrics.subscriptions.labels(name, "clients").set_function(partial(self._count_watchers, name))
            self._metrics.subscriptions.labels(name, "upstream").set_function(partial(self._count_made, name))

    def _forget(self, link: LinkKey) -> None:
        self._made = {topic for topic in self._made if topic.link != link}

    def _count_watchers(self, upstream: str) -> int:
        """The subscriptions of clients; what the cache watches on its own account is none."""
        return sum(listener in self._listeners for listener in self._watchers.all_of(upstream))

    def _count_made(self, upstream: str) -> int:
        return sum(topic.link.upstream == upstream for topic in self._made)

    async def _agreed(self, topic: ResourceKey) -> Failed | None:
        """Waits for the upstream to agree. None where it did, or is away; else its refusal."""
        if self._is_settled(topic) or self._is_away(topic.link):
            return None
        self._syncs.want(topic)
        await self._syncs.done(topic)
        return self._refusals.get(topic)

    def _is_settled(self, topic: ResourceKey) -> bool:
        """Whether the upstream agreed, and was not heard to doubt it since."""
        return topic in self._made and topic not in self._missed and not self._syncs.busy(topic)

    def _is_away(self, link: LinkKey) -> bool:
        """Whether the link is one that comes back by itself; a session's own link is made by using it."""
        return link.owner is None and not self._catalogue.is_up(link)

    # What follows runs in the task group of `run`.

    async def _sync(self, topic: ResourceKey) -> None:
        """Makes the upstream agree with what is wanted now."""
        wanted, missed = topic in self._watchers, topic in self._missed
        self._missed.discard(topic)
        if wanted and (missed or topic not in self._made) and not self._is_away(topic.link):
            await self._subscribe(topic)
        elif not wanted:
            await self._unsubscribe(topic)
        if missed and self._failures[topic] <= 1:
            self._doubt(topic)
            for listener, spelling in self._watchers.hearers(topic):
                self._tell(listener, topic, spelling, {})

    async def _subscribe(self, topic: ResourceKey) -> None:
        self._refusals.pop(topic, None)
        # A session's own link is made by the request itself.
        epoch = self._epochs[topic.link] + (not self._catalogue.is_up(topic.link))
        outcome = await self._ask(topic, SUBSCRIBE)
        if not self._catalogue.is_up(topic.link) or self._epochs[topic.link] != epoch:
            # Whatever was said, that link is gone: the subscription is made with the next one.
            return
        match outcome:
            case Complete():
                self._agree(topic)
            case Failed():
                self._refuse(topic, outcome)
            case InputRequired():
                self._refuse(topic, _failed(f"{SUBSCRIBE} may not ask for input"))

    def _agree(self, topic: ResourceKey) -> None:
        self._made.add(topic)
        self._failures.pop(topic, None)
        # What was read before may have changed since, unheard.
        self._doubt(topic)

    def _refuse(self, topic: ResourceKey, refusal: Failed) -> None:
        """Newcomers take it for an answer and go; for those who watched before, it is tried again."""
        self._refusals[topic] = refusal
        self._failures[topic] += 1
        self._missed.add(topic)
        self._syncs.want_after(topic, retry_delay(self._failures[topic]))
        log.warning("a subscription was refused", upstream=topic.link.upstream, why=refusal.error.message)

    async def _unsubscribe(self, topic: ResourceKey) -> None:
        self._refusals.pop(topic, None)
        self._failures.pop(topic, None)
        if topic in self._made:
            self._made.discard(topic)
            if self._catalogue.is_up(topic.link):
                await self._ask(topic, UNSUBSCRIBE)

    async def _ask(self, topic: ResourceKey, method: str) -> Outcome:
        link = topic.link
        if link.upstream not in self._upstreams:
            return _failed(f"upstream {link.upstream!r} is no longer configured", Reason.UNAVAILABLE)
        timeouts = self._catalogue.configured(link.upstream).space(link.upstream).spec.timeouts
        seconds = timeouts.connect + timeouts.list
        owner = self._listeners.of(link.owner) if link.owner is not None else None
        with anyio.move_on_after(seconds):
            return await self._upstreams[link.upstream](internal_call(link, method, {"uri": raw(topic.uri)}, owner))
        return _failed(f"upstream {link.upstream!r}: no answer to {method} in {seconds:g} s", Reason.TIMEOUT)


def _failed(sentence: str, reason: Reason = Reason.PROTOCOL_ERROR) -> Failed:
    return Failed(ErrorObject(INTERNAL_ERROR, sentence), Party.UPSTREAM, reason)


def _listener(call: Call) -> Listener:
    if call.listener is None:
        raise McpError(INVALID_REQUEST, "this client has no stream on which it could hear of changes")
    return call.listener


def _uri(call: Call) -> str:
    uri = parse_text(call.params.get("uri", b""))
    if uri is None:
        raise McpError(INVALID_PARAMS, '"uri" must be given, as a string')
    return uri


def _is_itself(topic: ResourceKey, uri: str) -> bool:
    """Whether `uri` is the topic's own, or its hearers' spelling has to do because it is too long to be passed on."""
    return uri == topic.uri or len(uri) > MAX_URI or canonical(uri) == canonical(topic.uri)


def _may_hear(layout: Layout, topic: ResourceKey, uri: str) -> bool:
    """Whether who has `layout` may read the topic, and the part of it that `uri` may be: that need not be the same."""
    upstream = topic.link.upstream
    if not layout.shows(upstream):
        return False
    space = layout.space(upstream)
    return all(space.shows(Kind.RESOURCES, each) for each in dict.fromkeys((topic.uri, uri)))


def _update(uri: str, params: Params) -> ResourceUpdated:
    return ResourceUpdated(uri, {**params, "uri": raw(uri)})
