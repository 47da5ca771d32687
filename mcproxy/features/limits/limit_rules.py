"""Rules of rate limits: which calls a limit covers, which counter counts them, and what a caller is allowed.

Does not count: `limits` does.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable

import msgspec

from mcproxy.call.identity import Principal
from mcproxy.features.limits.counters import CounterPlace
from mcproxy.features.limits.reservations import CounterKey
from mcproxy.settings.access.limits import Allowance, RateLimit


class LimitRule(msgspec.Struct, frozen=True):
    """One limit of the settings, by its name."""

    name: str
    limit: RateLimit
    upstreams: re.Pattern[str]
    tools: re.Pattern[str] | None

    def concerns(self, upstream: str, tool: str | None, *, listed: bool = True) -> bool:
        """Whether the limit applies to a call: `upstream` is empty for a call to none, `tool` None for no tool.

        It applies to any tool that is not `listed`, even if no glob matches: the upstream may name the tool otherwise.
        """
        per = self.limit.per
        if not self.upstreams.match(upstream) or ("upstream" in per and not upstream):
            return False
        if self.tools is None:
            return "tool" not in per or tool is not None
        return tool is not None and (not listed or self.tools.match(tool) is not None)

    def place(self, caller: Principal, upstream: str, tool: str | None, *, listed: bool) -> CounterPlace:
        """The place of a call's counter: one for each combination of the values in `per`.

        Tools that are not `listed` count together for each upstream: anybody can make up names.
        """
        per = self.limit.per
        owner = caller.name if "principal" in per else f"upstream\0{upstream}"
        together = self._key(caller, upstream, upstream) if "tool" in per else None
        if together is not None and not listed:
            return CounterPlace(together, owner)
        return CounterPlace(self._key(caller, upstream, f"{upstream}\0{tool}"), owner, together)

    def _key(self, caller: Principal, upstream: str, tool: str) -> CounterKey:
        values = {"principal": caller.name, "upstream": upstream, "tool": tool}
        return (self.name, *(values[part] for part in self.limit.per))

    def allowance(self, roles: Collection[str]) -> Allowance:
        """The allowance of a caller with these roles: the most generous among the roles, else the general one."""
        held = [allowance for role, allowance in self.limit.roles.items() if role in roles]
        return _most(held) if held else self.limit


def rule_of(name: str, limit: RateLimit) -> LimitRule:
    """The rule for a limit in the settings, with compiled globs."""
    return LimitRule(name, limit, _pattern(limit.upstreams), None if limit.tools is None else _pattern(limit.tools))


def burst_of(allowed: Allowance) -> int:
    """The most calls in a burst, for an allowance with a rate: the configured burst, else one second's worth."""
    assert allowed.rate is not None
    return allowed.burst or max(1, int(allowed.rate))


def _most(held: Iterable[Allowance]) -> Allowance:
    """The most generous value per limit; a limit missing from any role is lifted."""
    numbers: dict[str, float | None] = {}
    held = list(held)
    for name in ("rate", "at_once", "daily"):
        values = [getattr(allowance, name) for allowance in held]
        numbers[name] = None if None in values else max(values)
    bursts = [burst_of(allowance) for allowance in held if allowance.rate is not None]
    return Allowance.model_validate({**numbers, "burst": max(bursts) if numbers["rate"] is not None else None})


def _pattern(globs: Iterable[str]) -> re.Pattern[str]:
    """A pattern for any of the globs; matches nothing if there are none."""
    return re.compile("|".join(map(fnmatch.translate, globs)) or r"(?!)")
