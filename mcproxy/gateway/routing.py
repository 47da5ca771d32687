"""The end of the pipeline: each call to whoever answers it, by its row in the table of methods.

Calls for an upstream go there in its own names, and what comes back is put into the caller's. Decides nothing about
whether the caller may.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.upstreams import Upstream
from mcproxy.catalog.contents import fault
from mcproxy.catalog.naming import Space
from mcproxy.catalog.rewriting import Rewriter, kept_private, marked, respelled
from mcproxy.gateway.listings.routes import RouteTable
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.targets import NAMED, Resolver, Target, check_brought
from mcproxy.gateway.tasks.relay import TaskRelay
from mcproxy.gateway.translation import translated
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, ErrorObject
from mcproxy.protocol.methods import METHODS, Answerer, Kind, Method, Subject
from mcproxy.telemetry.metrics import Metrics


class Router:
    """A `Handler`. `answers` is the gateway's own, one for each row that names it."""

    def __init__(
        self,
        catalogue: Catalogue,
        resolver: Resolver,
        upstreams: Mapping[str, Upstream],
        answers: Mapping[str, Handler],
        tasks: TaskRelay,
        metrics: Metrics,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._catalogue = catalogue
        self._resolver = resolver
        self._upstreams = upstreams
        self._answers = answers
        self._tasks = tasks
        self._metrics = metrics
        self._clock = clock
        self._rewriters: dict[str, Rewriter] = {}
        self._routes = {row.name: route for row in METHODS.values() if (route := self._route(row)) is not None}

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        route = self._routes.get(call.row.name)
        if route is None:
            raise McpError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        return route(call)

    def _route(self, row: Method) -> Handler | None:
        """Who answers such calls; None where they do not go through the gateway."""
        if row.answerer is not Answerer.UPSTREAM:
            # What of an edge's own calls is no affair of a transport's, the edge asks the gateway.
            answer = self._answers.get(row.name)
            assert answer is not None or row.answerer is Answerer.EDGE
            return None if answer is None else partial(self._answer, row, answer)
        if row.subject is Subject.RESOURCE:
            return partial(self._read, row)
        kind = NAMED.get(row.subject)
        return partial(self._find, row) if kind is None else partial(self._call, kind, row)

    def _answer(self, row: Method, answer: Handler, call: Call) -> Awaitable[Outcome]:
        _check_offered(row, self._catalogue.routes(call.caller))
        return answer(call)

    def _call(self, kind: Kind, row: Method, call: Call) -> Awaitable[Outcome]:
        """What is listed is called at once; for what is not, an upstream may have to be asked."""
        target = self._resolver.named(kind, row, call, self._catalogue.routes(call.caller))
        return self._find(row, call) if target is None else self._relay(target, row, call)

    async def _find(self, row: Method, call: Call) -> Outcome:
        routes = self._catalogue.routes(call.caller)
        _check_offered(row, routes)
        return await self._relay(await self._resolver.target(row, call, routes), row, call)

    def _relay(self, target: Target, row: Method, call: Call) -> Awaitable[Outcome]:
        check_brought(target.space, call.caller)
        return self._tasks.relayed(target, row, call, self._exchange)

    async def _read(self, row: Method, call: Call) -> Outcome:
        routes = self._catalogue.routes(call.caller)
        _check_offered(row, routes)
        target = self._resolver.located(row, call, routes)
        check_brought(target.space, call.caller)
        outcome = await self._exchange(target, row, call)
        if isinstance(outcome, Complete):
            outcome = _checked(target.space, outcome)
            return outcome if self._catalogue.routes(call.caller).for_all else kept_private(outcome)
        assert row.subject_key is not None
        return respelled(outcome, target.params[row.subject_key], call.params[row.subject_key])

    def _exchange(self, target: Target, row: Method, call: Call) -> Awaitable[Outcome]:
        repeatable = target.route is not None and target.route.repeatable
        rewriter = self._rewriter(target.space)
        if rewriter is None:
            call = replace(call, params=target.params, repeatable=repeatable)
        else:
            call = translated(call, target.params, rewriter, repeatable=repeatable)
        return self._carry(target.space.upstream, row, call, rewriter)

    def _rewriter(self, space: Space) -> Rewriter | None:
        """None where there is nothing to put into other names."""
        if not space.slug:
            return None
        rewriter = self._rewriters.get(space.slug)
        if rewriter is None:
            rewriter = self._rewriters[space.slug] = Rewriter(space.expose_uri)
        return rewriter

    async def _carry(self, name: str, row: Method, call: Call, rewriter: Rewriter | None) -> Outcome:
        """To an upstream and back."""
        upstream = self._upstreams.get(name)
        if upstream is None:
            sentence = f"upstream {name!r} is no longer configured"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        began = self._clock()
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


def _check_offered(row: Method, routes: RouteTable) -> None:
    if row.capability is not None and row.capability not in routes.view.capabilities:
        raise McpError(METHOD_NOT_FOUND, f"Method not found: {row.name}: no server here offers {row.capability}")


def _checked(space: Space, outcome: Complete) -> Complete | Failed:
    """What was read; a failure where it is content that its upstream may not send."""
    findings = outcome.findings
    if findings is not None and findings.sound:
        return outcome
    found = fault(space.spec.content, outcome.result)
    if found is None:
        if findings is not None:
            findings.sound = True
        return outcome
    return Failed(ErrorObject(INTERNAL_ERROR, f"upstream {space.upstream!r} sent {found}"), Party.UPSTREAM)
