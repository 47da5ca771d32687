"""Rate limits: calls per time, calls at once and calls a day, for each caller, upstream or tool. Sans-I/O.

A call is admitted by all limits that are about it or counts towards none. Each costs the same however many callers
there are, and what is kept of callers is bounded. Waits for nothing: what is too much is refused at once.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from mcproxy.call.identity import Principal
from mcproxy.settings.access.limits import Allowance, RateLimit, RateLimits

DAY: Final = 86400
ANY_MOMENT: Final = 1.0
"""Seconds that a refusal for too many calls at once suggests to wait."""

SWEEP: Final = 1.0
"""Seconds between two sweeps of idle counters."""

CounterKey = tuple[str, ...]
"""A limit's name, and what it counts apart."""


class Exceeded(Exception):
    """A limit is exhausted. `retry_after` is in seconds."""

    def __init__(self, limit: str, sentence: str, retry_after: float) -> None:
        super().__init__(sentence)
        self.limit = limit
        self.sentence = sentence
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class _LimitRule:
    name: str
    limit: RateLimit
    upstreams: re.Pattern[str]
    tools: re.Pattern[str] | None

    def concerns(self, upstream: str, tool: str | None) -> bool:
        per = self.limit.per
        if not self.upstreams.match(upstream) or ("upstream" in per and not upstream):
            return False
        if self.tools is None:
            return "tool" not in per or tool is not None
        return tool is not None and self.tools.match(tool) is not None

    def key(self, caller: Principal, upstream: str, tool: str | None) -> CounterKey:
        values = {"principal": caller.name, "upstream": upstream, "tool": f"{upstream}\0{tool}"}
        return (self.name, *(values[part] for part in self.limit.per))

    def allowance(self, roles: Collection[str]) -> Allowance:
        held = [allowance for role, allowance in self.limit.roles.items() if role in roles]
        return _most(held) if held else self.limit


class _Count(msgspec.Struct):
    """The counter of one key."""

    kept: bool = False
    """Whether the next call of that key counts here."""
    running: int = 0
    day: float = 0
    """The number of the day, from 1970, that `today` is of."""
    today: int = 0
    full_at: float = -math.inf
    """When its bucket will be full again, had it no more calls: all that a bucket is (as in GCRA)."""

    def is_idle(self, now: float, day: float) -> bool:
        """Whether it equals a new counter."""
        return self.full_at <= now and not self.running and not (self.today and self.day == day)


class _Charge(msgspec.Struct):
    """One limit as it applies to calls by one caller to one tool, with its counter."""

    key: CounterKey
    count: _Count
    at_once: int | None
    daily: int | None
    rate: float | None
    burst: int

    @property
    def limit(self) -> str:
        return self.key[0]


class Admission(msgspec.Struct, frozen=True):
    """The counters that a running call occupies until it is released."""

    running: tuple[_Charge, ...] = ()


_NOTHING: Final = Admission()


class _Bill(msgspec.Struct, frozen=True):
    """All limits that apply to calls by one caller to one tool."""

    charges: tuple[_Charge, ...]
    grant: Admission


_Account = tuple[str, frozenset[str], str, str | None]
"""The caller's name and roles, the upstream and the tool: what a bill hangs on."""


class Limits:
    """`now` is steady, in seconds; `utc` is the Unix time."""

    def __init__(self, rates: RateLimits) -> None:
        self._counts: OrderedDict[CounterKey, _Count] = OrderedDict()
        """In the order of their last use."""
        self._apart: dict[CounterKey, _Count] = {}
        """Those that had to give way, and have calls that run."""
        self._swept = -math.inf
        self._rules: list[_LimitRule] = []
        self._max_keys = 0
        self.reconfigure(rates)

    def reconfigure(self, rates: RateLimits) -> None:
        """Applies other limits from now on. Counters of a limit of the same name are kept."""
        self._max_keys = rates.max_keys
        self._rules = [_LimitRule(name, limit, *_patterns(limit)) for name, limit in rates.rules.items()]
        self._bills: OrderedDict[_Account, _Bill] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._rules)

    def admit(
        self, caller: Principal, upstream: str, tool: str | None, now: float, utc: float, *, resumes: bool = False
    ) -> Admission:
        """Counts a call, which is over when its grant is released. Raises Exceeded, and then nothing was counted.

        With `resumes` it goes on with a call that runs already, and counts as another request, but not as another call.
        `upstream` is empty where it is for none in particular; `tool` is its upstream's own name of it.
        """
        day = utc // DAY
        account = (caller.name, caller.roles, upstream, tool)
        bill = self._bills.get(account) or self._billed(account, caller)
        for charge in bill.charges:
            if not charge.count.kept:
                charge.count = self._count(charge.key)
            _check(charge, now, utc, day, resumes)
        for charge in bill.charges:
            if charge.count.kept:
                self._counts.move_to_end(charge.key)
            else:
                self._keep(charge)
            _take(charge, now, day, resumes)
        if now - self._swept >= SWEEP or len(self._counts) > self._max_keys:
            self._sweep(now, day)
        return _NOTHING if resumes else bill.grant

    def release(self, grant: Admission) -> None:
        for charge in grant.running:
            count = charge.count
            count.running -= 1
            if not count.running and not count.kept:
                del self._apart[charge.key]

    def _billed(self, account: _Account, caller: Principal) -> _Bill:
        _, _, upstream, tool = account
        rules = [rule for rule in self._rules if rule.concerns(upstream, tool)]
        charges = tuple(_charge(rule.key(caller, upstream, tool), rule.allowance(caller.roles)) for rule in rules)
        bill = _Bill(charges, Admission(tuple(charge for charge in charges if charge.at_once is not None)))
        self._bills[account] = bill
        if len(self._bills) > self._max_keys:
            self._bills.popitem(last=False)
        return bill

    def _count(self, key: CounterKey) -> _Count:
        """The counter of a key. A new one is not kept yet: a refused call leaves nothing behind."""
        return self._counts.get(key) or self._apart.get(key) or _Count()

    def _keep(self, charge: _Charge) -> None:
        self._apart.pop(charge.key, None)
        self._counts[charge.key] = charge.count
        charge.count.kept = True

    def _sweep(self, now: float, day: float) -> None:
        """Drops idle counters, and the least recently used ones beyond the limit."""
        self._swept, counts = now, self._counts
        while counts and (len(counts) > self._max_keys or next(iter(counts.values())).is_idle(now, day)):
            key, count = counts.popitem(last=False)
            count.kept = False
            if count.running:
                self._apart[key] = count


def _charge(key: CounterKey, allowed: Allowance) -> _Charge:
    burst = 0 if allowed.rate is None else _burst(allowed)
    return _Charge(key, _Count(), allowed.at_once, allowed.daily, allowed.rate, burst)


def _check(charge: _Charge, now: float, utc: float, day: float, resumes: bool) -> None:
    """Raises Exceeded."""
    count, at_once, daily, rate, burst = charge.count, charge.at_once, charge.daily, charge.rate, charge.burst
    if at_once is not None and count.running >= at_once and not resumes:
        raise Exceeded(charge.limit, f"at most {at_once} calls at once", ANY_MOMENT)
    if daily is not None and count.today >= daily and count.day == day:
        raise Exceeded(charge.limit, f"at most {daily} calls a day (UTC)", DAY - utc % DAY)
    # How long until the bucket holds a call.
    if rate is not None and (wait := count.full_at - now - (burst - 1) / rate) > 0:
        raise Exceeded(charge.limit, f"at most {burst} calls at a time, and {_said(rate)}", wait)


def _take(charge: _Charge, now: float, day: float, resumes: bool) -> None:
    count, rate = charge.count, charge.rate
    if charge.at_once is not None and not resumes:
        count.running += 1
    if charge.daily is not None:
        count.today = count.today + 1 if count.day == day else 1
        count.day = day
    if rate is not None:
        count.full_at = (count.full_at if count.full_at > now else now) + 1 / rate


def _burst(allowed: Allowance) -> int:
    assert allowed.rate is not None
    return allowed.burst or max(1, int(allowed.rate))


def _most(held: Iterable[Allowance]) -> Allowance:
    """The most generous value per limit; a limit missing from any role is lifted."""
    numbers: dict[str, float | None] = {}
    held = list(held)
    for name in ("rate", "at_once", "daily"):
        values = [getattr(allowance, name) for allowance in held]
        numbers[name] = None if None in values else max(values)
    bursts = [_burst(allowance) for allowance in held if allowance.rate is not None]
    return Allowance.model_validate({**numbers, "burst": max(bursts) if numbers["rate"] is not None else None})


def _patterns(limit: RateLimit) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
    return _pattern(limit.upstreams), None if limit.tools is None else _pattern(limit.tools)


def _pattern(globs: Iterable[str]) -> re.Pattern[str]:
    """Of no globs: what matches nothing."""
    return re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)")


def _said(rate: float) -> str:
    for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3600)):
        if rate * seconds >= 1:
            return f"{rate * seconds:g} a {unit}"
    return f"{rate * DAY:g} a day"
