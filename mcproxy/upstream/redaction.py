"""Secrets of one upstream's settings, taken out of what it says to operators and clients (R44). By value alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus, urlsplit

from mcproxy.settings import Upstream

SHORTEST = 8
"""Shorter values are no secrets worth the name, and occur in ordinary text."""
SHORTEST_SEGMENT = 16
"""The same of the parts of a URL's path, which are mostly ordinary words."""
_MASK = "[redacted]"


@dataclass(frozen=True, slots=True)
class Redaction:
    """Called with a text, returns it without the values of the upstream's `env`, `headers` and, in part, `url`."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, spec: Upstream) -> Redaction:
        given = (*spec.env.values(), *spec.headers.values())
        values = {word for value in given for word in (value, *value.split())} | set(_parts(spec.url or ""))
        return cls(tuple(sorted((value for value in values if len(value) >= SHORTEST), key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, _MASK)
        return text


def _parts(url: str) -> Iterator[str]:
    """What a URL may hold of secrets, as it is written there and decoded: user, password, query, long segments."""
    split = urlsplit(url)
    userinfo = split.netloc.rpartition("@")[0]
    for part in (*userinfo.split(":", 1), *(pair.partition("=")[2] for pair in split.query.split("&"))):
        yield from (part, unquote(part), unquote_plus(part))
    for segment in split.path.split("/"):
        if len(segment) >= SHORTEST_SEGMENT:
            yield from (segment, unquote(segment))
