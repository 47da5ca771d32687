"""Who watches which resources, of which link, and under which spelling of the URI. Plain state: sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from mcproxy.call.clients import Listener
from mcproxy.catalog.uris import MAX_URI, canonical, wholes
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey


class Usage(msgspec.Struct):
    """What the clients of one principal watch together."""

    subscriptions: int = 0
    size: int = 0
    """Bytes of the URIs."""


class Watchers:
    """Who watches what, and as which URI. `is_client` says whose subscriptions are charged to their principal."""

    def __init__(self, is_client: Callable[[Listener], bool] = lambda listener: True) -> None:
        self._is_client = is_client
        self._charged: dict[Listener, str] = {}
        """The name of the principal of each client that watches anything."""
        self._usage: dict[str, Usage] = {}
        self._watched: dict[LinkKey, dict[str, dict[tuple[Listener, str], None]]] = {}
        self._held: dict[Listener, dict[tuple[ResourceKey, str], None]] = {}
        self._spelled: dict[ResourceKey, dict[ResourceKey, None]] = {}
        """What is watched, by its canonical spelling."""

    def __contains__(self, key: ResourceKey) -> bool:
        return key.uri in self._watched.get(key.link, {})

    def held(self, listener: Listener) -> list[tuple[ResourceKey, str]]:
        """What a listener watches, and as which URIs."""
        return list(self._held.get(listener, ()))

    def holds(self, key: ResourceKey, listener: Listener, spelling: str) -> bool:
        return (key, spelling) in self._held.get(listener, ())

    def usage(self, principal: str) -> Usage:
        """By the name of a principal."""
        return self._usage.get(principal) or Usage()

    def count(self, listener: Listener) -> int:
        """How many subscriptions a listener holds."""
        return len(self._held.get(listener, ()))

    def add(self, key: ResourceKey, listener: Listener, spelling: str) -> bool:
        """False where the listener watches the topic under that spelling already."""
        watchers_of = self._watched.setdefault(key.link, {}).setdefault(key.uri, {})
        if (listener, spelling) in watchers_of:
            return False
        watchers_of[listener, spelling] = None
        self._spelled.setdefault(_canonical(key), {})[key] = None
        self._held.setdefault(listener, {})[key, spelling] = None
        if listener in self._charged or self._is_client(listener):
            self._charged.setdefault(listener, listener.caller.principal.name)
            self._charge(listener, 1, spelling)
        return True

    def remove(self, key: ResourceKey, listener: Listener, spelling: str) -> bool:
        """Whether that was the last to watch the topic."""
        watchers_of = self._watched.get(key.link, {}).get(key.uri, {})
        if (listener, spelling) not in watchers_of:
            return False
        del watchers_of[listener, spelling]
        del self._held[listener][key, spelling]
        if listener in self._charged:
            self._charge(listener, -1, spelling)
        if not self._held[listener]:
            del self._held[listener]
            self._charged.pop(listener, None)
        if not watchers_of:
            self._forget(key)
        return not watchers_of

    def of(self, link: LinkKey) -> list[ResourceKey]:
        return [ResourceKey(link, uri) for uri in self._watched.get(link, {})]

    def watchers_of(self, key: ResourceKey) -> list[tuple[Listener, str]]:
        """Each listener to a topic with each spelling that it used."""
        return list(self._watched.get(key.link, {}).get(key.uri, ()))

    def everyone(self) -> list[tuple[Listener, ResourceKey, str]]:
        """Each listener with each topic, and as which URI it watches that."""
        return [(listener, key, uri) for listener, held in self._held.items() for key, uri in held]

    def all_of(self, upstream: str) -> Iterator[Listener]:
        """Who watches anything of an upstream, once for each subscription."""
        for link, keys in self._watched.items():
            if link.upstream == upstream:
                for watchers_of in keys.values():
                    yield from (listener for listener, _ in watchers_of)

    def meant(self, link: LinkKey, uri: str) -> list[ResourceKey]:
        """The topics that an upstream means by `uri`: that one, else its other spellings, else what it lies in.

        2025-11-25, schema, ResourceUpdatedNotification: it may be a sub-resource of what was subscribed to.
        """
        if ResourceKey(link, uri) in self:
            return [ResourceKey(link, uri)]
        # What is longer has a name that nobody watches under another spelling; what it lies in may be watched.
        spelling = canonical(uri[:MAX_URI])
        same = self._spelled.get(ResourceKey(link, spelling))
        if same is not None:
            return list(same)
        within = (self._spelled.get(ResourceKey(link, whole), ()) for whole in dict.fromkeys(wholes(spelling)))
        return [key for keys in within for key in keys]

    def _charge(self, listener: Listener, number: int, spelling: str) -> None:
        name = self._charged[listener]
        usage = self._usage.setdefault(name, Usage())
        usage.subscriptions += number
        usage.size += number * len(spelling)
        if not usage.subscriptions:
            del self._usage[name]

    def _forget(self, key: ResourceKey) -> None:
        """Lets go of a topic that nobody watches any more."""
        del self._watched[key.link][key.uri]
        if not self._watched[key.link]:
            del self._watched[key.link]
        same = self._spelled[_canonical(key)]
        del same[key]
        if not same:
            del self._spelled[_canonical(key)]


def _canonical(key: ResourceKey) -> ResourceKey:
    return ResourceKey(key.link, canonical(key.uri))
