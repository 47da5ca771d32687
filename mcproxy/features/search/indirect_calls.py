"""Calls of a tool through `call_read`, `call_write` or `call_destructive`: each becomes a call of the tool itself.

`unwrapped`, the outermost stage, turns the call into one of the tool itself, so that policy, limits, audit, metrics,
traces and the bridge see only that call. `checked`, further in, refuses a tool whose effect does not match, and
arguments that plainly violate its schema: the refusal shows the schema, which the model may not have seen. The result
passes unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from msgspec.structs import replace

from mcproxy.call.calls import Call, Handler, Outcome
from mcproxy.call.errors import McpError
from mcproxy.catalog.argument_flaws import flaws
from mcproxy.catalog.search.own_tools import CALLER_SCHEMA, CALLERS, SCHEMAS, effect_of
from mcproxy.catalog.search.search_view import is_for_models
from mcproxy.catalog.views.view import Shown
from mcproxy.features.search.answer_texts import told, wrong
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.targets import Resolver, unknown_tool
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, INVALID_PARAMS, InvalidObject, Params, parse_object, parse_text, raw
from mcproxy.protocol.methods import Kind, Subject

_SCHEMA = raw(CALLER_SCHEMA)


class IndirectCalls:
    """The two stages do nothing if no endpoint in `endpoints` has `discovery: search`."""

    def __init__(
        self,
        endpoints: Collection[str],
        catalogue: Catalogue,
        resolver: Resolver,
        note_called: Callable[[Call, str], None],
    ) -> None:
        self._endpoints = frozenset(endpoints)
        self._catalogue = catalogue
        self._resolver = resolver
        self._note_called = note_called

    def unwrapped(self, handler: Handler) -> Handler:
        """Turns a call of `call_read`, `call_write` or `call_destructive` into a call of the tool that it names."""

        def unwrapping(call: Call) -> Awaitable[Outcome]:
            if call.row.subject is Subject.TOOL and call.caller.endpoint in self._endpoints:
                call = unwrap(call)
            return handler(call)

        return unwrapping if self._endpoints else handler

    def checked(self, handler: Handler) -> Handler:
        """Refuses a call through one of these tools if the effect of the tool that it names does not match."""

        def checking(call: Call) -> Awaitable[Outcome]:
            if call.row.subject is not Subject.TOOL or call.caller.endpoint not in self._endpoints:
                return handler(call)
            via = call.notes.via
            if via is not None:
                return self._check(handler, call, via)
            name = parse_text(call.params.get("name", b"")) or ""
            if name not in SCHEMAS:
                self._note_called(call, name)
            return handler(call)

        return checking if self._endpoints else handler

    async def _check(self, handler: Handler, call: Call, via: str) -> Outcome:
        name = parse_text(call.params.get("name", b"")) or ""
        refusal = self._refusal(await self._found(name, call), via, call)
        if refusal is not None:
            return refusal
        self._note_called(call, name)
        return await handler(call)

    async def _found(self, name: str, call: Call) -> Shown:
        """The route of the tool.

        Raises McpError, as a direct call would, if it is unknown or its upstream is down.
        """
        routes = self._catalogue.routes(call.caller)
        route = routes.find(Kind.TOOLS, name)
        if route is None:
            route = (await self._resolver.target(call, routes)).route
        if route is None or not is_for_models(route.shown):
            raise unknown_tool(name)
        return route.shown

    def _refusal(self, shown: Shown, via: str, call: Call) -> Outcome | None:
        if shown.key in SCHEMAS:
            return told(f"{shown.key} is called directly, not through {via}.", is_error=True)
        effect = effect_of(shown.entry)
        if effect is not CALLERS[via]:
            return told(f"{shown.key} is not for {via}: call it with {effect.value}.", is_error=True)
        schema = parse_object(shown.entry).get("inputSchema", EMPTY_OBJECT)
        try:
            arguments = parse_object(call.params.get("arguments", EMPTY_OBJECT))
        except InvalidObject as error:
            raise McpError(INVALID_PARAMS, f'"arguments" {error.flaw}') from error
        found = flaws(schema, arguments)
        return wrong(found, schema, shown.key) if found else None


def unwrap(call: Call) -> Call:
    """A call of `call_read` and the like as a call of the tool that it names; any other call unchanged."""
    via = parse_text(call.params.get("name", b""))
    if via not in CALLERS:
        return call
    try:
        given = parse_object(call.params.get("arguments", EMPTY_OBJECT))
    except InvalidObject:
        return call
    if flaws(_SCHEMA, given):
        return call
    call.notes.via = via
    rest: Params = {key: value for key, value in call.params.items() if key not in ("name", "arguments")}
    inner = {"name": given["name"], **({"arguments": given["arguments"]} if "arguments" in given else {})}
    return replace(call, params={**rest, **inner})
