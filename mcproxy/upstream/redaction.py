"""Secrets of one upstream's settings, taken out of what it says to operators and clients (R44). By value alone."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.settings import Upstream

SHORTEST = 8
"""Shorter values are no secrets worth the name, and occur in ordinary text."""
_MASK = "[redacted]"


@dataclass(frozen=True, slots=True)
class Redaction:
    """Called with a text, returns it without the values of the upstream's `env` and `headers`."""

    secrets: tuple[str, ...]

    @classmethod
    def of(cls, spec: Upstream) -> Redaction:
        values = {word for value in (*spec.env.values(), *spec.headers.values()) for word in (value, *value.split())}
        return cls(tuple(sorted((value for value in values if len(value) >= SHORTEST), key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, _MASK)
        return text
