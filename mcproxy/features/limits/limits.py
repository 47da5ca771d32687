"""Rate limits: calls per time, calls at once and calls a day, for each caller, upstream or tool. Sans-I/O.

A call counts only if all limits that apply to it admit it; otherwise it counts towards none. The cost of a call does
not depend on the number of callers, and what is kept about them is bounded. Excess calls are refused at once and never
wait.

With a ledger, several processes share the counts. Each process also counts by itself. While the ledger is down, each
process uses its own counts and its share of each limit.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, Literal, assert_never

import msgspec

from mcproxy.call.identity import Principal
from mcproxy.features.limits.counters import Count, CounterPlace, Counters
from mcproxy.features.limits.limit_rules import LimitRule, burst_of, rule_of
from mcproxy.features.limits.reservations import CounterKey, Ledger, Measure, Reservation
from mcproxy.settings.access.limits import Allowance, RateLimit, RateLimits

DAY: Final = 86400
ANY_MOMENT: Final = 1.0
"""The wait in seconds that a refusal suggests if too many calls are running at once."""

SWEEP: Final = 1.0
"""Seconds between two sweeps of idle counters."""


MAX_WAITS: Final = 8
"""How often a call waits for the ledger: once for each limit that applies, and again if another call was faster."""


class Exceeded(Exception):
    """A limit is exhausted. `retry_after` is in seconds.

    `lacking` is what this process has not reserved yet but may try to reserve; None if trying is known to be useless.
    """

    def __init__(self, limit: str, sentence: str, retry_after: float, lacking: Reservation | None = None) -> None:
        super().__init__(sentence)
        self.lacking = lacking
        self.limit = limit
        self.sentence = sentence
        self.retry_after = retry_after


class _AppliedLimit(msgspec.Struct):
    """One limit as applied to calls of one caller to one tool, with its counter."""

    place: CounterPlace
    count: Count
    at_once: int | None
    daily: int | None
    rate: float | None
    burst: int
    exact: bool
    fail: Literal["divide", "closed"]

    @property
    def limit(self) -> str:
        return self.place.key[0]

    @property
    def measures(self) -> Iterator[tuple[Measure, int]]:
        """The quantities that it limits, each with its limit."""
        if self.at_once is not None:
            yield Measure.AT_ONCE, self.at_once
        if self.daily is not None:
            yield Measure.DAILY, self.daily
        if self.rate is not None:
            yield Measure.RATE, self.burst

    def part(self, members: int) -> _AppliedLimit:
        """The share of the limit for one of `members` processes."""
        return msgspec.structs.replace(
            self,
            at_once=None if self.at_once is None else max(1, self.at_once // members),
            daily=None if self.daily is None else max(1, self.daily // members),
            rate=None if self.rate is None else self.rate / members,
            burst=max(1, self.burst // members),
        )


class Admission(msgspec.Struct, frozen=True):
    """The counters that a running call occupies until it is released."""

    running: tuple[_AppliedLimit, ...] = ()


_NOTHING: Final = Admission()


class _AppliedLimits(msgspec.Struct, frozen=True):
    """All limits that apply to calls by one caller to one tool."""

    limits: tuple[_AppliedLimit, ...]
    grant: Admission


_CallKey = tuple[str, frozenset[str], str, str | None]
"""The facts that decide which limits apply: the caller's name and roles, the upstream and the tool."""


class Limits:
    """`now` is monotonic, in seconds; `utc` is the Unix time."""

    def __init__(self, rates: RateLimits) -> None:
        self._ledger: Ledger | None = None
        self._counters = Counters(rates.max_keys)
        self._swept = -math.inf
        self._rules: list[LimitRule] = []
        self.reconfigure(rates)

    def reconfigure(self, rates: RateLimits) -> None:
        """Puts new limits into force. A limit with the same name keeps its counters."""
        self._counters.most = rates.max_keys
        self._rules = [rule_of(name, limit) for name, limit in rates.rules.items()]
        self._applied: OrderedDict[_CallKey, _AppliedLimits] = OrderedDict()
        for count in self._counters:
            for reservation in (count.reserved or {}).values():
                reservation.limit = 0  # the next call sets the present limit

    def __bool__(self) -> bool:
        return bool(self._rules)

    def share(self, ledger: Ledger) -> None:
        """Shares all counts with other processes. Use it once, before the first call."""
        self._ledger = ledger

    @property
    def is_shared(self) -> bool:
        """Whether several processes share the counts; if so, use `admit_shared`."""
        return self._ledger is not None

    async def admit_shared(
        self,
        caller: Principal,
        upstream: str,
        tool: str | None,
        clock: Callable[[], float],
        calendar: Callable[[], float],
        *,
        listed: bool = True,
        resumes: bool = False,
    ) -> Admission:
        """Like `admit`, but waits for the ledger if a limit is `exact` or the reservation is used up."""
        assert self._ledger is not None
        for _ in range(MAX_WAITS):
            try:
                return self.admit(caller, upstream, tool, clock(), calendar(), listed=listed, resumes=resumes)
            except Exceeded as exceeded:
                lacking = exceeded.lacking
                if lacking is None:
                    raise
            lacking.waiting += 1
            try:
                await self._ledger.reserve(lacking)
            finally:
                lacking.waiting -= 1
        return self.admit(caller, upstream, tool, clock(), calendar(), listed=listed, resumes=resumes)

    def admit(
        self,
        caller: Principal,
        upstream: str,
        tool: str | None,
        now: float,
        utc: float,
        *,
        listed: bool = True,
        resumes: bool = False,
    ) -> Admission:
        """Counts a call until its grant is released. Raises Exceeded, and counts nothing, if a limit is exhausted.

        With `resumes`, it continues a running call: it counts as another request, but not as another concurrent call.
        `upstream` is empty for a call to no particular upstream; `tool` is the upstream's own name for the tool.
        Tools that are not `listed` share one count for each upstream.
        """
        day, ledger = utc // DAY, self._ledger
        if listed:
            call_key = (caller.name, caller.roles, upstream, tool)
            found = self._applied.get(call_key) or self._remembered(call_key, caller)
        else:
            found = self._limits_of(caller, upstream, tool, listed=False)
        new = 0
        for applied in found.limits:
            if not applied.count.stored:
                applied.count = self._counters.find(applied.place)
                new += not applied.count.stored
            if ledger is None:
                _check(applied, now, utc, day, resumes)
            else:
                self._check_shared(ledger, applied, now, utc, resumes)
        if new and len(self._counters) + new > self._counters.most:
            self._make_room(found.limits[0].limit, new, now, utc)
        for applied in found.limits:
            self._counters.use(applied.count)
            if ledger is None:
                _take(applied, now, day, resumes)
            else:
                self._take_shared(ledger, applied, now, day, resumes)
        if now - self._swept >= SWEEP:
            self._sweep(now, day)
        return _NOTHING if resumes else found.grant

    def release(self, grant: Admission) -> None:
        """Releases what `admit` admitted. Call it once for each grant."""
        for applied in grant.running:
            count = applied.count
            count.running -= 1
            if self._ledger is not None:
                self._give_back(self._ledger, count)
            if self._counters.ended(count):
                self._end_reservations(count)

    def _check_shared(self, ledger: Ledger, applied: _AppliedLimit, now: float, utc: float, resumes: bool) -> None:
        """Raises Exceeded."""
        if ledger.is_away:
            if applied.fail == "closed":
                raise Exceeded(applied.limit, "the counts of other replicas are not available now", ANY_MOMENT)
            _check(applied.part(ledger.members), now, utc, utc // DAY, resumes)
            return
        _check(applied, now, utc, utc // DAY, resumes)
        for reservation, limit in self._reservations(applied, utc // DAY, resumes):
            if not reservation.has_room(limit, now):
                if not applied.count.stored:
                    if len(self._counters) >= self._counters.most:
                        self._make_room(applied.limit, 1, now, utc)
                    self._counters.use(applied.count)  # so that the caller's next call finds this reservation
                raise _exhausted(applied, reservation, limit, now, utc)

    def _take_shared(self, ledger: Ledger, applied: _AppliedLimit, now: float, day: float, resumes: bool) -> None:
        _take(applied.part(ledger.members) if ledger.is_away else applied, now, day, resumes)
        for reservation, _ in self._reservations(applied, day, resumes):
            reservation.used += 1
            if reservation.is_wanting:
                ledger.ask(reservation)

    def _give_back(self, ledger: Ledger, count: Count) -> None:
        """Returns one of the concurrent calls that this process has reserved."""
        reservation = (count.reserved or {}).get(Measure.AT_ONCE)
        if reservation is not None:
            reservation.used -= 1
            if reservation.is_wanting:
                ledger.ask(reservation)

    def _reservations(self, applied: _AppliedLimit, day: float, resumes: bool) -> list[tuple[Reservation, int]]:
        """This process's reservations for the counts that a call draws on, each with the caller's limit."""
        reserved = applied.count.reserved
        if reserved is None:
            reserved = applied.count.reserved = {}
        found: list[tuple[Reservation, int]] = []
        for measure, limit in applied.measures:
            if resumes and measure is Measure.AT_ONCE:
                continue
            window = day if measure is Measure.DAILY else 0
            reservation = reserved.get(measure)
            if reservation is None or reservation.window != window:
                reservation = reserved[measure] = self._renewed(reservation, applied.count.place.key, measure, window)
            if limit > reservation.limit:
                reservation.set_limit(limit, applied.rate or 0, exact=applied.exact)
            found.append((reservation, limit))
        return found

    def _renewed(self, earlier: Reservation | None, key: CounterKey, measure: Measure, window: float) -> Reservation:
        assert self._ledger is not None
        if earlier is not None:
            self._end_reservation(earlier)
        return Reservation(key, measure, self._ledger.name(), window)

    def _end_reservations(self, count: Count) -> None:
        reserved, count.reserved = count.reserved, None
        for reservation in (reserved or {}).values():
            self._end_reservation(reservation)

    def _end_reservation(self, reservation: Reservation) -> None:
        assert self._ledger is not None
        reservation.is_over = True
        self._ledger.ask(reservation)

    def _remembered(self, call_key: _CallKey, caller: Principal) -> _AppliedLimits:
        _, _, upstream, tool = call_key
        found = self._applied[call_key] = self._limits_of(caller, upstream, tool, listed=True)
        if len(self._applied) > self._counters.most:
            self._applied.popitem(last=False)
        return found

    def _limits_of(self, caller: Principal, upstream: str, tool: str | None, *, listed: bool) -> _AppliedLimits:
        rules = [rule for rule in self._rules if rule.concerns(upstream, tool, listed=listed)]
        limits = tuple(
            _applied_limit(rule.place(caller, upstream, tool, listed=listed), rule.allowance(caller.roles), rule.limit)
            for rule in rules
        )
        return _AppliedLimits(limits, Admission(tuple(applied for applied in limits if applied.at_once is not None)))

    def _make_room(self, limit: str, new: int, now: float, utc: float) -> None:
        """Drops counters until `new` more fit. Raises Exceeded if that would lose what was counted."""
        self._sweep(now, utc // DAY)
        remembered = self._ledger is not None and not self._ledger.is_away
        while len(self._counters) and len(self._counters) + new > self._counters.most:
            dropped = self._counters.drop_one(utc // DAY, remembered=remembered)
            if dropped is None:
                raise Exceeded(limit, "no more callers can be counted (`access.limits.max_keys`)", DAY - utc % DAY)
            if not dropped.running:
                self._end_reservations(dropped)

    def _sweep(self, now: float, day: float) -> None:
        """Drops idle counters."""
        self._swept = now
        for count in self._counters.sweep(now, day):
            self._end_reservations(count)


def _applied_limit(place: CounterPlace, allowed: Allowance, limit: RateLimit) -> _AppliedLimit:
    burst = 0 if allowed.rate is None else burst_of(allowed)
    return _AppliedLimit(
        place,
        count=Count(place),
        at_once=allowed.at_once,
        daily=allowed.daily,
        rate=allowed.rate,
        burst=burst,
        exact=limit.exact,
        fail=limit.fail,
    )


def _check(applied: _AppliedLimit, now: float, utc: float, day: float, resumes: bool) -> None:
    """Raises Exceeded."""
    count, at_once, daily, rate, burst = applied.count, applied.at_once, applied.daily, applied.rate, applied.burst
    if at_once is not None and count.running >= at_once and not resumes:
        raise _exceeded(applied, Measure.AT_ONCE, ANY_MOMENT)
    if daily is not None and count.today >= daily and count.day == day:
        raise _exceeded(applied, Measure.DAILY, DAY - utc % DAY)
    # The time until the bucket has room for a call.
    if rate is not None and (wait := count.full_at - now - (burst - 1) / rate) > 0:
        raise _exceeded(applied, Measure.RATE, wait)


def _exceeded(applied: _AppliedLimit, measure: Measure, wait: float) -> Exceeded:
    match measure:
        case Measure.AT_ONCE:
            return Exceeded(applied.limit, f"at most {applied.at_once} calls at once", wait)
        case Measure.DAILY:
            return Exceeded(applied.limit, f"at most {applied.daily} calls a day (UTC)", wait)
        case Measure.RATE:
            assert applied.rate is not None
            return Exceeded(applied.limit, f"at most {applied.burst} calls at a time, and {_said(applied.rate)}", wait)
        case _:
            assert_never(measure)


def _exhausted(applied: _AppliedLimit, reservation: Reservation, limit: int, now: float, utc: float) -> Exceeded:
    """The refusal for a process that has no reservation left."""
    match reservation.measure:
        case Measure.DAILY:
            wait = DAY - utc % DAY
        case Measure.RATE:
            assert applied.rate is not None
            wait = max(reservation.closed_until - now, 1 / applied.rate)
        case Measure.AT_ONCE:
            wait = ANY_MOMENT
        case _:
            assert_never(reservation.measure)
    exceeded = _exceeded(applied, reservation.measure, wait)
    exceeded.lacking = reservation if reservation.is_open(limit, now) else None
    return exceeded


def _take(applied: _AppliedLimit, now: float, day: float, resumes: bool) -> None:
    count, rate = applied.count, applied.rate
    if applied.at_once is not None and not resumes:
        count.running += 1
    if applied.daily is not None:
        count.today = count.today + 1 if count.day == day else 1
        count.day, count.spent = day, count.today >= applied.daily
    if rate is not None:
        count.full_at = (count.full_at if count.full_at > now else now) + 1 / rate


def _said(rate: float) -> str:
    for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3600)):
        if rate * seconds >= 1:
            return f"{rate * seconds:g} a {unit}"
    return f"{rate * DAY:g} a day"
