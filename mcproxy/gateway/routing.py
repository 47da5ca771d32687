"""The end of the pipeline: each call to whoever answers it, by its row in the table of methods.

Calls for an upstream go there in its own names, and what comes back is put into the caller's. Decides nothing about
whether the caller may.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

from msgspec.structs import replace

from mcproxy.call import Call, Complete, Failed, Handler, McpError, Outcome, Party, Reason, Upstream
from mcproxy.catalog.contents import fault
from mcproxy.catalog.naming import Space
from mcproxy.catalog.rewriting import Rewriter, kept_private, marked, respelled
from mcproxy.gateway.catalogue import Catalogue
from mcproxy.gateway.leases import check_brought
from mcproxy.gateway.outlook import Outlook
from mcproxy.gateway.resolving import Resolver, Target
from mcproxy.gateway.tasks import Tasks
from mcproxy.gateway.translation import translated
from mcproxy.metrics import Metrics
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, ErrorObject
from mcproxy.protocol.methods import METHODS, Answerer, Method, Shape, Subject


class Router:
    """A `Handler`. `answers` is the gateway's own, one for each row that names it."""

    def __init__(
        self,
        catalogue: Catalogue,
        resolver: Resolver,
        upstreams: Mapping[str, Upstream],
        answers: Mapping[str, Handler],
        tasks: Tasks,
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

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        row = METHODS.get(call.method)
        if row is None:
            raise McpError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        outlook = self._catalogue.outlook(call.caller)
        _check_offered(row, outlook)
        match row.answerer:
            case Answerer.UPSTREAM:
                return self._forward(row, call, outlook)
            case Answerer.GATEWAY:
                return self._answers[row.name](call)
            case Answerer.EDGE if row.name in self._answers:
                # What of it is no affair of a transport's, the edge asks the gateway.
                return self._answers[row.name](call)
            case Answerer.EDGE:
                raise McpError(METHOD_NOT_FOUND, f"{call.method} is no call that goes through the gateway")
            case _:
                assert_never(row.answerer)

    async def _forward(self, row: Method, call: Call, outlook: Outlook) -> Outcome:
        target = await self._resolver.target(row, call, outlook)
        check_brought(target.space, call.caller)
        outcome = await self._tasks.relayed(target, row, call, self._exchange)
        if row.subject is Subject.RESOURCE and row.subject_key is not None:
            outcome = _checked(target.space, row, outcome)
            outcome = respelled(outcome, target.params[row.subject_key], call.params[row.subject_key])
        if row.hinted and not self._catalogue.same_for_all(call.caller.endpoint):
            outcome = kept_private(outcome)
        return outcome

    async def _exchange(self, target: Target, row: Method, call: Call) -> Outcome:
        if target.space.transparent:
            call = replace(call, params=target.params, repeatable=target.repeatable)
            return marked(row.shape, await self._send(target.space, row, call))
        rewriter = self._rewriter(target.space)
        call = translated(call, target.params, rewriter, repeatable=target.repeatable)
        outcome = await self._send(target.space, row, call)
        return rewriter.outcome(row.shape, marked(row.shape, outcome))

    def _rewriter(self, space: Space) -> Rewriter:
        rewriter = self._rewriters.get(space.slug)
        if rewriter is None:
            rewriter = self._rewriters[space.slug] = Rewriter(space.expose_uri)
        return rewriter

    async def _send(self, space: Space, row: Method, call: Call) -> Outcome:
        upstream = self._upstreams.get(space.upstream)
        if upstream is None:
            sentence = f"upstream {space.upstream!r} is no longer configured"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        began = self._clock()
        try:
            return await upstream(call)
        finally:
            took = self._clock() - began
            self._metrics.calls.over_upstream(space.upstream, row.name, took, call.notes.trace)
            call.notes.upstream_seconds += took


def _check_offered(row: Method, outlook: Outlook) -> None:
    if row.capability is not None and row.capability not in outlook.view.capabilities:
        raise McpError(METHOD_NOT_FOUND, f"Method not found: {row.name}: no server here offers {row.capability}")


def _checked(space: Space, row: Method, outcome: Outcome) -> Outcome:
    """`outcome`; a failure where it is content that its upstream may not send."""
    if row.shape is not Shape.CONTENTS or not isinstance(outcome, Complete):
        return outcome
    findings = outcome.findings
    if findings is not None and findings.sound:
        return outcome
    found = fault(space.spec.content, outcome.result)
    if found is None:
        if findings is not None:
            findings.sound = True
        return outcome
    return Failed(ErrorObject(INTERNAL_ERROR, f"upstream {space.upstream!r} sent {found}"), Party.UPSTREAM)
