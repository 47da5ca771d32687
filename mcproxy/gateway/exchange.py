"""One call to its upstream and back: in the upstream's names on the way there, in the caller's on the way back.

What the upstream asks meanwhile is translated as well. Decides nothing: whether the caller may make the call, and where
it goes, was decided before (`resolving`).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Handler, InputRequired, Outcome
from mcproxy.call.clients import Change, Client, InputRequest, Listener
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import Upstream
from mcproxy.catalog.naming import GATEWAY, Space
from mcproxy.catalog.rewriting import Rewriter, marked
from mcproxy.gateway.resolving.targets import Target
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, METHOD_NOT_FOUND, Params
from mcproxy.protocol.methods import INPUT_CAPABILITIES, Subject
from mcproxy.telemetry.metrics import Metrics

AskForLevel = Callable[[Space, Caller], Awaitable[None]]
"""Asks an upstream for the log level that a stateless call wants, where another level is in force."""


class _SpaceRewriter(NamedTuple):
    """A rewriter, and the `Space.others` that it was made for: each reload makes another such object.

    The same namespace may then show other names.
    """

    others: frozenset[str]
    rewriter: Rewriter


class UpstreamExchange:
    """Sends calls in their upstreams' names, and returns outcomes in those of the caller's endpoint."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        metrics: Metrics,
        ask_for_level: AskForLevel,
        own: Mapping[Subject, Handler],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._upstreams = upstreams
        self._ask_for_level = ask_for_level
        self._own = own
        """The gateway's own answers about entries that it adds itself."""
        self._metrics = metrics
        self._clock = clock
        self._rewriters: dict[str, _SpaceRewriter] = {}
        """By namespace."""
        self._in_flight: dict[tuple[str, str], int] = {}
        """Calls in flight, by upstream and the principal's account."""

    def __call__(self, target: Target, call: Call) -> Awaitable[Outcome]:
        """The outcome of `call` at `target`.

        Raises McpError where the upstream is no longer configured, or one principal's share of it is in use.
        """
        repeatable = target.route is not None and target.route.repeatable
        rewriter = self._rewriter(target.space)
        if rewriter is None:
            call = replace(call, params=target.params, repeatable=repeatable)
        else:
            call = translated(call, target.params, rewriter, repeatable=repeatable, passes_all=target.space.passes_all)
        return self._send(target.space, call, rewriter)

    def _rewriter(self, space: Space) -> Rewriter | None:
        """The rewriter of results; None where the upstream's names are the caller's."""
        if not space.slug:
            return None
        kept = self._rewriters.get(space.slug)
        if kept is None or kept.others is not space.others:
            kept = self._rewriters[space.slug] = _SpaceRewriter(space.others, Rewriter(space.expose_uri))
        return kept.rewriter

    async def _send(self, space: Space, call: Call, rewriter: Rewriter | None) -> Outcome:
        name = space.upstream
        upstream = self._upstreams.get(name)
        if upstream is None and name == GATEWAY:
            return await self._answer(call)
        if upstream is None:
            sentence = f"upstream {name!r} is no longer configured"
            raise McpError(INTERNAL_ERROR, sentence, reason=Reason.UNAVAILABLE)
        if call.caller.log_level is not None and call.caller.session is None:
            await self._ask_for_level(space, call.caller)
        share = self._take_share(space, call.caller.principal)
        row, began = call.row, self._clock()
        try:
            outcome = await upstream(call)
        finally:
            took = self._clock() - began
            if name in self._upstreams:  # or its series, which are gone, would come back (R52)
                self._metrics.upstream_duration.labels(name, row.name).observe(took, call.notes.trace)
            call.notes.upstream_seconds += took
            if share is not None:
                self._give_back(share)
        if row.may_fail:
            outcome = marked(outcome)
        if rewriter is None:
            return outcome
        if type(outcome) is InputRequired and not space.passes_all:
            for request in outcome.requests.values():
                check_question(request)
        return rewriter.outcome(row.shape, outcome)

    async def _answer(self, call: Call) -> Outcome:
        own = None if call.row.subject is None else self._own.get(call.row.subject)
        if own is None:
            raise McpError(METHOD_NOT_FOUND, f"Method not found: {call.method}: the gateway does not answer it here")
        return await own(call)

    def _take_share(self, space: Space, principal: Principal) -> tuple[str, str] | None:
        """Counts a call of one caller.

        Raises McpError where the caller's share of the upstream is in flight already.

        Anonymous callers cannot be told apart, so they share the whole of `max_in_flight`.
        """
        if principal.is_several:
            return None
        key = space.upstream, principal.account
        running = self._in_flight.get(key, 0)
        if running >= space.share_of_principal:
            sentence = f"busy: {running} calls of yours are in flight at upstream {space.upstream!r}"
            raise McpError(INTERNAL_ERROR, f"{sentence} (max_in_flight_per_principal)", reason=Reason.UNAVAILABLE)
        self._in_flight[key] = running + 1
        return key

    def _give_back(self, share: tuple[str, str]) -> None:
        others = self._in_flight.pop(share) - 1
        if others:
            self._in_flight[share] = others


def check_question(request: InputRequest) -> None:
    """Raises McpError for a question of a method that the gateway does not know: it may not pass."""
    if request.method not in INPUT_CAPABILITIES:
        raise McpError(METHOD_NOT_FOUND, f"unknown method: {request.method}")


def translated(call: Call, params: Params, rewriter: Rewriter, *, repeatable: bool, passes_all: bool = False) -> Call:
    """`call` with `params` in the upstream's names, and with a client that translates to the caller's names."""
    listener = None if call.listener is None else TranslatedListener(call.listener, rewriter)
    client = TranslatedClient(call.client, rewriter, passes_all)
    return replace(call, params=params, client=client, listener=listener, repeatable=repeatable)


class TranslatedClient(msgspec.Struct, frozen=True):
    """Progress and log messages pass unchanged: the specification puts no URI in them."""

    client: Client
    rewriter: Rewriter
    passes_all: bool = False
    """As in `Space`."""

    def notify(self, method: str, params: Params) -> None:
        self.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        if not self.passes_all:
            check_question(request)
        return await self.client.ask(self.rewriter.request(request))


class TranslatedListener(msgspec.Struct, frozen=True):
    """Changes reach a listener through the gateway, translated there."""

    listener: Listener
    rewriter: Rewriter

    @property
    def caller(self) -> Caller:
        return self.listener.caller

    def set_log_level(self, level: str) -> None:
        self.listener.set_log_level(level)

    def signal(self, change: Change) -> None:
        self.listener.signal(change)

    async def ask(self, request: InputRequest) -> Raw:
        return await self.listener.ask(self.rewriter.request(request))
