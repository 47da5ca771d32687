"""`mcproxy policy test`: compare the policy's decisions with expected ones, for CI. Connects to nothing.

A case names a caller and its request, in the names that callers use, and the expected decision. What only a running
upstream knows, the annotations of a tool, is part of the case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from mcproxy.access.policy import Policy, PolicyItem
from mcproxy.call.calls import Decision
from mcproxy.call.identity import Principal
from mcproxy.catalog.naming import SEPARATOR, Layout, Space, layouts
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.cli.access.explain import endpoint_key, known_roles
from mcproxy.cli.output import print_json, print_out
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.documents.tree import Node
from mcproxy.configuration.loading import read_document
from mcproxy.configuration.problems import ConfigurationError, Problem
from mcproxy.gateway.explaining import kind_of
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Section, Settings


class Case(Section):
    """One expected decision."""

    principal: str = "anonymous"
    """The caller; it has the roles that the configuration gives it."""
    roles: tuple[str, ...] = ()
    """Roles beside those."""
    endpoint: str = "/mcp"
    """The endpoint: `/mcp`, `/mcp/NAME` or `/servers/NAME`."""
    method: str = "tools/call"
    """The method that is requested."""
    subject: str
    """A tool's or prompt's name, or a URI, as callers know it."""
    upstream: str | None = None
    """If given, `subject` is this upstream's own name or URI."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """The arguments of a tool call."""
    read_only: bool = False
    """Whether the tool is annotated `readOnlyHint`."""
    destructive: bool | None = None
    """Whether the tool may destroy. Default: unless it is read-only."""
    expect: Literal["allow", "deny"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The decision about a case. `place` is the case's file and line."""

    place: str
    case: Case
    decision: Decision
    why: str

    @property
    def as_expected(self) -> bool:
        return self.decision.allowed is (self.case.expect == "allow")

    def __str__(self) -> str:
        case, found = self.case, "allow" if self.decision.allowed else "deny"
        asked = f"{case.principal} {case.method} {case.subject}"
        return f"{self.place}: {asked}: expected {case.expect}, is {found}: {self.why}"


def judge_all(settings: Settings, file: Path, *, as_json: bool) -> int:
    """Prints the cases whose decision is not the expected one; FAILED where there are some."""
    results = [judged(settings, place, case) for place, case in cases(file)]
    failed = [result for result in results if not result.as_expected]
    if as_json:
        print_json({"cases": len(results), "failed": [str(result) for result in failed]})
    else:
        for result in failed:
            print_out(str(result))
        print_out(f"{len(results) - len(failed)} of {len(results)} as expected")
    return ExitCode.FAILED if failed else ExitCode.OK


def cases(file: Path) -> Iterator[tuple[str, Case]]:
    """Each case of a file with its place. Raises ConfigurationError."""
    document = read_document(file)
    if not isinstance(document.value, list):
        raise ConfigurationError([Problem(str(file), "should be a list of cases", document.place)])
    problems: list[Problem] = []
    found: list[tuple[str, Case]] = []
    for node in document.value:
        try:
            found.append((f"{file}:{node.place.line}", Case.model_validate(node.plain)))
        except ValidationError as error:
            problems += _problems(file, node, error)
    if problems:
        raise ConfigurationError(problems)
    yield from found


def judged(settings: Settings, place: str, case: Case) -> CaseResult:
    """Raises ConfigurationError for a case whose method has no subject."""
    try:
        decision, why = _decided(settings, case)
    except ValueError as error:
        raise ConfigurationError([Problem(place, str(error))]) from error
    return CaseResult(place, case, decision, why)


def _decided(settings: Settings, case: Case) -> tuple[Decision, str]:
    policy = Policy(
        settings.access.policy,
        readings=readings,
        matcher=matcher,
        others=[role for endpoint in settings.endpoints.values() for role in endpoint.roles],
    )
    held = known_roles(settings, case.principal) | frozenset(case.roles)
    roles = policy.roles_of(Principal(case.principal, held))
    layout = _layout(settings, case)
    kind = kind_of(case.method, case.subject)
    located = _located(layout, kind, case)
    if layout.roles and roles.isdisjoint(layout.roles):
        return Decision(False), f"{case.endpoint} needs one of the roles {', '.join(layout.roles)}"
    if located is None:
        return Decision(False), "no upstream of the endpoint exposes this name"
    space, own = located
    if (obstacle := space.obstacle(kind, own)) is not None:
        return Decision(False), obstacle
    destructive = not case.read_only if case.destructive is None else case.destructive
    item = (
        PolicyItem(space.upstream, kind, own, case.read_only, destructive)
        if kind is Kind.TOOLS
        else PolicyItem(space.upstream, kind, own)
    )
    decision = policy.decide(roles, item, {name: raw(value) for name, value in case.arguments.items()})
    return decision, str(decision.rule or "default")


def _layout(settings: Settings, case: Case) -> Layout:
    found = layouts(settings.upstreams, settings.proxy.naming.max_name_length, settings.endpoints)
    key = endpoint_key(case.endpoint)
    return found.get(key) or Layout(key, ())


def _located(layout: Layout, kind: Kind, case: Case) -> tuple[Space, str] | None:
    """The space of the upstream that owns the subject, and its own name there; None where there is none."""
    if case.upstream is not None:
        return (layout.space(case.upstream), case.subject) if layout.shows(case.upstream) else None
    if kind is Kind.RESOURCES:
        return layout.locate(case.subject)
    spaces = (space for space in layout.spaces if space.may_own_name(case.subject))
    return next(((space, _own(space, kind, case.subject)) for space in spaces), None)


def _own(space: Space, kind: Kind, exposed: str) -> str:
    """The upstream's own name of an exposed one. For a shortened or cleaned name, the case must give the upstream."""
    wish = exposed.removeprefix(space.prefix + SEPARATOR) if space.prefix else exposed
    overrides: Mapping[str, object] = space.spec.tools.overrides if kind is Kind.TOOLS else {}
    return next((own for own in overrides if space.wish(kind, own) == wish), wish)


def _problems(file: Path, node: Node, error: ValidationError) -> Iterator[Problem]:
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        yield Problem(str(file), detail["msg"], node.place, (*node.path, *detail["loc"]))
