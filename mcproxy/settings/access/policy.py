"""Settings of the policy (`access.policy`): roles with allow and deny rules, and which callers have which role.

Rules use upstreams' own names. What any role of a caller denies is denied. `access.policy` applies them.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from mcproxy.protocol.methods import Kind
from mcproxy.settings.section import Glob, InvalidKey, Number, Positive, Section

EVERYONE: Final = "everyone"
"""The role that every caller has."""

MAX_PATTERN: Final = 1000
"""Characters of a regular expression."""

Scalar = bool | int | float | str

Effect = Literal["allow", "deny"]
EFFECTS: Final[tuple[Effect, ...]] = ("deny", "allow")
Approver = Literal["caller", "operator"]
"""Who has to approve a call before it is sent."""

RulePath = tuple[str, Effect, int]
"""The place of a rule: role, list, and index in the list."""


def _check_pattern(pattern: str) -> str:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"should be a regular expression of RE2: {_text(error)}") from error
    return pattern


def _text(error: Exception) -> str:
    (message, *_) = error.args or ("",)
    return message.decode() if isinstance(message, bytes) else str(message)


class Selection(Section):
    """A part of what the upstreams offer, by globs on their own names.

    If none of tools, resources and prompts is given, all of them are selected; otherwise only what is given.
    """

    upstreams: tuple[Glob, ...] = ("*",)
    """Globs of upstream names."""
    tools: tuple[Glob, ...] | None = None
    """Globs of tools."""
    resources: tuple[Glob, ...] | None = None
    """Globs of URIs: of resources, resource templates and the files of skills. Every reading of a URI is compared.

    Wildcards in the scheme or the authority match no `/`; a `*` that ends the glob matches all that follows.
    """
    prompts: tuple[Glob, ...] | None = None
    """Globs of prompts."""

    def globs(self, kind: Kind) -> tuple[Glob, ...]:
        """The globs for entries of a kind: none where only other kinds have globs, `*` where no kind has."""
        given = {
            Kind.TOOLS: self.tools,
            Kind.RESOURCES: self.resources,
            Kind.TEMPLATES: self.resources,
            Kind.PROMPTS: self.prompts,
            Kind.SKILLS: self.resources,
        }
        if all(globs is None for globs in given.values()):
            return ("*",)
        return given[kind] or ()


class Condition(Section):
    """What an argument must be; every part that is given must hold. Types count: 1 equals neither "1" nor true."""

    equals: Scalar | None = None
    """Exactly this value."""
    one_of: tuple[Scalar, ...] | None = None
    """One of these values."""
    matches: Annotated[str, Field(max_length=MAX_PATTERN), AfterValidator(_check_pattern)] | None = None
    """A text of at most 4096 characters that this regular expression (RE2) matches as a whole.

    In a rule that denies, `.` matches a line break too.
    """
    at_most: Number | None = None
    """A number that is no larger."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(value is None for _, value in self):
            raise ValueError("should have equals, one_of, matches or at_most")
        return self


class Rule(Selection):
    """What a role allows or denies. A rule with conditions covers tools alone.

    A tool's annotations are hints: without them it counts as writing and destructive (schema, ToolAnnotations).
    """

    read_only: bool | None = None
    """Only tools annotated `readOnlyHint`; if false, only the others."""
    destructive: bool | None = None
    """Only tools that may destroy (`destructiveHint`, and not `readOnlyHint`); if false, only the others."""
    arguments: dict[str, Condition] = Field(default_factory=dict)
    """Conditions on arguments, by name. A rule that denies also applies where the value cannot be judged.

    That is so of a value whose type none of the wanted ones has: servers take "true" for true and " 7 " for 7.
    """

    approve: Approver | None = None
    """Of a rule that allows: who has to approve each call. The caller, by a form of its client; or an operator, on the
    status page or by the webhook of `access.approvals`. Such a rule covers tools alone.

    In one role the first rule that allows a call counts; of several roles, the one that asks least.
    """

    @property
    def conditional(self) -> bool:
        """Whether it covers tools alone."""
        conditions = self.read_only, self.destructive, self.approve
        return any(condition is not None for condition in conditions) or bool(self.arguments)

    @model_validator(mode="after")
    def _conditions_are_for_tools(self) -> Self:
        if self.conditional and (self.resources is not None or self.prompts is not None):
            raise ValueError("has conditions, which cover tools alone: give resources and prompts a rule of their own")
        return self

    def globs(self, kind: Kind) -> tuple[Glob, ...]:
        """As `Selection.globs`; a rule with conditions covers tools alone."""
        return () if self.conditional and kind is not Kind.TOOLS else super().globs(kind)


class Role(Section):
    """What callers with the role may use, and what they may not."""

    allow: tuple[Rule, ...] = ()
    """Rules that allow."""
    deny: tuple[Rule, ...] = ()
    """Rules that deny; they override every `allow`."""

    @model_validator(mode="after")
    def _denials_need_no_approval(self) -> Self:
        for index, rule in enumerate(self.deny):
            if rule.approve is not None:
                raise InvalidKey("is for a rule that allows", "deny", index, "approve")
        return self

    def rules(self, effect: Effect) -> tuple[Rule, ...]:
        """The rules with that effect, in the order of the file."""
        return self.allow if effect == "allow" else self.deny


class PolicySettings(Section):
    """Who may use what (`access.policy`)."""

    default: Literal["allow", "deny"] | None = None
    """Decision where no rule applies: `allow` or `deny`. Default: `deny` if there are roles, else `allow`."""
    roles: dict[str, Role] = Field(default_factory=dict)
    """Roles by name, each with lists of rules under `allow` and `deny`. Every caller has the role `everyone`.

    A rule uses upstreams' own names: {upstreams: [files], tools: [get_*], resources: ['file:///srv/*'], prompts:
    ['*']}; with none of the last three it covers everything of its upstreams. For tools it may require annotations,
    {read_only: true, destructive: false}, and values of arguments: {tools: [query], arguments: {limit: {at_most: 100},
    table: {one_of: [a, b]}, sql: {matches: 'SELECT .*'}, mode: {equals: dry}}}.
    A rule that denies also applies to a value of another type than the wanted ones: servers take "7" for 7. A rule that
    allows may want a person to approve each call: {tools: ['rm_*'], approve: caller}, or `approve: operator`.

    Globs of URIs: `notes://public/*` is everything below, `https://*.example/*` every host in the domain, since a
    wildcard in the scheme or the host matches no `/`, and `notes:*` or `notes://*` everything of the scheme. A glob
    without `://` is compared with the whole URI as a text, as `*.md`. Of a URI that servers may read in several ways
    (encoded, with `..`, with backslashes, its host as a folder) each reading must be allowed, and none denied. A URI
    that climbs above its root with `..`, or that has more than 8192 characters, is denied to every caller.
    """
    principals: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Roles of callers by name, beside those that their credentials give; unauthenticated callers are `anonymous`."""
    max_views: Positive = 1000
    """Views of the catalogue that are kept, one for each set of roles at an endpoint; least recently used go first."""
    max_decisions: Positive = 10_000
    """Decisions that are kept; the least recently used go first."""

    _places: Mapping[RulePath, str] = PrivateAttr(default_factory=dict)

    @property
    def approves(self) -> bool:
        """Whether any call needs approval."""
        return any(rule.approve is not None for role in self.roles.values() for rule in role.allow)

    @property
    def allows_by_default(self) -> bool:
        """The decision where no rule applies, with its default filled in."""
        return self.default == "allow" if self.default is not None else not self.roles

    def place(self, rule: RulePath) -> str | None:
        """File and line of a rule; None where it came from no file."""
        return self._places.get(rule)

    def placed(self, places: Mapping[RulePath, str]) -> Self:
        """This policy with the file and line of its rules."""
        located = self.model_copy()
        located._places = dict(places)
        return located

    @model_validator(mode="after")
    def _roles_are_known(self) -> Self:
        for principal, roles in self.principals.items():
            for index, role in enumerate(roles):
                if role not in self.roles:
                    sentence = f"the role {role!r} is not defined: add it to access.policy.roles, or correct the name"
                    raise InvalidKey(sentence, "principals", principal, index)
        return self
