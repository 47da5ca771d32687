"""Tells clients of updates of resources that they watch, in each client's own names.

Asks upstreams for nothing, and keeps nothing.
"""

from __future__ import annotations

from mcproxy.call.clients import Listener, ResourceUpdated
from mcproxy.call.upstreams import UpstreamChanged, UpstreamEvent
from mcproxy.catalog.naming import Layout
from mcproxy.catalog.uris import MAX_URI, canonical
from mcproxy.concurrency.clock import Clock
from mcproxy.gateway.component import Component
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey
from mcproxy.gateway.listings.listeners import Listeners, change_label
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.subscriptions.watchers import Watchers
from mcproxy.protocol.capabilities import reports_updates
from mcproxy.protocol.eras import HANDSHAKE_VERSIONS
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind
from mcproxy.telemetry.metrics import Metrics


class ResourceUpdates(Component):
    """Tells the listeners in `watchers`, each in its own view."""

    heeds = frozenset({ResourceUpdated})

    def __init__(
        self, catalogue: Catalogue, watchers: Watchers, listeners: Listeners, metrics: Metrics, now: Clock
    ) -> None:
        self._catalogue = catalogue
        self._watchers = watchers
        self._listeners = listeners
        self._metrics = metrics
        self._now = now

    def on_event(self, event: UpstreamEvent) -> None:
        """Tells watchers of an update that was reported over a link. Never blocks."""
        if isinstance(event, UpstreamChanged) and isinstance(event.change, ResourceUpdated):
            self._tell(LinkKey(event.upstream, event.owner), event.change)

    def _tell(self, link: LinkKey, update: ResourceUpdated) -> None:
        noticed = self._now()
        affected = self._watchers.affected(link, update.uri)
        for key in affected:
            self._tell_all(key, update)
        told = bool(affected)
        if not self.takes_subscriptions(link):
            watching = {listener for key in affected for listener, _ in self._watchers.watchers_of(key)}
            told = self._tell_readers(link, update, watching) or told
        if told:
            labels = link.upstream, change_label(update)
            self._metrics.notification_delay.labels(*labels).observe(self._now() - noticed)

    def _tell_all(self, key: ResourceKey, update: ResourceUpdated) -> None:
        """Tells all watchers of a resource; the policy is asked once for each endpoint and principal."""
        itself = _is_itself(key, update.uri)
        # By identity: all that is told apart so is kept for as long as this takes.
        heard: dict[tuple[str, int, str], ResourceUpdated | None] = {}
        layouts: dict[int, tuple[Layout, bool]] = {}
        changes: dict[str, ResourceUpdated] = {}
        told = 0
        for listener, client_uri in self._watchers.watchers_of(key):
            caller = listener.caller
            whose = caller.endpoint, id(caller.principal), client_uri
            if whose not in heard:
                layout = self._catalogue.layout(caller)
                if id(layout) not in layouts:
                    layouts[id(layout)] = layout, _may_hear(layout, key, update.uri)
                heard[whose] = None
                if layouts[id(layout)][1]:
                    uri = client_uri if itself else layout.space(key.link.upstream).expose_uri(update.uri)
                    heard[whose] = changes.get(uri) or changes.setdefault(uri, _update(uri, update.params))
            change = heard[whose]
            if change is not None:
                listener.signal(change)
                told += 1
        self._listeners.count(key.link.upstream, update, told)

    def _tell_readers(self, link: LinkKey, update: ResourceUpdated, watching: set[Listener]) -> bool:
        """Of a server that takes no subscriptions, tells the handshake clients that can read the resource.

        There they would hear of it without the gateway. Stateless clients hear of what they asked for alone.
        """
        readers = [
            listener
            for listener in self._listeners.served_by(link)
            if listener not in watching
            and listener.caller.version in HANDSHAKE_VERSIONS
            and self._catalogue.may_read(listener.caller, link.upstream, update.uri)
        ]
        for listener in readers:
            space = self._catalogue.layout(listener.caller).space(link.upstream)
            change = _update(space.expose_uri(update.uri), update.params)
            self._listeners.signal(listener, link.upstream, change)
        return bool(readers)

    def takes_subscriptions(self, link: LinkKey) -> bool:
        """False where the server is known to offer no subscriptions; it may report updates all the same."""
        identity = self._catalogue.known.identity(link)
        return identity is None or reports_updates(identity.capabilities)

    def tell_of_gap(self, key: ResourceKey) -> None:
        """Tells watchers of a resource that it may have changed unreported, except those who may not read it now."""
        for listener, client_uri in self._watchers.watchers_of(key):
            if self._catalogue.may_read(listener.caller, key.link.upstream, key.uri):
                self._listeners.signal(listener, key.link.upstream, _update(client_uri, {}))


def _is_itself(key: ResourceKey, uri: str) -> bool:
    """Whether watchers are told their own URI: for the very resource, or for a URI too long to pass on."""
    return uri == key.uri or len(uri) > MAX_URI or canonical(uri) == canonical(key.uri)


def _may_hear(layout: Layout, key: ResourceKey, uri: str) -> bool:
    """Whether a caller with `layout` may read both the watched resource and `uri`, which may be a part of it."""
    upstream = key.link.upstream
    if not layout.shows(upstream):
        return False
    space = layout.space(upstream)
    return all(space.shows(Kind.RESOURCES, each) for each in dict.fromkeys((key.uri, uri)))


def _update(uri: str, params: Params) -> ResourceUpdated:
    return ResourceUpdated(uri, {**params, "uri": raw(uri)})
