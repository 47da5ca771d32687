"""Keys for what is known of upstreams: a link, one list over a link, one resource over a link."""

from __future__ import annotations

from typing import NamedTuple

from mcproxy.call.identity import LinkOwner
from mcproxy.protocol.methods import Kind


class LinkKey(NamedTuple):
    """A connection to an upstream: the one that all callers share (`owner` is None), or one caller's own."""

    upstream: str
    owner: LinkOwner


class ListKey(NamedTuple):
    """One of the four lists that an upstream publishes over a link."""

    link: LinkKey
    kind: Kind


class ResourceKey(NamedTuple):
    """A resource over a link, by its upstream's own URI."""

    link: LinkKey
    uri: str
