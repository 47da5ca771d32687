"""The feature `limits`: admits calls that have servers do something as far as `access.limits` have room."""

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
    """Counts survive a reload. `calendar` gives a Unix time in seconds."""

    name = "limits"

    def __init__(self, core: Core, calendar: Callable[[], float] = time.time) -> None:
        self._rates = core.settings.access.limits
        self._limits = Limits(self._rates)
        self._subject_of = core.subject_of
        self._resumes = core.resumes
        self._metrics = core.metrics
        self._calendar = calendar

    def adopt(self, previous: CallLimits) -> None:
        """Keeps the counts; limits that are the same go on with theirs."""
        self._limits = previous._limits
        self._limits.reconfigure(self._rates)

    def share(self, ledger: Ledger) -> None:
        """Shares the counts with other processes; call it once, before the first call."""
        self._limits.share(ledger)

    def stages(self) -> Iterable[Placed]:
        if not self._limits:
            return []
        return [Placed(Place.ADMIT, "admits the call as far as access.limits have room", self.limited)]

    def limited(self, handler: Handler) -> Handler:
        """Refuses other calls with LIMIT_EXCEEDED.

        A parked call counts until it is over, and one that became a task until the task is; a retry that resumes it is
        not another call. Over HTTP too the refusal is a JSON-RPC error and not a status 429: some official SDKs turn a
        429 into a transport error and lose both `data` and `Retry-After`.
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
        """Raises McpError if there is no room."""
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
        """Ends what was admitted; if the call became a task, once that ends."""
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
