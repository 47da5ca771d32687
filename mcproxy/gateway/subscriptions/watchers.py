"""Who watches which resources, of which link, and under which spelling of the URI. Plain state: sends nothing."""

from __future__ import annotations

from collections.abc import Iterator

from mcproxy.call.clients import Listener
from mcproxy.catalog.uris import MAX_URI, canonical, wholes
from mcproxy.gateway.listings.keys import LinkKey, ResourceKey


class Watchers:
    """Who watches what, and as which URI. Plain state: decides, and sends nothing."""

    def __init__(self) -> None:
        self._topics: dict[LinkKey, dict[str, dict[tuple[Listener, str], None]]] = {}
        self._held: dict[Listener, dict[tuple[ResourceKey, str], None]] = {}
        self._spelled: dict[ResourceKey, dict[ResourceKey, None]] = {}
        """What is watched, by its canonical spelling."""

    def __contains__(self, topic: ResourceKey) -> bool:
        return topic.uri in self._topics.get(topic.link, {})

    def held(self, listener: Listener) -> list[tuple[ResourceKey, str]]:
        """What a listener watches, and as which URIs."""
        return list(self._held.get(listener, ()))

    def add(self, topic: ResourceKey, listener: Listener, spelling: str) -> bool:
        """False where the listener watches the topic under that spelling already."""
        hearers = self._topics.setdefault(topic.link, {}).setdefault(topic.uri, {})
        if (listener, spelling) in hearers:
            return False
        hearers[listener, spelling] = None
        self._spelled.setdefault(_canonical(topic), {})[topic] = None
        self._held.setdefault(listener, {})[topic, spelling] = None
        return True

    def remove(self, topic: ResourceKey, listener: Listener, spelling: str) -> bool:
        """Whether that was the last to watch the topic."""
        hearers = self._topics.get(topic.link, {}).get(topic.uri, {})
        if (listener, spelling) not in hearers:
            return False
        del hearers[listener, spelling]
        del self._held[listener][topic, spelling]
        if not self._held[listener]:
            del self._held[listener]
        if not hearers:
            self._forget(topic)
        return not hearers

    def of(self, link: LinkKey) -> list[ResourceKey]:
        return [ResourceKey(link, uri) for uri in self._topics.get(link, {})]

    def hearers(self, topic: ResourceKey) -> list[tuple[Listener, str]]:
        """Each listener to a topic with each spelling that it used."""
        return list(self._topics.get(topic.link, {}).get(topic.uri, ()))

    def everybody(self) -> list[tuple[Listener, ResourceKey, str]]:
        """Each listener with each topic, and as which URI it watches that."""
        return [(listener, topic, uri) for listener, held in self._held.items() for topic, uri in held]

    def all_of(self, upstream: str) -> Iterator[Listener]:
        """Who watches anything of an upstream, once for each subscription."""
        for link, topics in self._topics.items():
            if link.upstream == upstream:
                for hearers in topics.values():
                    yield from (listener for listener, _ in hearers)

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
        return [topic for topics in within for topic in topics]

    def _forget(self, topic: ResourceKey) -> None:
        """Lets go of a topic that nobody watches any more."""
        del self._topics[topic.link][topic.uri]
        if not self._topics[topic.link]:
            del self._topics[topic.link]
        same = self._spelled[_canonical(topic)]
        del same[topic]
        if not same:
            del self._spelled[_canonical(topic)]


def _canonical(topic: ResourceKey) -> ResourceKey:
    return ResourceKey(topic.link, canonical(topic.uri))
