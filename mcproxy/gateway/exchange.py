"""One call to its upstream and back: in the upstream's names on the way there, in the caller's on the way back.

Decides nothing: whether the caller may make the call, and where it goes, was decided before (`resolving`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.upstreams import Upstream
from mcproxy.catalog.naming import Space
from mcproxy.catalog.rewriting import Rewriter, marked
from mcproxy.gateway.resolving.targets import Target
from mcproxy.gateway.translation import translated
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR
from mcproxy.telemetry.metrics import Metrics


class UpstreamExchange:
    def __init__(
        self, upstreams: Mapping[str, Upstream], metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._upstreams = upstreams
        self._metrics = metrics
        self._clock = clock
        self._rewriters: dict[str, Rewriter] = {}

    def __call__(self, target: Target, call: Call) -> Awaitable[Outcome]:
        """The outcome of `call` at `target`. Raises McpError where the upstream is no longer configured."""
        repeatable = target.route is not None and target.route.repeatable
        rewriter = self._rewriter(target.space)
        if rewriter is None:
            call = replace(call, params=target.params, repeatable=repeatable)
        else:
            call = translated(call, target.params, rewriter, repeatable=repeatable)
        return self._send(target.space.upstream, call, rewriter)

    def _rewriter(self, space: Space) -> Rewriter | None:
        """None where the upstream's names are the caller's."""
        if not space.slug:
            return None
        rewriter = self._rewriters.get(space.slug)
        if rewriter is None:
            rewriter = self._rewriters[space.slug] = Rewriter(space.expose_uri)
        return rewriter

    async def _send(self, name: str, call: Call, rewriter: Rewriter | None) -> Outcome:
        upstream = self._upstreams.get(name)
        if upstream is None:
            sentence = f"upstream {name!r} is no longer configured"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        row, began = call.row, self._clock()
        try:
            outcome = await upstream(call)
        finally:
            took = self._clock() - began
            if name in self._upstreams:  # or its series, which are gone, would come back (R52)
                self._metrics.upstream_duration.labels(name, row.name).observe(took, call.notes.trace)
            call.notes.upstream_seconds += took
        if row.may_fail:
            outcome = marked(outcome)
        return outcome if rewriter is None else rewriter.outcome(row.shape, outcome)
