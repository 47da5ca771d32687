"""The feature `limits`: refuses calls that exceed `access.limits`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial

from mcproxy.call.calls import Call, Handler, Outcome
from mcproxy.call.errors import McpError, Reason
from mcproxy.features.limits.limits import Admission, Exceeded, Limits
from mcproxy.features.limits.reservations import Ledger
from mcproxy.gateway.feature import Core, Feature, Place, Placed
from mcproxy.protocol.jsonrpc import LIMIT_EXCEEDED
from mcproxy.protocol.methods import Kind


class CallLimits(Feature):
    """Admits calls within the limits. Counts survive a reload. `calendar` returns a Unix time in seconds."""

    name = "limits"

    def __init__(self, core: Core, calendar: Callable[[], float] = time.time) -> None:
        self._rates = core.settings.access.limits
        self._limits = Limits(self._rates)
        self._subject_of = core.subject_of
        self._resumes = core.resumes
        self._metrics = core.metrics
        self._calendar = calendar

    def adopt(self, previous: CallLimits) -> None:
        """Takes over the counters. A limit that is still configured keeps its counts."""
        self._limits = previous._limits
        self._limits.reconfigure(self._rates)

    def share(self, ledger: Ledger) -> None:
        """Shares the counts with other processes; call it once, before the first call."""
        self._limits.share(ledger)

    def stages(self) -> Iterable[Placed]:
        if not self._limits:
            return []
        return [Placed(Place.ADMIT, "refuses calls that exceed access.limits", self.limited)]

    def limited(self, handler: Handler) -> Handler:
        """Refuses calls over the limit with LIMIT_EXCEEDED.

        A parked call counts until it is over, and a call that became a task counts until the task ends. A retry that
        resumes a parked call is not a new call. Even over HTTP the refusal is a JSON-RPC error rather than status 429:
        some official SDKs turn a 429 into a transport error and lose both `data` and `Retry-After`.
        """

        async def limiting(call: Call) -> Outcome:
            if call.row.unlimited:
                return await handler(call)
            grant = await self._admit(call)
            try:
                return await handler(call)
            finally:
                if call.notes.carried_on is None:
                    self._free(grant, call)
                else:
                    call.notes.carried_on.add_done_callback(lambda _: self._free(grant, call))

        return limiting

    async def _admit(self, call: Call) -> Admission:
        """Admits a call. Raises McpError if a limit is exhausted."""
        limits, now, utc = self._limits, time.monotonic, self._calendar
        subject = call.notes.subject or self._subject_of(call)
        tool = subject.own if subject.upstream and subject.kind is Kind.TOOLS else None
        caller, upstream, listed = call.caller.principal, subject.upstream, not subject.is_guess
        again = self._resumes(call)
        try:
            if limits.is_shared:
                return await limits.admit_shared(caller, upstream, tool, now, utc, listed=listed, resumes=again)
            return limits.admit(caller, upstream, tool, now(), utc(), listed=listed, resumes=again)
        except Exceeded as exceeded:
            self._metrics.limited.labels(upstream, exceeded.limit).inc()
            raise _too_much(exceeded) from exceeded

    def _free(self, grant: Admission, call: Call) -> None:
        """Releases what was admitted; if the call became a task, only when the task ends."""
        keep = call.notes.keep_place
        if keep is None or not grant.running:
            self._limits.release(grant)
        else:
            keep(partial(self._limits.release, grant))


def _too_much(exceeded: Exceeded) -> McpError:
    wait = math.ceil(exceeded.retry_after)
    sentence = f"Too many requests for this gateway: {exceeded.sentence} ({exceeded.limit}); try again in {wait} s"
    data = {"retryAfter": wait, "limit": exceeded.limit}
    return McpError(LIMIT_EXCEEDED, sentence, data, reason=Reason.RATE_LIMITED)
