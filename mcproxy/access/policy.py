"""Decide which entries a caller may use: from roles and rules to a `Decision` that names its rule. Sans-I/O.

One decision covers listing, calling, reading, completing, subscribing and notifications. Rules are compiled once and
decisions are cached, so that a decision does not cost more where there are more rules.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

import msgspec
from cachetools import LRUCache
from msgspec import Raw

from mcproxy.call.calls import Decision, RuleName
from mcproxy.call.identity import Principal
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import URI_KINDS, Kind
from mcproxy.settings.access import policy as settings
from mcproxy.settings.access.policy import EFFECTS, EVERYONE, Approver

MAX_TEXT: Final = 4096
"""Characters of an argument that patterns are matched against."""
MAX_NAME: Final = 2048
"""Characters of a name, above which its decision is not cached."""

RoleSet = frozenset[str]
"""The roles of a caller that any rule mentions: callers with equal sets may use the same entries."""

Readings = Callable[[str], Collection[str]]
"""All readings of a URI by servers; empty if these cannot be determined."""


class PolicyItem(msgspec.Struct, frozen=True):
    """An entry that a caller wants to use, in its upstream's own names."""

    upstream: str
    kind: Kind
    name: str
    read_only: bool = False
    """A tool's own annotation."""
    destructive: bool = True


class Holds(Enum):
    """Whether a condition is met."""

    YES = "yes"
    NO = "no"
    UNCLEAR = "unclear"
    """The value cannot be judged."""


# Looking a member up in its enum costs more than most tests do.
_YES, _NO, _UNCLEAR = Holds

_NUMBERS: Final = (int, float)
_CONTAINERS: Final = (b"{", b"[")
_NO_SCALAR: Final = object()
_STRICTNESS: Final[tuple[Approver | None, ...]] = (None, "caller", "operator")

Test = Callable[[object], Holds]
Match = Callable[[str], object]
"""Returns whether one of a rule's globs matches a name or a reading of a URI."""
Matcher = Callable[[tuple[str, ...]], Match]


class _PolicyRule(msgspec.Struct, frozen=True):
    name: RuleName
    upstreams: Match
    globs: Mapping[Kind, tuple[str, ...]]
    matches: Mapping[Kind, Match]
    read_only: bool | None
    destructive: bool | None
    tests: Mapping[str, Test]
    approve: Approver | None = None

    def covers(self, kind: Kind) -> bool:
        """Whether the rule applies to every entry of a kind, unconditionally."""
        conditional = self.read_only is not None or self.destructive is not None or self.tests
        return "*" in self.globs[kind] and not conditional

    def concerns(self, item: PolicyItem, spelling: str) -> bool:
        if self.read_only not in (None, item.read_only) or self.destructive not in (None, item.destructive):
            return False
        return self.matches[item.kind](spelling) is not None

    def allows(self, arguments: _Arguments) -> bool:
        return all(arguments.meet(test, name) is _YES for name, test in self.tests.items())

    def denies(self, arguments: _Arguments) -> bool:
        """True where the conditions hold, or cannot be judged."""
        return all(arguments.meet(test, name) is not _NO for name, test in self.tests.items())


class _Arguments:
    """The arguments of a call. Each is parsed once, however many rules have conditions on it."""

    def __init__(self, given: Params) -> None:
        self._given = given
        self._read: dict[str, object] = {}

    def meet(self, test: Test, name: str) -> Holds:
        """A missing argument meets no condition."""
        if name not in self._given:
            return _NO
        if name not in self._read:
            self._read[name] = _scalar(self._given[name])
        value = self._read[name]
        return _UNCLEAR if value is _NO_SCALAR else test(value)


def _scalar(value: Raw) -> object:
    """A string, number, boolean or null; `_NO_SCALAR` for other values, which no condition can judge."""
    # Lists and objects are not parsed: they may be very long.
    if bytes(memoryview(value)[:1]) in _CONTAINERS:
        return _NO_SCALAR
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return _NO_SCALAR


class Verdict(msgspec.Struct, frozen=True):
    """The rules that apply to an item; rules with conditions on arguments are still open."""

    deny: tuple[_PolicyRule, ...]
    allow: tuple[_PolicyRule, ...]
    default: Decision

    def given(self, arguments: Params) -> Decision:
        """The decision for these arguments."""
        read = _Arguments(arguments)
        for rule in self.deny:
            if rule.denies(read):
                return Decision(False, rule.name)
        return self._allowed(lambda rule: rule.allows(read))

    def at_best(self) -> Decision:
        """The decision for the most favourable arguments."""
        for rule in self.deny:
            if not rule.tests:
                return Decision(False, rule.name)
        return self._allowed(lambda rule: True)

    def may_need_approval(self) -> bool:
        """Whether some arguments need a person's approval."""
        return any(rule.approve is not None for rule in self.allow)

    def _allowed(self, allows: Callable[[_PolicyRule], bool]) -> Decision:
        """By the first rule of each role that allows; among roles, the one that demands the least approval."""
        first: dict[str, _PolicyRule] = {}
        for rule in self.allow:
            if rule.name.role not in first and allows(rule):
                if rule.approve is None:
                    return Decision(True, rule.name)
                first[rule.name.role] = rule
        if not first:
            return self.default
        rule = min(first.values(), key=lambda rule: _STRICTNESS.index(rule.approve))
        return Decision(True, rule.name, rule.approve)

    def unconditional(self) -> Decision | None:
        """The decision, if it is the same for all arguments; else None."""
        hangs_on_arguments = any(rule.tests for rule in (*self.deny, *self.allow))
        return None if hangs_on_arguments else self.at_best()


_UNREADABLE: Final = Verdict((), (), Decision(False))
"""The verdict on a URI that cannot be read unambiguously."""


class Policy:
    """Decides by the rules of the configuration.

    A caller may use a URI only if it may use each of its `readings`; `matcher` makes the test of a rule's globs for
    them. `others` are roles that no rule names but something else uses: callers who differ in one of them are told
    apart too.
    """

    def __init__(
        self, policy: settings.PolicySettings, *, readings: Readings, matcher: Matcher, others: Collection[str] = ()
    ) -> None:
        self._default = Decision(policy.allows_by_default)
        self._assigned = policy.principals
        self._readings = readings
        self._rules = [rule for role in policy.roles for rule in _compiled(policy, role, matcher)]
        self.open: Final = self._default.allowed and all(rule.name.effect != "deny" for rule in self._rules)
        """Whether every caller may use everything."""
        self.refers_calls: Final = any(rule.approve == "operator" for rule in self._rules)
        """Whether any call needs an operator's approval."""
        self._roles = frozenset({*policy.roles, *others})
        self._everyone: RoleSet = frozenset({EVERYONE}) & self._roles
        self._about: LRUCache[tuple[RoleSet, str], tuple[_PolicyRule, ...]] = LRUCache(policy.max_views)
        self._verdicts: LRUCache[tuple[RoleSet, PolicyItem], Verdict] = LRUCache(policy.max_decisions)

    def roles_of(self, principal: Principal) -> RoleSet:
        """The roles of a principal that any rule mentions."""
        if not self._roles:
            return self._everyone
        held = self._roles & principal.roles
        assigned = self._assigned.get(principal.name)
        if assigned is not None:
            held |= self._roles.intersection(assigned)
        return self._everyone | held if held else self._everyone

    def reaches(self, roles: RoleSet, upstream: str) -> bool:
        """Whether callers with these roles may use anything of an upstream, whatever entries it lists."""
        rules = self._rules_about(roles, upstream)
        return any(self._reaches(rules, kind) for kind in Kind)

    def allows_all(self, roles: RoleSet, upstream: str) -> bool:
        """Whether callers with these roles may use everything that an upstream has or may get, without approval."""
        rules = self._rules_about(roles, upstream)
        if any(rule.name.effect == "deny" and any(rule.globs.values()) for rule in rules):
            return False
        allowing = [rule for rule in rules if rule.name.effect == "allow" and rule.approve is None]
        if any(rule.approve is not None for rule in rules):
            return False
        return all(self._default.allowed or any(rule.covers(kind) for rule in allowing) for kind in Kind)

    def decide_listing(self, roles: RoleSet, item: PolicyItem) -> Decision:
        """Whether an item may be used with some arguments: then it is listed."""
        return self.verdict(roles, item).at_best()

    def verdict(self, roles: RoleSet, item: PolicyItem) -> Verdict:
        """The rules that apply to an item, for all arguments. Cached."""
        key = (roles, item)
        kept = self._verdicts.get(key)
        if kept is None:
            kept = self._judged(roles, item)
            if len(item.name) <= MAX_NAME:
                self._verdicts[key] = kept
        return kept

    def decide(self, roles: RoleSet, item: PolicyItem, arguments: Params) -> Decision:
        """Whether holders of these roles may use an item with these arguments."""
        return self.verdict(roles, item).given(arguments)

    def _reaches(self, rules: Iterable[_PolicyRule], kind: Kind) -> bool:
        rules = [rule for rule in rules if rule.globs[kind]]
        if any(rule.name.effect == "deny" and rule.covers(kind) for rule in rules):
            return False
        return self._default.allowed or any(rule.name.effect == "allow" for rule in rules)

    def _rules_about(self, roles: RoleSet, upstream: str) -> tuple[_PolicyRule, ...]:
        key = (roles, upstream)
        if key not in self._about:
            held = (rule for rule in self._rules if rule.name.role in roles)
            self._about[key] = tuple(rule for rule in held if rule.upstreams(upstream) is not None)
        return self._about[key]

    def _judged(self, roles: RoleSet, item: PolicyItem) -> Verdict:
        rules = self._rules_about(roles, item.upstream)
        spellings = self._readings(item.name) if item.kind in URI_KINDS else (item.name,)
        verdicts = [self._read(rules, item, spelling) for spelling in spellings]
        if not verdicts:
            return _UNREADABLE
        return next((verdict for verdict in verdicts if not verdict.at_best().allowed), verdicts[0])

    def _read(self, rules: Iterable[_PolicyRule], item: PolicyItem, spelling: str) -> Verdict:
        concerned = [rule for rule in rules if rule.concerns(item, spelling)]
        deny = tuple(rule for rule in concerned if rule.name.effect == "deny")
        allow = tuple(rule for rule in concerned if rule.name.effect == "allow")
        return Verdict(deny, allow, self._default)


def _compiled(policy: settings.PolicySettings, role: str, matcher: Matcher) -> Iterator[_PolicyRule]:
    for effect in EFFECTS:
        for index, rule in enumerate(policy.roles[role].rules(effect)):
            name = RuleName(role, effect, index + 1, policy.place((role, effect, index)))
            globs = {kind: rule.globs(kind) for kind in Kind}
            yield _PolicyRule(
                name,
                upstreams=_match(rule.upstreams),
                globs=globs,
                matches={kind: (matcher if kind in URI_KINDS else _match)(globs[kind]) for kind in Kind},
                read_only=rule.read_only,
                destructive=rule.destructive,
                tests={
                    name: _compile(condition, denies=effect == "deny") for name, condition in rule.arguments.items()
                },
                approve=rule.approve,
            )


def _match(globs: tuple[str, ...]) -> Match:
    """A test whether one of `globs` matches a text. It is fast for any text: `fnmatch` nests no repetitions."""
    if not globs:
        return lambda text: None
    return re.compile("|".join(map(fnmatch.translate, globs))).match


def _compile(condition: settings.Condition, *, denies: bool) -> Test:
    """One test for all parts of a condition, of a rule that `denies` or of one that allows."""
    tests = list(_tests(condition, denies=denies))
    if len(tests) == 1:
        return tests[0]

    def test(value: object) -> Holds:
        results = [each(value) for each in tests]
        if _NO in results:
            return _NO
        return _UNCLEAR if _UNCLEAR in results else _YES

    return test


def _tests(condition: settings.Condition, *, denies: bool) -> Iterator[Test]:
    if condition.equals is not None:
        yield _one_of([condition.equals])
    if condition.one_of is not None:
        yield _one_of(condition.one_of)
    if condition.matches is not None:
        # A line break must not lead past a denial: there `.` matches it too.
        yield _matching(condition.matches, across_lines=denies)
    if condition.at_most is not None:
        yield _at_most(condition.at_most)


def _one_of(values: Iterable[settings.Scalar]) -> Test:
    wanted = {(_json_type(value), value) for value in values}
    types = {type for type, _ in wanted}
    rounded = {_rounded(value) for type, value in wanted if type is float}

    def test(value: object) -> Holds:
        # Servers coerce: "true", 1 and " 7 " may be true and 7 to them. Other types cannot be judged.
        type = _json_type(value)
        if (type, value) in wanted:
            return _YES
        # Nor can integers that are one and the same float: to many servers they are equal.
        return _UNCLEAR if type not in types or (type is float and _rounded(value) in rounded) else _NO

    return test


def _rounded(number: Any) -> float:
    """A number as servers read it that have floats alone (RFC 8259, section 6)."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _json_type(value: object) -> type | None:
    """The type of a JSON scalar; None of anything else.

    JSON has one kind of number: 1.0 is 1. It is not true, though to Python it is.
    """
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, _NUMBERS) else str if isinstance(value, str) else None


def _matching(pattern: str, *, across_lines: bool) -> Test:
    import re2

    options = re2.Options()
    options.dot_nl = across_lines
    compiled = re2.compile(pattern, options)

    def test(value: object) -> Holds:
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            return _UNCLEAR
        return _holds(compiled.fullmatch(value) is not None)

    return test


def _at_most(limit: float) -> Test:
    def test(value: object) -> Holds:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS):
            return _UNCLEAR
        return _holds(value <= limit)

    return test


def _holds(met: bool) -> Holds:
    return _YES if met else _NO
