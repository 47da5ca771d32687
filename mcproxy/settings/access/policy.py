"""What can be said of who may use what: roles with rules, and who has which role. `access.policy` decides by it.

Rules speak of upstreams' own names. What a role denies is denied, whatever allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import re2
from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from mcproxy.protocol.methods import Kind
from mcproxy.settings.section import Glob, Positive, Section

EVERYONE: Final = "everyone"
"""The role that every caller has."""

MAX_PATTERN: Final = 1000
"""Characters of a pattern."""

Scalar = bool | int | float | str

_QUIET: Final = re2.Options()
_QUIET.log_errors = False

Effect = Literal["allow", "deny"]
EFFECTS: Final[tuple[Effect, ...]] = ("deny", "allow")

RulePath = tuple[str, Effect, int]
"""Where a rule stands: its role, which list, and its index there."""


def _check_pattern(pattern: str) -> str:
    try:
        re2.compile(pattern, _QUIET)
    except re2.error as error:
        raise ValueError(f"is no regular expression that RE2 knows: {_said(error)}") from error
    return pattern


def _said(error: Exception) -> str:
    (said, *_) = error.args or ("",)
    return said.decode() if isinstance(said, bytes) else str(said)


class Selection(Section):
    """A part of what is behind the gateway, by globs on upstreams' own names.

    Where neither tools, resources nor prompts are given it is all of them, else what is given alone.
    """

    upstreams: tuple[Glob, ...] = ("*",)
    """Globs of the names of upstreams."""
    tools: tuple[Glob, ...] | None = None
    """Globs of tools."""
    resources: tuple[Glob, ...] | None = None
    """Globs of URIs, of resources and templates. Every reading of a URI is held against them.

    Wildcards in the scheme or the authority match no `/`; a `*` that ends the glob matches all that follows.
    """
    prompts: tuple[Glob, ...] | None = None
    """Globs of prompts."""

    def globs(self, kind: Kind) -> tuple[Glob, ...]:
        given = {
            Kind.TOOLS: self.tools,
            Kind.RESOURCES: self.resources,
            Kind.TEMPLATES: self.resources,
            Kind.PROMPTS: self.prompts,
        }
        if all(globs is None for globs in given.values()):
            return ("*",)
        return given[kind] or ()


class Condition(Section):
    """What an argument must be; all that is given must hold. Types count: 1 is neither "1" nor true."""

    equals: Scalar | None = None
    """This very value."""
    one_of: tuple[Scalar, ...] | None = None
    """One of these values."""
    matches: Annotated[str, Field(max_length=MAX_PATTERN), AfterValidator(_check_pattern)] | None = None
    """A text of at most 4096 characters, the whole of which this regular expression (RE2) matches."""
    at_most: float | None = None
    """A number, and no larger one."""

    @model_validator(mode="after")
    def _says_something(self) -> Condition:
        if all(value is None for _, value in self):
            raise ValueError("should have equals, one_of, matches or at_most")
        return self


class Rule(Selection):
    """What a role allows or denies. With a condition on what tools are, or get, it is about tools alone.

    What a tool says of itself is a hint: where it says nothing it may write, and destroy (schema, ToolAnnotations).
    """

    read_only: bool | None = None
    """Only tools that are annotated `readOnlyHint`, or only those that are not."""
    destructive: bool | None = None
    """Only tools that may destroy (`destructiveHint`, and not `readOnlyHint`), or only those that do not."""
    arguments: dict[str, Condition] = Field(default_factory=dict)
    """Conditions on a tool's arguments, by name. A rule that denies also does where it cannot judge the value."""

    @property
    def conditional(self) -> bool:
        return self.read_only is not None or self.destructive is not None or bool(self.arguments)

    @model_validator(mode="after")
    def _conditions_are_for_tools(self) -> Rule:
        if self.conditional and (self.resources is not None or self.prompts is not None):
            raise ValueError("has conditions, which are for tools: give resources and prompts a rule of their own")
        return self

    def globs(self, kind: Kind) -> tuple[Glob, ...]:
        return () if self.conditional and kind is not Kind.TOOLS else super().globs(kind)


class Role(Section):
    """What its holders may use, and what they may not."""

    allow: tuple[Rule, ...] = ()
    """Rules that allow."""
    deny: tuple[Rule, ...] = ()
    """Rules that deny, whatever allows."""

    def rules(self, effect: Effect) -> tuple[Rule, ...]:
        return self.allow if effect == "allow" else self.deny


class PolicySettings(Section):
    """Who may use what. What is denied does not exist for who is denied it."""

    default: Literal["allow", "deny"] | None = None
    """What no rule speaks of. Where it is not given: `deny` if there are roles, else `allow`."""
    roles: dict[str, Role] = Field(default_factory=dict)
    """By name; the role `everyone` is everyone's."""
    principals: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The roles of callers by name, beside those that they come with; without authentication they are `anonymous`."""
    max_views: Positive = 1000
    """Views of the catalogue that are kept, one for each set of roles at an endpoint; the least used give way."""
    max_decisions: Positive = 10_000
    """Decisions that are kept; the least used give way."""

    _places: Mapping[RulePath, str] = PrivateAttr(default_factory=dict)

    @property
    def allows_by_default(self) -> bool:
        return self.default == "allow" if self.default is not None else not self.roles

    def place(self, rule: RulePath) -> str | None:
        """The file and line of a rule, where it came from a file."""
        return self._places.get(rule)

    def placed(self, places: Mapping[RulePath, str]) -> PolicySettings:
        """The same policy, which knows where its rules stand."""
        located = self.model_copy()
        located._places = dict(places)
        return located

    @model_validator(mode="after")
    def _roles_are_known(self) -> PolicySettings:
        for principal, roles in self.principals.items():
            for role in roles:
                if role not in self.roles:
                    raise ValueError(f"gives {principal!r} the role {role!r}, which is not among the roles")
        return self
