"""How much each caller may still use: rates, calls at once, calls a day. Sans-I/O: the clocks come in.

A call is admitted by all limits that are about it or counts towards none. Each costs the same however many callers
there are, and what is kept of callers is bounded. Waits for nothing: what is too much is refused at once.
"""

from __future__ import annotations

import fnmatch
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from mcproxy.call import Principal
from mcproxy.settings.rates import Allowance, Limit, Rates

DAY: Final = 86400
ANY_MOMENT: Final = 1.0
"""Seconds to wait for a call to end: nobody knows when one does."""

Key = tuple[str, ...]
"""A limit's name, and what it counts apart."""


class Ask(msgspec.Struct, frozen=True):
    """Who wants to use what, in its upstream's own names."""

    principal: Principal
    upstream: str = ""
    """Empty where it is for no upstream in particular."""
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a call holds until it ends."""

    running: tuple[Key, ...] = ()


class Exceeded(Exception):
    """A limit has no room. `retry_after` is in seconds."""

    def __init__(self, limit: str, sentence: str, retry_after: float) -> None:
        super().__init__(sentence)
        self.limit = limit
        self.sentence = sentence
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    limit: Limit
    upstreams: re.Pattern[str]
    tools: re.Pattern[str] | None

    def concerns(self, upstream: str, tool: str | None) -> bool:
        per = self.limit.per
        if not self.upstreams.match(upstream) or ("upstream" in per and not upstream):
            return False
        if self.tools is None:
            return "tool" not in per or tool is not None
        return tool is not None and self.tools.match(tool) is not None

    def key(self, ask: Ask) -> Key:
        values = {"principal": ask.principal.name, "upstream": ask.upstream, "tool": f"{ask.upstream}\0{ask.tool}"}
        return (self.name, *(values[part] for part in self.limit.per))

    def allowance(self, roles: Collection[str]) -> Allowance:
        held = [allowance for role, allowance in self.limit.roles.items() if role in roles]
        return _most(held) if held else self.limit


@dataclass(frozen=True, slots=True)
class _Charge:
    """What one rule says of a call."""

    key: Key
    allowance: Allowance
    burst: int

    @property
    def limit(self) -> str:
        return self.key[0]


@dataclass(frozen=True, slots=True)
class _Bill:
    """What all rules say of every call by one caller to one tool."""

    charges: tuple[_Charge, ...]
    grant: Grant


_Account = tuple[str, frozenset[str], str, str | None]
"""The caller's name and roles, the upstream and the tool: what a bill hangs on."""


class Limits:
    """`now` is steady, in seconds; `utc` is the Unix time."""

    def __init__(self, rates: Rates) -> None:
        self._full_at: OrderedDict[Key, float] = OrderedDict()
        """When the bucket of a key will be full again, had it no more calls: all that a bucket is (as in GCRA)."""
        self._running: dict[Key, int] = {}
        self._today: OrderedDict[Key, int] = OrderedDict()
        self._day = 0
        self._rules: list[_Rule] = []
        self._max_keys = 0
        self.reconfigure(rates)

    def reconfigure(self, rates: Rates) -> None:
        """Goes by other numbers from now on. What was counted for a limit of the same name counts on."""
        self._max_keys = rates.max_keys
        self._rules = [_Rule(name, limit, *_patterns(limit)) for name, limit in rates.rules.items()]
        self._bills: OrderedDict[_Account, _Bill] = OrderedDict()
        """Those that were asked for last, at the end."""

    def __bool__(self) -> bool:
        return bool(self._rules)

    def admit(self, ask: Ask, now: float, utc: float) -> Grant:
        """Counts a call, which is over when its grant is released. Raises Exceeded, and then nothing was counted."""
        self._turn_to(int(utc // DAY))
        bill = self._bill(ask)
        for charge in bill.charges:
            self._check(charge, now, utc)
        for charge in bill.charges:
            self._take(charge, now)
        self._forget(now)
        return bill.grant

    def release(self, grant: Grant) -> None:
        for key in grant.running:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _bill(self, ask: Ask) -> _Bill:
        account = (ask.principal.name, ask.principal.roles, ask.upstream, ask.tool)
        bill = self._bills.get(account)
        if bill is None:
            bill = self._bills[account] = self._billed(ask)
            if len(self._bills) > self._max_keys:
                self._bills.popitem(last=False)
        self._bills.move_to_end(account)
        return bill

    def _billed(self, ask: Ask) -> _Bill:
        rules = [rule for rule in self._rules if rule.concerns(ask.upstream, ask.tool)]
        charges = tuple(_charge(rule.key(ask), rule.allowance(ask.principal.roles)) for rule in rules)
        return _Bill(charges, Grant(tuple(charge.key for charge in charges if charge.allowance.at_once is not None)))

    def _check(self, charge: _Charge, now: float, utc: float) -> None:
        allowed, key = charge.allowance, charge.key
        if allowed.at_once is not None and self._running.get(key, 0) >= allowed.at_once:
            raise Exceeded(charge.limit, f"at most {allowed.at_once} calls at once", ANY_MOMENT)
        if allowed.daily is not None and self._today.get(key, 0) >= allowed.daily:
            raise Exceeded(charge.limit, f"at most {allowed.daily} calls a day (UTC)", DAY - utc % DAY)
        if allowed.rate is not None and (wait := self._wait(key, allowed.rate, charge.burst, now)) > 0:
            raise Exceeded(charge.limit, f"at most {charge.burst} calls at a time, and {_said(allowed.rate)}", wait)

    def _wait(self, key: Key, rate: float, burst: int, now: float) -> float:
        """How long until the bucket holds a call."""
        return max(self._full_at.get(key, now), now) - now - (burst - 1) / rate

    def _take(self, charge: _Charge, now: float) -> None:
        allowed, key = charge.allowance, charge.key
        if allowed.at_once is not None:
            self._running[key] = self._running.get(key, 0) + 1
        if allowed.daily is not None:
            self._today[key] = self._today.get(key, 0) + 1
            self._today.move_to_end(key)
        if allowed.rate is not None:
            self._full_at[key] = max(self._full_at.get(key, now), now) + 1 / allowed.rate
            self._full_at.move_to_end(key)

    def _forget(self, now: float) -> None:
        """A bucket that is full says nothing. Of those that came last, no more are kept than may be."""
        while self._full_at and (len(self._full_at) > self._max_keys or next(iter(self._full_at.values())) <= now):
            self._full_at.popitem(last=False)
        while len(self._today) > self._max_keys:
            self._today.popitem(last=False)

    def _turn_to(self, day: int) -> None:
        if day != self._day:
            self._day = day
            self._today.clear()


def _charge(key: Key, allowed: Allowance) -> _Charge:
    return _Charge(key, allowed, 0 if allowed.rate is None else _burst(allowed))


def _burst(allowed: Allowance) -> int:
    assert allowed.rate is not None
    return allowed.burst or max(1, int(allowed.rate))


def _most(held: Iterable[Allowance]) -> Allowance:
    """The most of each; a limit that one of them does not have, there is none of."""
    numbers: dict[str, float | None] = {}
    held = list(held)
    for name in ("rate", "at_once", "daily"):
        values = [getattr(allowance, name) for allowance in held]
        numbers[name] = None if None in values else max(values)
    bursts = [_burst(allowance) for allowance in held if allowance.rate is not None]
    return Allowance.model_validate({**numbers, "burst": max(bursts) if numbers["rate"] is not None else None})


def _patterns(limit: Limit) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
    return _pattern(limit.upstreams), None if limit.tools is None else _pattern(limit.tools)


def _pattern(globs: Iterable[str]) -> re.Pattern[str]:
    """Of no globs: what matches nothing."""
    return re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)")


def _said(rate: float) -> str:
    for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3600)):
        if rate * seconds >= 1:
            return f"{rate * seconds:g} a {unit}"
    return f"{rate * DAY:g} a day"
