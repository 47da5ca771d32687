"""One upstream subscription for each resource of a link, however many clients watch it (requirements R20, R21).

The first watcher subscribes upstream, the last one unsubscribes, and after a link or push channel was lost the
subscriptions are made again. Where updates may have been missed, watchers get one `updated`, and the cache is
invalidated. `watchers` holds which client watches what, and `subscription` what the upstream was asked; this module
makes the two agree, with one request at a time for each resource. `updates` tells clients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import anyio
import structlog

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import Listener
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.upstreams import (
    Connected,
    Disconnected,
    Idled,
    PushChannel,
    Retired,
    Upstream,
    UpstreamChanged,
    UpstreamEvent,
)
from mcproxy.catalog.uris import MAX_URI
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.concurrency.coalescer import Coalescer
from mcproxy.gateway.component import LINK_EVENTS, Component, Reconfiguration
from mcproxy.gateway.listings.internal_calls import internal_call, retry_delay
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.targets import Resolver, check_brought
from mcproxy.gateway.subscriptions.subscription import (
    HELD,
    TO_ASK,
    SubscriptionEvent,
    SubscriptionState,
    UpstreamSubscription,
)
from mcproxy.gateway.subscriptions.updates import ResourceUpdates
from mcproxy.gateway.subscriptions.watchers import Watchers
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    ErrorObject,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from mcproxy.settings import LimitSettings
from mcproxy.settings.upstreams.upstream import UpstreamTimeouts
from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()


class ResourceSubscriptions(Component):
    """Calls `invalidate` with each resource that may have changed unreported, before any listener is told."""

    goes_by = frozenset({"access", "endpoints", "proxy", "upstreams"})
    heeds = LINK_EVENTS | {PushChannel}

    def __init__(
        self,
        catalogue: Catalogue,
        resolver: Resolver,
        upstreams: Mapping[str, Upstream],
        timeouts: Mapping[str, UpstreamTimeouts],
        listeners: Listeners,
        limits: LimitSettings,
        metrics: Metrics,
        invalidate: Callable[[ResourceKey], None],
        sleep: Sleep = anyio.sleep,
        now: Clock = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._resolver = resolver
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._listeners = listeners
        self._limits = limits
        self._metrics = metrics
        self._invalidate = invalidate
        self._watchers = Watchers(listeners.__contains__)
        self.updates = ResourceUpdates(catalogue, self._watchers, listeners, metrics, now)
        self._subscriptions: dict[ResourceKey, UpstreamSubscription] = {}
        """Every subscription that is not ENDED."""
        self._known_links: set[LinkKey] = set()
        """Links that were up before: changes while they were down went unreported."""
        self._syncs: Coalescer[ResourceKey] = Coalescer(self._sync, sleep)
        self._gauge()

    def reconfigure(self, change: Reconfiguration) -> None:
        """Moves the subscriptions of clients that another link serves since the reload to that link."""
        self._limits = change.settings.proxy.limits
        self._gauge()
        for listener, key, client_uri in self._watchers.everyone():
            self._respell(listener, key, client_uri)
            self._move(listener, key, client_uri)
            if key.link.upstream not in self._upstreams:
                self._subscriptions[key].gap = True

    def join(self, listener: Listener) -> None:
        """Also for a listener that has joined before, whose caller may be served by other links now."""
        for key, client_uri in self._watchers.held(listener):
            self._move(listener, key, client_uri)

    def _move(self, listener: Listener, key: ResourceKey, client_uri: str) -> None:
        now = ResourceKey(self._link(listener, key), key.uri)
        if now != key:
            self.unwatch(key, listener, client_uri)
            self._add(now, listener, client_uri)
            self._subscriptions[now].gap = True
            self._syncs.want(now)

    def _respell(self, listener: Listener, key: ResourceKey, client_uri: str) -> None:
        """After a reload that gave a listener's URI to another resource or to none, switches it to the valid URI."""
        layout, told = self._catalogue.layout(listener.caller), self._watchers.told_uri(key, listener, client_uri)
        if listener not in self._listeners or not layout.shows(key.link.upstream):
            return
        space = layout.space(key.link.upstream)
        read = self._catalogue.view(listener.caller).resource(told)
        if read is None or (read[0].upstream, read[1]) != (space.upstream, key.uri):
            self._watchers.tell(key, listener, client_uri, space.expose_uri(key.uri))

    def uris(self, listener: Listener) -> list[str]:
        """The resources that a listener watches, in its own names."""
        return [client_uri for _, client_uri in self._watchers.held(listener)]

    async def run(self) -> None:
        """Subscribes and unsubscribes upstream until cancelled."""
        await self._syncs.run()

    async def subscribe(self, call: Call) -> Outcome:
        """Answers once the upstream agreed, or at once if it is down: then it is asked when it is up again."""
        listener, client_uri = _listener(call), _uri(call)
        if listener not in self._listeners:
            raise McpError(INVALID_REQUEST, "this session has ended")
        space, own = self._resolver.resource(client_uri, call)
        check_brought(space, call.caller)
        return await self.watch(ResourceKey(self._catalogue.link(space, call.caller), own), listener, client_uri)

    async def unsubscribe(self, call: Call) -> Outcome:
        """Answers once the upstream was told, if that is needed; also if there was no subscription."""
        listener, uri = _listener(call), _uri(call)
        held = self._watchers.held(listener)
        left = [(key, client_uri) for key, client_uri in held if client_uri == uri] or [
            (key, client_uri) for key, client_uri in held if self._watchers.told_uri(key, listener, client_uri) == uri
        ]
        for key, client_uri in left:
            self.unwatch(key, listener, client_uri)
        for key, _ in left:
            await self._syncs.done(key)
        return Complete({})

    async def watch(self, key: ResourceKey, listener: Listener, client_uri: str) -> Outcome:
        """Has `listener` told of updates as `client_uri`. If the upstream refuses, nothing is kept."""
        if len(client_uri) > MAX_URI:
            raise McpError(INVALID_PARAMS, f"the URI has more than {MAX_URI} characters: it cannot be watched")
        if not self._watchers.holds(key, listener, client_uri):
            self._check_room(listener, client_uri)
        added = self._add(key, listener, client_uri)
        settled = False
        try:
            refusal = await self._agreed(key)
            settled = refusal is None
        finally:
            if added and not settled:
                self.unwatch(key, listener, client_uri)
        return refusal or Complete({})

    def _check_room(self, listener: Listener, client_uri: str) -> None:
        """Raises McpError where a listener, or its principal, has reached its limit."""
        limits = self._limits
        most = limits.max_subscriptions_per_session
        if self._watchers.count(listener) >= most:
            raise _too_many(f"{most} a session", "max_subscriptions_per_session")
        if listener not in self._listeners:
            return
        usage = self._watchers.usage(listener.caller.principal.account)
        if usage.subscriptions >= limits.max_subscriptions_per_principal:
            most = limits.max_subscriptions_per_principal
            raise _too_many(f"{most} in all your sessions and streams", "max_subscriptions_per_principal")
        if usage.size + len(client_uri) > limits.max_subscription_bytes_per_principal:
            most = limits.max_subscription_bytes_per_principal
            sentence = f"{most} bytes of URIs in all your sessions and streams"
            raise _too_many(sentence, "max_subscription_bytes_per_principal")

    def unwatch(self, key: ResourceKey, listener: Listener, client_uri: str) -> None:
        """Ends a `watch`, if there is one. The upstream is told when nobody else watches the resource."""
        if self._watchers.remove(key, listener, client_uri):
            self._happened(key, SubscriptionEvent.LEFT)
            if key in self._subscriptions:
                self._syncs.want(key)

    def leave(self, listener: Listener) -> None:
        """Ends all subscriptions of a listener. A link of its own session ends with it, and is told nothing."""
        for key, client_uri in self._watchers.held(listener):
            if key.link.owner is not None and key.link.owner == listener.caller.session:
                self._happened(key, SubscriptionEvent.LINK_LOST)
            self.unwatch(key, listener, client_uri)

    def state_of(self, key: ResourceKey) -> SubscriptionState:
        """The state of the subscription to a resource."""
        subscription = self._subscriptions.get(key)
        return SubscriptionState.ENDED if subscription is None else subscription.state

    def _add(self, key: ResourceKey, listener: Listener, client_uri: str) -> bool:
        """Adds a watcher. Returns False if the listener watches the resource under that URI already."""
        if key not in self._subscriptions:
            self._subscriptions[key] = UpstreamSubscription()
        elif key not in self._watchers:
            self._happened(key, SubscriptionEvent.WATCHED)
        return self._watchers.add(key, listener, client_uri)

    def _happened(self, key: ResourceKey, event: SubscriptionEvent) -> None:
        """Applies an event to a subscription, if there is one, and forgets it if that ends it."""
        subscription = self._subscriptions.get(key)
        if subscription is None:
            return
        subscription.move(event)
        if subscription.state is SubscriptionState.ENDED:
            del self._subscriptions[key]
            self._syncs.forget(key)

    def on_event(self, event: UpstreamEvent) -> None:
        """Never blocks."""
        link = LinkKey(event.upstream, event.owner)
        match event:
            case Connected():
                self._renew(link, SubscriptionEvent.LINK_UP, after_gap=link in self._known_links)
                self._known_links.add(link)
            case Disconnected() | Idled():
                self._lose(link)
            case Retired():
                self._lose(link)
                self._known_links.discard(link)
            case UpstreamChanged(change=PushChannel.RESTORED):
                self._renew(link, SubscriptionEvent.CHANNEL_RESTORED, after_gap=True)
            case UpstreamChanged():
                pass

    def _renew(self, link: LinkKey, event: SubscriptionEvent, *, after_gap: bool) -> None:
        """Asks the upstream again for all that clients watch over a link."""
        for key in self._over(link):
            self._happened(key, event)
            subscription = self._subscriptions.get(key)
            if subscription is not None:
                subscription.failures = 0
                subscription.gap = subscription.gap or after_gap
                self._syncs.want(key)

    def _lose(self, link: LinkKey) -> None:
        for key in self._over(link):
            self._happened(key, SubscriptionEvent.LINK_LOST)

    def _over(self, link: LinkKey) -> list[ResourceKey]:
        return [key for key in self._subscriptions if key.link == link]

    def _link(self, listener: Listener, key: ResourceKey) -> LinkKey:
        """The link that serves a listener; for an upstream that is gone, the link that served it last."""
        layout = self._catalogue.layout(listener.caller)
        if not layout.shows(key.link.upstream):
            return key.link
        return self._catalogue.link(layout.space(key.link.upstream), listener.caller)

    def _gauge(self) -> None:
        for name in self._upstreams:
            self._metrics.subscriptions.labels(name, "clients").set_function(partial(self._count_watchers, name))
            self._metrics.subscriptions.labels(name, "upstream").set_function(partial(self._count_made, name))

    def _count_watchers(self, upstream: str) -> int:
        """The number of clients' subscriptions, without those of the cache."""
        return sum(listener in self._listeners for listener in self._watchers.all_of(upstream))

    def _count_made(self, upstream: str) -> int:
        return sum(
            key.link.upstream == upstream and subscription.state in HELD
            for key, subscription in self._subscriptions.items()
        )

    async def _agreed(self, key: ResourceKey) -> Failed | None:
        """Waits for the upstream's agreement. Returns None if it agreed or is down, else its refusal."""
        if self._is_settled(key) or self._is_away(key.link):
            return None
        self._syncs.want(key)
        await self._syncs.done(key)
        subscription = self._subscriptions.get(key)
        return None if subscription is None else subscription.refusal

    def _is_settled(self, key: ResourceKey) -> bool:
        """Whether the upstream agreed, and no updates were missed since."""
        subscription = self._subscriptions[key]
        return subscription.state is SubscriptionState.MADE and not subscription.gap and not self._syncs.busy(key)

    def _is_away(self, link: LinkKey) -> bool:
        """Whether a link is down and comes back by itself.

        A session's own link, or an idle one, does not: a request makes it.
        """
        return link.owner is None and not self._catalogue.known.is_reachable(link)

    # What follows runs in the task group of `run`.

    async def _sync(self, key: ResourceKey) -> None:
        """Makes the upstream agree with what is wanted now, and tells watchers where updates may have been missed."""
        subscription = self._subscriptions.get(key)
        if subscription is None:
            return
        gap, subscription.gap = subscription.gap, False
        if subscription.state in TO_ASK and not self._is_away(key.link):
            await self._subscribe(key, subscription)
        elif subscription.state is SubscriptionState.UNWANTED:
            await self._unsubscribe(key)
        if gap and subscription.failures <= 1:
            self._invalidate(key)
            self.updates.tell_of_gap(key)

    async def _subscribe(self, key: ResourceKey, subscription: UpstreamSubscription) -> None:
        subscription.refusal = None
        # The link of a session is made by the request itself.
        is_up = self._catalogue.known.is_up(key.link)
        self._happened(key, SubscriptionEvent.SENT if is_up else SubscriptionEvent.SENT_UNCONNECTED)
        offers = self.updates.takes_subscriptions(key.link)
        outcome = await self._ask(key, SUBSCRIBE) if offers else Complete({})
        match outcome:
            case Complete():
                self._agreed_to(key, subscription)
            case Failed():
                self._refused(key, subscription, outcome)
            case InputRequired():
                self._refused(key, subscription, _failed(f"{SUBSCRIBE} may not ask for input"))

    def _agreed_to(self, key: ResourceKey, subscription: UpstreamSubscription) -> None:
        self._happened(key, SubscriptionEvent.AGREED)
        if subscription.state is SubscriptionState.MADE:
            subscription.failures = 0
            # What was read before may have changed since, unreported.
            self._invalidate(key)
            if subscription.gap:
                # Sent before the push channel was restored: the upstream may not have received it.
                self._happened(key, SubscriptionEvent.CHANNEL_RESTORED)

    def _refused(self, key: ResourceKey, subscription: UpstreamSubscription, refusal: Failed) -> None:
        """Passes the refusal to new watchers, which leave; for earlier watchers, the request is tried again."""
        late = refusal.reason is Reason.TIMEOUT
        self._happened(key, SubscriptionEvent.UNANSWERED if late else SubscriptionEvent.REFUSED)
        if subscription.state not in (SubscriptionState.REFUSED, SubscriptionState.UNSURE):
            return
        subscription.refusal = refusal
        subscription.failures += 1
        subscription.gap = True
        self._syncs.want_after(key, retry_delay(subscription.failures))
        log.warning("a subscription was refused", upstream=key.link.upstream, why=refusal.error.message)

    async def _unsubscribe(self, key: ResourceKey) -> None:
        self._happened(key, SubscriptionEvent.WITHDRAWN)
        if self._catalogue.known.is_up(key.link) and self.updates.takes_subscriptions(key.link):
            await self._ask(key, UNSUBSCRIBE)

    async def _ask(self, key: ResourceKey, method: str) -> Outcome:
        link = key.link
        if link.upstream not in self._upstreams:
            return _failed(f"upstream {link.upstream!r} is no longer configured", Reason.UNAVAILABLE)
        timeouts = self._timeouts[link.upstream]
        seconds = timeouts.connect + timeouts.list
        owner = self._listeners.of(link.owner) if link.owner is not None else None
        with anyio.move_on_after(seconds):
            return await self._upstreams[link.upstream](internal_call(link, method, {"uri": raw(key.uri)}, owner))
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


def _too_many(most: str, setting: str) -> McpError:
    return McpError(INVALID_REQUEST, f"too many subscriptions: at most {most} (proxy.limits.{setting})")
