"""Tool parameters that a server wants mirrored in HTTP headers (2026-07-28, streamable-http, Custom Headers).

Reads the annotations in tool lists that pass through, and drops tools with invalid ones. Sends nothing.
"""

from __future__ import annotations

from itertools import compress
from typing import Final

import msgspec
import structlog
from msgspec import Raw

from mcproxy.call.calls import Call
from mcproxy.call.errors import McpError
from mcproxy.catalog.views.derived import deriving
from mcproxy.concurrency.turns import Steps, in_turns
from mcproxy.protocol.headers import (
    InvalidAnnotation,
    MirroredParameter,
    may_be_annotated,
    mirrored_parameters,
    parameter_headers,
)
from mcproxy.protocol.json.bounds import TooMany, first_items, parse_array
from mcproxy.protocol.json.repeated_members import find_repeated, is_distinct
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INVALID_PARAMS,
    InvalidMessage,
    Params,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import Kind, Method, Subject

log = structlog.get_logger()

MAX_TOOLS: Final = 10_000
"""Annotated tools that are remembered; beyond that, the first listed are forgotten, and fetched again when needed."""
MAX_LISTED: Final = 100_000
"""Tools of a page."""
_NONE: Final = Raw(b"[]")


class ParameterHeaders:
    """The annotated parameters of one upstream's tools, by name."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.tools: dict[str, tuple[MirroredParameter, ...]] = {}
        """Tools with annotated parameters."""

    def headers(self, row: Method, params: Params) -> dict[str, str]:
        """The headers for the parameters of a request."""
        parameters = self._of(row, params)
        return parameter_headers(parameters, params.get("arguments")) if parameters else {}

    async def check(self, call: Call) -> None:
        """Raises McpError for arguments with headers in which a member comes twice: headers would name one of both."""
        arguments = call.params.get("arguments")
        if arguments is None or not self._of(call.row, call.params) or is_distinct(arguments):
            return
        if (flaw := await in_turns(find_repeated(arguments))) is not None:
            raise McpError(INVALID_PARAMS, f'"arguments" {flaw}: send each member once')

    def _of(self, row: Method, params: Params) -> tuple[MirroredParameter, ...]:
        if not self.tools or row.subject is not Subject.TOOL or row.subject_key is None:
            return ()
        return self.tools.get(parse_text(params.get(row.subject_key, b"")) or "", ())

    def note(self, page: Params) -> Steps[Params]:
        """A page of tools without those whose annotations are invalid, which clients MUST exclude.

        Of a page with more than MAX_LISTED tools only the first are looked at, and left in it.
        """
        listed = page.get(Kind.TOOLS.member, _NONE)
        if not (self.tools or may_be_annotated(bytes(listed))):
            return page
        try:
            tools, is_cut = parse_array(listed, MAX_LISTED), False
        except TooMany:
            tools, is_cut = first_items(listed), True
        except (msgspec.MsgspecError, RecursionError):
            return page
        are_usable = yield from deriving(tools, self._is_usable, size=len)
        usable = list(compress(tools, are_usable.results))
        return page if len(usable) == len(tools) and not is_cut else {**page, Kind.TOOLS.member: raw(usable)}

    def _is_usable(self, tool: Raw) -> bool:
        try:
            members = parse_object(tool)
        except InvalidMessage:
            return True  # `catalog.views` refuses a malformed entry.
        name = parse_text(members.get(Kind.TOOLS.key, b"")) or ""
        try:
            self._remember(name, mirrored_parameters(members.get("inputSchema", EMPTY_OBJECT)))
        except InvalidAnnotation as invalid:
            log.warning("a tool is left out of the list", upstream=self._upstream, tool=name, reason=str(invalid))
            self._remember(name, ())
            return False
        return True

    def _remember(self, name: str, parameters: tuple[MirroredParameter, ...]) -> None:
        self.tools.pop(name, None)
        if parameters:
            self.tools[name] = parameters
            if len(self.tools) > MAX_TOOLS:
                del self.tools[next(iter(self.tools))]


def next_page(page: Params) -> Params | None:
    """The params that request the page after `page`; None if it is the last."""
    cursor = parse_text(page.get("nextCursor", b""))
    return None if cursor is None else {"cursor": raw(cursor)}
