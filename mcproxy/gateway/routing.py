"""The end of the pipeline: each call to the part that answers it, as its row in the table of methods says.

The gateway answers some methods itself; a call for an upstream goes to its target through tasks and exchange.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Handler, LoginNeed, LoginRequired, Outcome
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.catalog.contents import contents_fault
from mcproxy.catalog.naming import Space
from mcproxy.catalog.rewriting import kept_private, respelled
from mcproxy.catalog.skills import is_readable, readable_children
from mcproxy.catalog.views.exposure import login_names
from mcproxy.gateway.exchange import UpstreamExchange
from mcproxy.gateway.listings.routes import RouteTable
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.targets import Resolver, Target, approval_missed, check_brought
from mcproxy.gateway.tasks.relay import TaskRelay
from mcproxy.protocol.capabilities import lacks
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ErrorObject,
    first_level,
    parse_text,
)
from mcproxy.protocol.methods import METHODS, Answerer, Kind, Method, Shape, Subject


class Router:
    """A `Handler`. `answers` are the handlers of methods that the gateway or a feature answers, by method."""

    def __init__(
        self,
        catalogue: Catalogue,
        resolver: Resolver,
        answers: Mapping[str, Handler],
        tasks: TaskRelay,
        exchange: UpstreamExchange,
    ) -> None:
        self._catalogue = catalogue
        self._resolver = resolver
        self._answers = answers
        self._tasks = tasks
        self._exchange = exchange
        of_features = {name: answer for name, answer in answers.items() if name not in METHODS}
        of_table = {row.name: route for row in METHODS.values() if (route := self._route(row)) is not None}
        self._routes: dict[str, Handler] = {**of_features, **of_table}

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        route = self._routes.get(call.row.name)
        return self._pass_on(call) if route is None else route(call)

    def _route(self, row: Method) -> Handler | None:
        """The handler of a method; None for a method that the edge answers."""
        if row.answerer is not Answerer.UPSTREAM:
            # Some methods that the edge answers need the gateway for part of the answer (subscriptions/listen).
            answer = self._answers.get(row.name)
            assert answer is not None or row.answerer is Answerer.EDGE
            return None if answer is None else partial(self._answer, answer)
        if row.subject is Subject.RESOURCE:
            return {Shape.SKILL: self._describe_skill, Shape.RESOURCES: self._read_directory}.get(row.shape, self._read)
        return self._resolve if row.named_in is None else self._call

    def _pass_on(self, call: Call) -> Awaitable[Outcome]:
        """Passes a message of an unknown extension to the only upstream behind the endpoint, or refuses it."""
        if call.row.known:
            raise McpError(METHOD_NOT_FOUND, f"Method not found: {call.row.name}")
        target = self._resolver.passed(call)
        check_brought(target.space, call.caller)
        return self._exchange(target, call)

    def _answer(self, answer: Handler, call: Call) -> Awaitable[Outcome]:
        _check_offered(call.row, self._catalogue.routes(call.caller))
        return answer(call)

    def _call(self, call: Call) -> Awaitable[Outcome]:
        """Calls a listed tool or prompt at once; for another name, an upstream's list may have to be fetched first."""
        target = self._resolver.named(call, self._catalogue.routes(call.caller))
        if target is None:
            return self._resolve(call)
        return self._send(target, call)

    async def _resolve(self, call: Call) -> Outcome:
        routes = self._catalogue.routes(call.caller)
        if call.row.subject is Subject.TOOL and (answer := self._answer_login(call, routes)) is not None:
            return answer
        _check_offered(call.row, routes)
        try:
            target = await self._resolver.target(call, routes)
        except McpError as refusal:
            answer = None if isinstance(refusal, LoginRequired) else self._answer_login_late(call)
            if answer is None:
                raise
            return answer
        return await self._send(target, call)

    def _answer_login_late(self, call: Call) -> Outcome | None:
        """As `_answer_login`, once the list of the upstream that might own the name has been waited for."""
        routes = self._catalogue.routes(call.caller)
        if call.row.subject is not Subject.TOOL or routes.find(Kind.TOOLS, _subject(call)) is not None:
            return None
        return self._answer_login(call, routes)

    def _send(self, target: Target, call: Call) -> Awaitable[Outcome]:
        check_brought(target.space, call.caller)
        if target.route is not None and target.route.may_need_approval and not call.notes.approved:
            # It passed the approval stage before a reload added the rule, and has since waited for a list.
            raise approval_missed()
        return self._tasks.call(target, call)

    def _answer_login(self, call: Call, routes: RouteTable) -> Outcome | None:
        """The outcome of a call of the gateway's own tool to log in with; None for any other name."""
        name = _subject(call)
        upstream = routes.view.logins.get(name)
        if upstream is not None:
            link = self._catalogue.link(routes.view.layout.space(upstream), call.caller)
            error = ErrorObject(INTERNAL_ERROR, f"upstream {upstream!r} wants a login")
            need = LoginNeed(upstream, link.owner, "")
            return Failed(error, Party.UPSTREAM, Reason.LOGIN_NEEDED, need)
        space = next((each for each in routes.view.layout.spaces if name in login_names(each)), None)
        if space is None or space.spec.oauth is None:
            return None
        if self._catalogue.known.listing(self._catalogue.link(space, call.caller), Kind.TOOLS) is None:
            return None  # The upstream may have a tool of that name.
        # The tool was listed until the login was made.
        text = f"No login is needed at {space.upstream} now: use its tools."
        return Complete(first_level({"resultType": "complete", "content": [{"type": "text", "text": text}]}))

    async def _read(self, call: Call) -> Outcome:
        row, routes = call.row, self._catalogue.routes(call.caller)
        _check_offered(row, routes)
        target = self._resolver.located(call, routes)
        check_brought(target.space, call.caller)
        outcome = await self._exchange(target, call)
        if isinstance(outcome, Complete):
            outcome = _checked(target.space, outcome)
            return outcome if self._shows_all(call) else kept_private(outcome)
        assert row.subject_key is not None
        return respelled(outcome, target.params[row.subject_key], call.params[row.subject_key])

    async def _read_directory(self, call: Call) -> Outcome:
        """Reads a directory; leaves out children that the caller may not read."""
        outcome = await self._read(call)
        if not isinstance(outcome, Complete):
            return outcome
        return replace(outcome, result=readable_children(outcome.result, self._may_read(call)))

    async def _describe_skill(self, call: Call) -> Outcome:
        """The entry of a skill, as approved, of which the caller may read every file; any other is unknown (R38).

        The refusal is the gateway's: an upstream's words would tell a skill that does not exist from one that is
        hidden.
        """
        outcome = await self._read(call)
        match outcome:
            case Complete(result=result) if not self._shows_skill(call, result.get("skill", EMPTY_OBJECT)):
                raise self._resolver.unknown_resource(call, Reason.DENIED)
            case Failed(error=error) if error.code == INVALID_PARAMS and self._hides(call):
                raise self._resolver.unknown_resource(call, Reason.PROTOCOL_ERROR)
            case _:
                return outcome

    def _hides(self, call: Call) -> bool:
        """Whether there may be skills that the caller may not know of."""
        return not self._shows_all(call) or self._catalogue.vetted.enforced

    def _shows_skill(self, call: Call, skill: Raw) -> bool:
        return is_readable(skill, self._may_read(call)) and self._catalogue.is_as_listed(call.caller, skill)

    def _shows_all(self, call: Call) -> bool:
        """Whether the policy gives all callers the same there."""
        return self._catalogue.routes(call.caller).for_all

    def _may_read(self, call: Call) -> Callable[[str], bool]:
        view = self._catalogue.view(call.caller)
        return lambda uri: view.resource(uri) is not None


def _subject(call: Call) -> str:
    """The name of the tool or prompt that is called; empty if there is none."""
    assert call.row.subject_key is not None
    return parse_text(call.params.get(call.row.subject_key, b"")) or ""


def _check_offered(row: Method, routes: RouteTable) -> None:
    if row.capability is None or (row.extension is None and row.capability in routes.view.capabilities):
        return
    if (missing := lacks(routes.view.capabilities, row)) is not None:
        raise McpError(METHOD_NOT_FOUND, f"Method not found: {row.name}: no server here offers {missing}")


def _checked(space: Space, outcome: Complete) -> Complete | Failed:
    """The result of a read, or a failure where the upstream may not send such content (`content`)."""
    findings = outcome.findings
    if findings is not None and findings.sound:
        return outcome
    found = contents_fault(space.spec.content, outcome.result)
    if found is None:
        if findings is not None:
            findings.sound = True
        return outcome
    return Failed(ErrorObject(INTERNAL_ERROR, f"upstream {space.upstream!r} sent {found}"), Party.UPSTREAM)
