"""Deviations of one upstream from the specifications that were accepted: counted, logged once, shown to operators.

The functions that accept them stand together, by layer: `upstream.leniency` for HTTP, `upstream.child.leniency` for
lines, `upstream.answers` for messages, `upstream.oauth.leniency` for authorization servers.
"""

from __future__ import annotations

from typing import Final

import structlog

from mcproxy.telemetry.metrics import Metrics

log = structlog.get_logger()

MAX_KINDS: Final = 64
"""Kinds that one upstream is shown with; kinds are words in our code, so this is never reached by a peer."""


class Oddities:
    """The accepted deviations of one upstream. Without `metrics`, they are only remembered."""

    def __init__(self, upstream: str = "", metrics: Metrics | None = None) -> None:
        self._upstream = upstream
        self._metrics = metrics
        self._sentences: dict[str, str] = {}

    def note(self, kind: str, words: str) -> None:
        """Counts one; logs the first of its kind.

        `kind` is a fixed word of ours, as `token_type`: it labels the metric. `words` completes "the server ...", as
        "answers with text/plain; accepted", and holds no secret and no unbounded text of a peer.
        """
        if self._metrics is not None:
            self._metrics.upstream_oddities.labels(self._upstream, kind).inc()
        if kind not in self._sentences and len(self._sentences) < MAX_KINDS:
            self._sentences[kind] = words
            log.info(
                "an upstream deviates from the specification, and is accepted",
                upstream=self._upstream,
                kind=kind,
                what=words,
            )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The first sentence of each kind, oldest first."""
        return tuple(self._sentences.values())
