"""Settings of the callers' limits (`access.limits`): rates, concurrent calls and daily quotas, by name."""

import re
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from mcproxy.settings.section import Glob, InvalidKey, Positive, Section

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PATTERN: Final = r"(\d+(?:\.\d+)?)\s*/\s*([smhd])"


def parse_rate(value: object) -> object:
    """`"600/m"` as 10, in calls per second; a number is returned unchanged. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = re.fullmatch(_PATTERN, value.strip() if isinstance(value, str) else "", re.ASCII)
    if match is None:
        raise ValueError('should be a number of calls per second, or a text such as "10/s", "600/m", "1000/h" or "1/d"')
    return float(match[1]) / _UNITS[match[2]]


Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    Field(gt=0),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "examples": [10, "10/s", "600/m"]}),
]
"""Calls per second."""


class Allowance(Section):
    """How much is allowed; what is not given is unlimited."""

    rate: Rate | None = None
    """Calls over time: `10/s`, `600/m`, `1000/h`."""
    burst: Positive | None = None
    """Calls that may come at once before `rate` applies. Default: the calls that `rate` allows in a second."""
    at_once: Positive | None = None
    """Calls at once, including those that wait for answers of their clients, and tasks until they end."""
    daily: Positive | None = None
    """Calls per day (UTC). Counted in memory, so that a restart starts at zero, unless replicas share their counts
    (`cluster`)."""

    @model_validator(mode="after")
    def _burst_needs_a_rate(self) -> Self:
        if self.burst is not None and self.rate is None:
            raise InvalidKey("needs a rate", "burst")
        return self


class RateLimit(Allowance):
    """One limit. Requests that are for no single upstream, such as those for lists, count where it covers all upstreams
    and names no tools."""

    per: tuple[Literal["principal", "upstream", "tool"], ...] = ()
    """What is counted separately; with several, each combination of them. If empty, all calls share one count."""
    upstreams: tuple[Glob, ...] = ("*",)
    """Globs of upstream names whose calls count."""
    tools: tuple[Glob, ...] | None = None
    """Globs of tools, in their upstreams' own names, whose calls count. If not given, every request counts."""
    exact: bool = False
    """With `cluster`: ask the shared count before each call, which costs a round trip to Redis. Otherwise each replica
    reserves a hundredth of the limit in advance, and all together may exceed it by as much for each replica."""
    fail: Literal["divide", "closed"] = "divide"
    """With `cluster`, while Redis is away: `divide` the limit by the live replicas, or refuse calls (`closed`)."""
    roles: dict[str, Allowance] = Field(default_factory=dict)
    """Other allowances by role. A caller with several of these roles gets the most generous value of each."""


class RateLimits(Section):
    """How much callers may use (`access.limits`)."""

    rules: dict[str, RateLimit] = Field(default_factory=dict)
    """Limits by name. A caller that exceeds one is told the name, and it is a label of metrics.

    Each has `per`, any of principal, upstream and tool: what is counted separately; `upstreams` and `tools`, globs of
    what it covers; `rate` such as 10/s or 600/m, with `burst`; `at_once`; `daily` (UTC); and in `roles` other values
    for callers with a role.
    """
    max_keys: Positive = 100_000
    """Counters kept. Beyond it, the caller with the most counters has one for all tools of an upstream until they are
    idle; a daily count that is used up is never dropped, and callers for whom there is no room are refused."""
