"""Resolves the name or URI of a call to its target: the upstream that owns it, and the upstream's own name.

Who may use what is decided here, by a look-up in the caller's own view (`catalogue`). An entry that the configuration
or the policy hides is answered as unknown, like one that does not exist; so is a tool with arguments that the policy
denies (R38). An entry of an upstream that cannot be reached is unavailable, never unknown (requirement R53).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import Caller
from mcproxy.catalog.naming import Space
from mcproxy.catalog.uri_matching import uri_flaw
from mcproxy.catalog.uris import MAX_URI
from mcproxy.gateway.listings.routes import ExposedRoute, RouteTable
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.task_ids import TaskIds
from mcproxy.protocol.capabilities import is_of_extension
from mcproxy.protocol.eras import STATELESS_VERSIONS, Era
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    InvalidObject,
    Params,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import Kind, Subject
from mcproxy.telemetry.metrics import UNKNOWN

Reach = Callable[[Space, Kind, Call], Awaitable[None]]
"""Makes one attempt to fetch an upstream's list. Raises McpError where the upstream cannot be reached."""

OUTDATED: Final = (
    "this call was not approved: the configuration, the server or the tool changed before it was sent; "
    "list the tools, and call again"
)

_NULL: Final = Raw(b"null")
_ARGUMENTS: Final = "arguments"
_NOUNS: Final = {Kind.TOOLS: "tool", Kind.PROMPTS: "prompt", Kind.RESOURCES: "resource"}


class Target(msgspec.Struct, frozen=True):
    """Where a call goes: an upstream, as the caller's endpoint shows it, and the params in the upstream's names."""

    space: Space
    params: Params
    route: ExposedRoute | None = None
    """The route of a tool or prompt: all that is the same for each call of it."""


class Resolver:
    """Finds the target of a call in its caller's own view: entries outside that view are unknown."""

    def __init__(self, catalogue: Catalogue, reach: Reach, task_ids: TaskIds) -> None:
        self._catalogue = catalogue
        self._reach = reach
        self._task_ids = task_ids

    def named(self, call: Call, routes: RouteTable) -> Target | None:
        """The target of a call by name, in the caller's `routes`; None for a name that is not listed.

        Raises McpError.
        """
        row = call.row
        assert row.named_in is not None
        assert row.subject_key is not None
        name = parse_text(call.params.get(row.subject_key, _NULL))
        route = routes.find(row.named_in, name) if name is not None else None
        return None if route is None else self._along(route, call)

    def located(self, call: Call, routes: RouteTable) -> Target:
        """The target of a call by URI, in the caller's `routes`. Raises McpError for a missing or unknown URI."""
        row = call.row
        assert row.subject_key is not None
        uri = _text(row.subject_key, call.params.get(row.subject_key, _NULL))
        space, own = routes.view.resource(uri) or self.resource(uri, call)
        call.notes.label = space.upstream, ""
        return Target(space, {**call.params, row.subject_key: raw(own)})

    async def target(self, call: Call, routes: RouteTable) -> Target:
        """The target of any call with a subject, in the caller's `routes`; may fetch an upstream's list.

        Raises McpError where the subject is missing or unknown, or its upstream cannot be reached.
        """
        row = call.row
        if not row.known:
            return self.passed(call)
        assert row.subject is not None
        assert row.subject_key is not None
        subject = call.params.get(row.subject_key, _NULL)
        match row.subject:
            case Subject.TOOL | Subject.PROMPT:
                assert row.named_in is not None
                kind, name = row.named_in, _text(row.subject_key, subject)
                return self._along(routes.find(kind, name) or await self._find_late(kind, name, call), call)
            case Subject.RESOURCE:
                return self.located(call, routes)
            case Subject.REFERENCE:
                space, reference = await self._reference(subject, call, routes)
                return Target(space, {**call.params, row.subject_key: raw(reference)})
            case Subject.TASK:
                task = self._task_ids.find(_text(row.subject_key, subject), call.caller)
                space = self._catalogue.layout(call.caller).space(task.link.upstream)
                return Target(space, {**call.params, row.subject_key: raw(task.id)})

    def passed(self, call: Call) -> Target:
        """The target of a call whose method the gateway does not know.

        Raises McpError where such calls may not pass.
        """
        space = self._catalogue.passing(call.caller) if is_of_extension(call.method) else None
        if space is None:
            raise McpError(METHOD_NOT_FOUND, f"Method not found: {call.method}")
        call.notes.label = space.upstream, ""
        return Target(space, call.params)

    def _along(self, route: ExposedRoute, call: Call) -> Target:
        key = call.row.subject_key
        assert key is not None
        call.notes.label = route.label
        params = self._judged(route, call) if route.looks_at_arguments else call.params
        return Target(route.space, {**params, key: route.own}, route)

    async def owner(self, call: Call) -> str:
        """The name of the upstream that a call with a subject goes to. Raises McpError."""
        return (await self.target(call, self._catalogue.routes(call.caller))).space.upstream

    async def learn(self, call: Call) -> None:
        """Fetches the unknown list that a call's name may be in; the list may still lack the name.

        No list is fetched for the gateway's own tool to log in with. Raises McpError where the upstream cannot be
        reached.
        """
        row = call.row
        if row.named_in is not None and row.subject_key is not None:
            name = parse_text(call.params.get(row.subject_key, _NULL)) or ""
            if row.named_in is not Kind.TOOLS or name not in self._catalogue.view(call.caller).logins:
                await self._learn(row.named_in, name, call)

    def check_allowed(self, call: Call) -> None:
        """Raises McpError if the policy has come to deny a call that was begun before."""
        row = call.row
        if not row.known:
            self.passed(call)
            return
        assert row.subject_key is not None
        subject = parse_text(call.params.get(row.subject_key, b"")) or ""
        match row.subject:
            case Subject.TOOL | Subject.PROMPT:
                self._check_named(subject, call)
            case Subject.RESOURCE:
                self.resource(subject, call)
            case Subject.TASK:
                self._task_ids.find(subject, call.caller)
            case Subject.REFERENCE | None:
                pass

    def asks_by_results(self, call: Call) -> bool:
        """Whether the link for a call is known and of the stateless era, which asks for input in results alone.

        False where the gateway itself may ask for its caller's approval.
        """
        row = call.row
        if row.subject_key is None:
            return False
        subject = parse_text(call.params.get(row.subject_key, b"")) or ""
        match row.subject:
            case Subject.TOOL | Subject.PROMPT:
                route = self._catalogue.routes(call.caller).find(row.named_in, subject) if row.named_in else None
                if route is not None and route.may_need_approval:
                    return False
                space = None if route is None else route.space
            case Subject.RESOURCE:
                found = self._catalogue.view(call.caller).resource(subject)
                space = None if found is None else found[0]
            case Subject.REFERENCE | Subject.TASK | None:
                space = None
        link = None if space is None else self._catalogue.link(space, call.caller)
        return link is not None and self._catalogue.known.era(link) is Era.STATELESS

    def may_be_referred(self, call: Call) -> bool:
        """Whether an operator may have to approve a call; True for an unlisted tool if any tool may need that."""
        if not self._catalogue.refers_calls or call.row.subject is not Subject.TOOL:
            return False
        name = parse_text(call.params.get("name", b"")) or ""
        route = self._catalogue.routes(call.caller).find(Kind.TOOLS, name)
        return route is None or route.may_need_approval

    def resource(self, uri: str, call: Call) -> tuple[Space, str]:
        """The owner of a resource and its own URI for it. Raises McpError."""
        found = self._catalogue.view(call.caller).resource(uri)
        if found is not None:
            return found
        if (why := uri_flaw(uri)) is not None:
            raise _unusable(uri, why)
        # resources, Error Handling: -32602 since 2026-07-28, -32002 in every revision before.
        modern = call.caller.version in STATELESS_VERSIONS or call.row.extension is not None
        raise _not_found(
            INVALID_PARAMS if modern else RESOURCE_NOT_FOUND, uri, self._why_unknown(Kind.RESOURCES, uri, call)
        )

    def unknown_resource(self, call: Call, reason: Reason) -> McpError:
        """The refusal of an extension's resource that does not exist or that the caller may not use."""
        assert call.row.subject_key is not None
        return _not_found(INVALID_PARAMS, _text(call.row.subject_key, call.params[call.row.subject_key]), reason)

    def label(self, call: Call) -> tuple[str, str]:
        """The upstream and the subject of a call as metric labels: only names that are listed (requirement R52)."""
        noted = call.notes.label
        if noted is not None and self._catalogue.has(noted[0]):
            return noted
        row = call.row
        if row.subject_key is None or row.subject is None:
            return "", ""
        subject = parse_text(call.params.get(row.subject_key, b""))
        if subject is None:
            return "", ""
        if row.subject is Subject.TASK:
            task = self._task_ids.open(subject, call.caller)
            return (task.link.upstream if task else UNKNOWN), ""
        view = self._catalogue.view(call.caller)
        kind = row.named_in
        if kind is None:
            found = view.resource(subject)
            return (found[0].upstream if found else UNKNOWN), ""
        shown = view.find(kind, subject)
        return (shown.upstream, shown.key) if shown else (UNKNOWN, UNKNOWN)

    def _check_named(self, name: str, call: Call) -> None:
        """Refuses a name that the policy denies; a name that its upstream no longer lists is not denied for that."""
        kind = call.row.named_in
        assert kind is not None
        route = self._catalogue.routes(call.caller).find(kind, name)
        if route is not None:
            self._judged(route, call)
        elif (why := self._why_unknown(kind, name, call)) is Reason.DENIED:
            raise _unknown(kind, name, why)

    def _judged(self, route: ExposedRoute, call: Call) -> Params:
        """The params with the arguments that the upstream gets, as the policy judged them.

        Raises McpError where the policy denies them, or where callers may not send them.
        """
        subject, name = route.subject, route.shown.key
        if not route.looks_at_arguments or call.row.subject is not Subject.TOOL:
            return call.params
        try:
            arguments = parse_object(call.params.get(_ARGUMENTS, EMPTY_OBJECT))
        except InvalidObject as error:
            if subject.decision is not None:
                raise McpError(INVALID_PARAMS, f'"{_ARGUMENTS}" {error.flaw}') from error
            raise _unknown(Kind.TOOLS, name, Reason.DENIED) from error
        if subject.final is not None:
            arguments = subject.final(arguments, call.caller.principal)
        allowed = subject.decision or (None if subject.judge is None else subject.judge(arguments))
        if allowed is None or not allowed.allowed:
            raise _unknown(Kind.TOOLS, name, Reason.DENIED)
        # Of a member that comes twice one value was judged; only that value is sent on.
        return {**call.params, _ARGUMENTS: raw(arguments)}

    def _why_unknown(self, kind: Kind, subject: str, call: Call) -> Reason:
        """DENIED if the entry exists and the policy hides it, for the audit; the caller is told the same either way."""
        view = self._catalogue.whole_view(call.caller)
        hidden = view.resource(subject) if kind is Kind.RESOURCES else view.find(kind, subject)
        return Reason.PROTOCOL_ERROR if hidden is None else Reason.DENIED

    async def _learn(self, kind: Kind, name: str, call: Call) -> None:
        spaces = self._catalogue.layout(call.caller).spaces
        space = next((space for space in spaces if space.may_own_name(name)), None)
        if space is not None and self._catalogue.known.listing(self._catalogue.link(space, call.caller), kind) is None:
            try:
                await self._reach(space, kind, call)
            except McpError:
                # The list may be there for all; where it is not, what the caller has to bring says more.
                check_brought(space, call.caller)
                raise

    async def _find_late(self, kind: Kind, name: str, call: Call) -> ExposedRoute:
        """The route of a name that was not listed, once the lists of the upstream that may own it are known."""
        await self._learn(kind, name, call)
        route = self._catalogue.routes(call.caller).find(kind, name)
        if route is None:
            raise _unknown(kind, name, self._why_unknown(kind, name, call))
        return route

    async def _reference(self, subject: Raw, call: Call, routes: RouteTable) -> tuple[Space, Params]:
        """A completion's `ref`: a prompt by name, or a resource template by URI (completion, Reference Types)."""
        try:
            reference = parse_object(subject)
        except InvalidObject as error:
            raise McpError(INVALID_PARAMS, f'"ref" {error.flaw}') from error
        match parse_text(reference.get("type", b"")):
            case "ref/prompt":
                name = _text("name", reference.get("name", Raw()))
                route = routes.find(Kind.PROMPTS, name) or await self._find_late(Kind.PROMPTS, name, call)
                return route.space, {**reference, "name": route.own}
            case "ref/resource":
                uri = _text("uri", reference.get("uri", Raw()))
                found = self._catalogue.view(call.caller).resource(uri)
                if found is None and len(uri) > MAX_URI:
                    raise _unusable(uri, uri_flaw(uri) or "")
                if found is None:
                    why = self._why_unknown(Kind.RESOURCES, uri, call)
                    raise McpError(INVALID_PARAMS, f"Unknown resource: {uri}", {"uri": uri}, reason=why)
                return found[0], {**reference, "uri": raw(found[1])}
            case _:
                raise McpError(INVALID_PARAMS, '"ref" must be of type "ref/prompt" or "ref/resource"')


def check_brought(space: Space, caller: Caller) -> None:
    """Raises McpError if `caller` did not bring the credentials that the upstream needs."""
    if not space.takes_credentials:
        return
    own = caller.credentials
    missing = space.spec.credentials.missing(own.headers if own is not None else ())
    if missing:
        sentence = f"upstream {space.upstream!r} needs your own credentials: send the header {' and '.join(missing)}"
        raise McpError(INVALID_REQUEST, sentence, reason=Reason.DENIED)


def approval_missed() -> McpError:
    """The refusal of a call that needs an approval only since a reload, and too late for its caller to be asked."""
    return McpError(INVALID_REQUEST, OUTDATED, {"approval": "withdrawn"}, reason=Reason.APPROVAL_WITHDRAWN)


def _unknown(kind: Kind, name: str, reason: Reason) -> McpError:
    """The refusal of an unknown subject: the same whether it is denied or does not exist (requirement R38)."""
    return McpError(INVALID_PARAMS, f"Unknown {_NOUNS[kind]}: {name}", {"name": name}, reason=reason)


def unknown_tool(name: str) -> McpError:
    """The refusal of a tool that does not exist, or that models may not call."""
    return _unknown(Kind.TOOLS, name, Reason.PROTOCOL_ERROR)


def _not_found(code: int, uri: str, reason: Reason) -> McpError:
    return McpError(code, f"Resource not found: {uri}", {"uri": uri}, reason=reason)


def _unusable(uri: str, why: str) -> McpError:
    """The refusal of an unusable URI; one that is too long is not repeated in it."""
    if len(uri) > MAX_URI:
        return McpError(INVALID_PARAMS, f"the URI {why}")
    return McpError(INVALID_PARAMS, f"the URI {why}: {uri}", {"uri": uri})


def _text(key: str, value: Raw) -> str:
    text = parse_text(value)
    if text is None:
        raise McpError(INVALID_PARAMS, f'"{key}" must be given, as a string')
    return text
