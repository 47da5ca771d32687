"""Which client watches which resource, over which link, and under which URI of its own. Plain state: sends nothing.

A client unsubscribes by the URI that it subscribed with. A reload may change the URI under which it can read the
resource; it is told of updates under that URI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from mcproxy.call.clients import Listener
from mcproxy.catalog.uris import MAX_URI, canonical, wholes
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey


class Usage(msgspec.Struct):
    """The subscriptions of all clients of one principal."""

    subscriptions: int = 0
    size: int = 0
    """Bytes of their URIs."""


class Watchers:
    """Subscriptions of listeners for which `is_client` is true count for their principal; the cache's own do not."""

    def __init__(self, is_client: Callable[[Listener], bool] = lambda listener: True) -> None:
        self._is_client = is_client
        self._charged: dict[Listener, str] = {}
        """The account of the principal of each client with a subscription."""
        self._usage: dict[str, Usage] = {}
        self._watched: dict[LinkKey, dict[str, dict[tuple[Listener, str], str]]] = {}
        """By link and upstream's URI: each listener, with the URI it subscribed with and the URI it is told."""
        self._held: dict[Listener, dict[tuple[ResourceKey, str], None]] = {}
        self._by_canonical: dict[ResourceKey, dict[ResourceKey, None]] = {}
        """The watched resources by their canonical URI."""

    def __contains__(self, key: ResourceKey) -> bool:
        return key.uri in self._watched.get(key.link, {})

    def held(self, listener: Listener) -> list[tuple[ResourceKey, str]]:
        """The resources that a listener watches, and the URIs that it subscribed with."""
        return list(self._held.get(listener, ()))

    def holds(self, key: ResourceKey, listener: Listener, uri: str) -> bool:
        """Whether a listener subscribed to a resource with that URI."""
        return (key, uri) in self._held.get(listener, ())

    def count(self, listener: Listener) -> int:
        """The number of a listener's subscriptions."""
        return len(self._held.get(listener, ()))

    def usage(self, account: str) -> Usage:
        """The subscriptions of a principal's clients, by its account."""
        return self._usage.get(account) or Usage()

    def told_uri(self, key: ResourceKey, listener: Listener, uri: str) -> str:
        """The URI told to a listener that subscribed with `uri`."""
        return self._watched[key.link][key.uri][listener, uri]

    def tell(self, key: ResourceKey, listener: Listener, uri: str, told_uri: str) -> None:
        """From now on tells a listener that subscribed with `uri` another URI."""
        self._watched[key.link][key.uri][listener, uri] = told_uri

    def add(self, key: ResourceKey, listener: Listener, uri: str) -> bool:
        """Adds a subscription. Returns False if the listener has it already."""
        watchers = self._watched.setdefault(key.link, {}).setdefault(key.uri, {})
        if (listener, uri) in watchers:
            return False
        watchers[listener, uri] = uri
        self._by_canonical.setdefault(_canonical(key), {})[key] = None
        self._held.setdefault(listener, {})[key, uri] = None
        if listener in self._charged or self._is_client(listener):
            self._charged.setdefault(listener, listener.caller.principal.account)
            self._charge(listener, 1, uri)
        return True

    def remove(self, key: ResourceKey, listener: Listener, uri: str) -> bool:
        """Removes a subscription. Returns whether it was the last to the resource."""
        watchers = self._watched.get(key.link, {}).get(key.uri, {})
        if (listener, uri) not in watchers:
            return False
        del watchers[listener, uri]
        del self._held[listener][key, uri]
        if listener in self._charged:
            self._charge(listener, -1, uri)
        if not self._held[listener]:
            del self._held[listener]
            self._charged.pop(listener, None)
        if not watchers:
            self._forget(key)
        return not watchers

    def watchers_of(self, key: ResourceKey) -> list[tuple[Listener, str]]:
        """Each listener to a resource, with the URI that it is told."""
        watches = self._watched.get(key.link, {}).get(key.uri, {})
        return [(listener, told_uri) for (listener, _), told_uri in watches.items()]

    def everyone(self) -> list[tuple[Listener, ResourceKey, str]]:
        """Each listener with each resource that it watches, and the URI that it subscribed with."""
        return [(listener, key, uri) for listener, held in self._held.items() for key, uri in held]

    def all_of(self, upstream: str) -> Iterator[Listener]:
        """The listeners to resources of an upstream, once for each subscription."""
        for link, resources in self._watched.items():
            if link.upstream == upstream:
                for watchers in resources.values():
                    yield from (listener for listener, _ in watchers)

    def affected(self, link: LinkKey, uri: str) -> list[ResourceKey]:
        """The watched resources that an upstream means by `uri`.

        That one, else its other spellings, else those that it is a part of.
        2025-11-25, schema, ResourceUpdatedNotification: it may be a sub-resource of what was subscribed to.
        """
        if ResourceKey(link, uri) in self:
            return [ResourceKey(link, uri)]
        # A longer URI is too long to be watched under another spelling; a resource that it is a part of may be watched.
        spelling = canonical(uri[:MAX_URI])
        same = self._by_canonical.get(ResourceKey(link, spelling))
        if same is not None:
            return list(same)
        within = (self._by_canonical.get(ResourceKey(link, whole), ()) for whole in dict.fromkeys(wholes(spelling)))
        return [key for keys in within for key in keys]

    def _charge(self, listener: Listener, number: int, uri: str) -> None:
        account = self._charged[listener]
        usage = self._usage.setdefault(account, Usage())
        usage.subscriptions += number
        usage.size += number * len(uri)
        if not usage.subscriptions:
            del self._usage[account]

    def _forget(self, key: ResourceKey) -> None:
        """Forgets a resource that no listener watches any more."""
        del self._watched[key.link][key.uri]
        if not self._watched[key.link]:
            del self._watched[key.link]
        same = self._by_canonical[_canonical(key)]
        del same[key]
        if not same:
            del self._by_canonical[_canonical(key)]


def _canonical(key: ResourceKey) -> ResourceKey:
    return ResourceKey(key.link, canonical(key.uri))
