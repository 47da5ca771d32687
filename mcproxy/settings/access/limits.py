"""What can be said of how much callers may use: limits by name, each with what it counts apart and what it allows."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from mcproxy.settings.section import Glob, Positive, Section

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PATTERN: Final = r"(\d+(?:\.\d+)?)\s*/\s*([smhd])"


def parse_rate(value: object) -> object:
    """`"600/m"` as 10, in calls a second; what is no text is passed on. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_PATTERN, value.strip(), re.ASCII)
    if match is None:
        raise ValueError('should be a number of calls a second, or a text such as "10/s", "600/m", "1000/h" or "1/d"')
    return float(match[1]) / _UNITS[match[2]]


Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    Field(gt=0),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "examples": [10, "10/s", "600/m"]}),
]
"""Calls a second."""


class Allowance(Section):
    """How much is allowed. What is not given is not limited."""

    rate: Rate | None = None
    """Calls in the long run: `10/s`, `600/m`, `1000/h`."""
    burst: Positive | None = None
    """Calls that may come at once before `rate` counts. Where it is not given: as many as `rate` allows in a second."""
    at_once: Positive | None = None
    """Calls that run at the same time."""
    daily: Positive | None = None
    """Calls in a day (UTC). Counted in memory: a restart, and each replica, begins anew."""

    @model_validator(mode="after")
    def _burst_needs_a_rate(self) -> Allowance:
        if self.burst is not None and self.rate is None:
            raise ValueError("has a burst without a rate")
        return self


class RateLimit(Allowance):
    """What is limited, and to how much. Lists count as well, where the limit is on all upstreams and no tools."""

    per: tuple[Literal["principal", "upstream", "tool"], ...] = ()
    """What has a count of its own; with several, each combination of them. With none, all is counted together."""
    upstreams: tuple[Glob, ...] = ("*",)
    """Globs of the names of upstreams: only calls to them count."""
    tools: tuple[Glob, ...] | None = None
    """Globs of tools, in their upstreams' own names: only calls of them count. Not given: whatever is asked for."""
    roles: dict[str, Allowance] = Field(default_factory=dict)
    """What holders of a role are allowed instead. Who has several of these roles is allowed the most of each."""


class RateLimits(Section):
    """How much callers may use. A call counts towards every limit that is about it, and needs room in each."""

    rules: dict[str, RateLimit] = Field(default_factory=dict)
    """Limits by name. The name is told to who exceeds it, and is a label of metrics."""
    max_keys: Positive = 100_000
    """Counts that are kept of each sort; those of who did not call for longest give way."""
