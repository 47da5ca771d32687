"""Streamable HTTP of the handshake era (2025-03-26 to 2025-11-25): sessions, the GET stream, and resumption.

If the server lost the session, or answers nothing in it any more, the link closes; `reconnecting` makes another.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Final

import anyio
from msgspec.structs import replace

from mcproxy.call.upstreams import PushChannel
from mcproxy.concurrency import backoff
from mcproxy.pending_requests import CANCEL_TIMEOUT, PeerGone
from mcproxy.protocol.eras import V2025_06_18
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    ErrorResponse,
    Message,
    Notification,
    Request,
    RequestId,
)
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation, conversing
from mcproxy.upstream.handshake.dialect import HandshakeDialect
from mcproxy.upstream.http.requester import NO_FIELDS, ExtraHeaders, Requester, connection_pool
from mcproxy.upstream.http.responses import (
    AUTHENTICATION,
    EVENTS,
    JSON,
    TRANSIENT,
    quotable,
    read_prefix,
    refuses_version,
)
from mcproxy.upstream.http.responses import UpstreamResponse as HttpResponse
from mcproxy.upstream.link import Link, NotAccepted, Rejected
from mcproxy.upstream.streamable import Position, StreamableHttp, error_in

SESSION: Final = "Mcp-Session-Id"
VERSION: Final = "MCP-Protocol-Version"
LAST_EVENT: Final = "Last-Event-ID"
MAX_RESUMPTIONS: Final = 5
"""Fruitless resumptions of one response stream in a row, for a server that did not ask to be polled."""
STABLE_AFTER: Final = 5.0
"""Seconds after which a listening stream counts as stable: when it ends, it is reopened after the first delay."""

ACCEPTED: Final = 202

_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,4096}")
_SESSION_LOST: Final = re.compile(
    r"session\b.{0,100}\b(not found|unknown|expired|invalid|terminated|does not exist)"
    r"|(invalid|unknown|expired|no valid|no such) session|(server|session) not initialized",
    re.IGNORECASE,
)
_ONLY_THAT: Final = re.compile(
    r"(bad request: |error: )?(mcp[ -])?session([ -]id)?( [\w-]{8,}| \S{8,})?( is| was| has)? "
    r"(not found|unknown|expired|invalid|terminated|not initialized)\W?"
    r"|(bad request: |error: )?(invalid|unknown|expired|no valid|no such) (mcp[ -])?session([ -]id)?\W?( provided\W?)?"
    r"|(bad request: )?server not initialized\W?",
    re.IGNORECASE,
)
_SESSION_NOT_FOUND: Final = -32001


@asynccontextmanager
async def handshake_over_http(context: LinkContext) -> AsyncIterator[Link]:
    """Implements `Connect`: Streamable HTTP (2025-03-26 to 2025-11-25). On leaving, DELETE ends the session."""
    async with connection_pool(context) as http:
        streamable = StreamableHttp(context, Requester(http, context), _Session(context))
        async with conversing(context, HandshakeDialect(context), streamable) as conversation:
            yield conversation


def session_is_lost(status: int, body: bytes, error: ErrorResponse | None, *, had_session: bool) -> bool:
    """Whether a refusal says that the server does not know our session: nothing was executed (requirement R2).

    404 is the specified status (transports, Session Management); some servers use others. Not for the answer to a
    request: a message with the request's id is never a refusal by the transport (R76).
    """
    if not had_session:
        return False
    if status == 404:
        return True
    if error is not None and status < 400:
        # It may be about another kind of session: so the sentence must say this and nothing else.
        known_code = error.error.code in (INVALID_REQUEST, _SESSION_NOT_FOUND)
        return known_code and _ONLY_THAT.fullmatch(error.error.message.strip()) is not None
    return status in (400, 401, 404, 410, 503) and _SESSION_LOST.search(quotable(body)) is not None


class _Session:
    """Implements `streamable.HttpRules`: the session, the GET stream, and streams that are resumed."""

    def __init__(self, context: LinkContext) -> None:
        self._context = context
        self._session: str | None = None
        self.wants_heads = True
        self._post_headers: ExtraHeaders | None = None
        self._channel = PushChannel.RESTORED
        self._is_pinging = False
        """Whether it is being asked if the session still works."""
        self._due: set[RequestId] = set()
        """Requests that were only accepted: their answers are due on the GET stream."""

    def attach(self, http: StreamableHttp, conversation: Conversation) -> None:
        self._http, self._conversation = http, conversation

    async def receive(self) -> None:
        await self._conversation.opened.wait()
        await self._listen()

    async def close(self) -> None:
        """Deletes the session, if there is one."""
        if self._session is None:
            return
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
            try:
                response = await self._http.request("DELETE", self._headers())
                response.close()
            except (NotAccepted, PeerGone, Rejected):
                return

    def head(self, message: Message) -> tuple[ExtraHeaders, Mapping[str, str]]:
        """The same for all messages once the handshake is done."""
        if self._post_headers is not None:
            return self._post_headers, NO_FIELDS
        headers = (*self._headers(), ("Accept", f"{JSON}, {EVENTS}"), ("Content-Type", JSON))
        if self._conversation.version is not None:
            self._post_headers = headers
        return headers, NO_FIELDS

    def _headers(self) -> ExtraHeaders:
        version = self._conversation.version
        # Where it is absent, 2025-03-26 is meant (transports, 2025-11-25); some servers of old refuse it.
        known = ((SESSION, self._session), (VERSION, version if version and version >= V2025_06_18 else None))
        return tuple((name, value) for name, value in known if value is not None)

    def note(self, response: HttpResponse) -> None:
        id = response.fields.get(SESSION.lower())
        if id is None or not response.ok:
            return
        if _SESSION_ID.fullmatch(id) is None:
            raise Rejected("its session id is too long, or has characters other than visible ASCII")
        self._session, self._post_headers, self.wants_heads = id, None, False

    def note_refused(self, message: Notification, response: HttpResponse, body: bytes) -> None:
        """Counts it. If it says that the session is lost, the server is asked whether that is so (R2)."""
        self._context.oddities.note("notification", f"answers notifications with HTTP {response.status}; accepted")
        if self._conversation.version is not None and session_is_lost(
            response.status, body, error_in(body), had_session=self._session is not None
        ):
            self._ask_whether_lost()

    def _ask_whether_lost(self) -> None:
        if not self._conversation.is_closed and not self._is_pinging:
            self._conversation.tasks.start_soon(self._drain_unless_answered)

    def failed(self, error: NotAccepted | PeerGone | Rejected) -> None:
        broke = isinstance(error, PeerGone) or (isinstance(error, Rejected) and (error.status or 0) >= 500)
        is_open = self._conversation.version is not None and not self._conversation.is_closed
        if broke and is_open:
            self._ask_whether_lost()

    async def _drain_unless_answered(self) -> None:
        """Closes the link if the server answers nothing in its session any more, so that another is made.

        Python's SDK as of 1.9 ends a session for good, and says so to nobody, when one of its calls is cancelled.
        """
        self._is_pinging = True
        try:
            if not await self._conversation.still_answers():
                self._conversation.drain("the upstream answers nothing in this session any more, not even a ping")
        finally:
            self._is_pinging = False

    def check(self, error: ErrorResponse) -> None:
        if session_is_lost(200, b"", error, had_session=self._session is not None):
            raise self._session_lost(error.error.message)

    async def take_other(self, response: HttpResponse, id: RequestId, begun: bytes) -> None:
        if response.status != ACCEPTED or self._conversation.version is None:
            raise self._http.rejection(response, await read_prefix(response, begun))
        await self._await_elsewhere(response, id)

    async def _await_elsewhere(self, response: HttpResponse, id: RequestId) -> None:
        """Has the answer to a request that was only accepted come on the GET stream. Raises PeerGone if there is none.

        Transports, Sending Messages, has that status for what is not answered, and Listening for Messages forbids such
        answers. But clients of the first official SDKs take an answer wherever it comes, so such servers exist.
        """
        await read_prefix(response)
        if self._channel is PushChannel.LOST:
            raise _unanswered()
        self._due = {each for each in self._due if not self._conversation.settled(each)} | {id}

    async def resume(self, id: RequestId, position: Position) -> None:
        """Resumes a stream that ended before its answer. Raises PeerGone if that is not possible (R5).

        A server that sends `retry` is polled for as long as the call may last.
        """
        failures = 0
        while not self._conversation.settled(id):
            if position.last_id is None or failures > MAX_RESUMPTIONS:
                raise PeerGone("the response stream ended without the response")
            await anyio.sleep(position.wait(failures))
            try:
                response = await self._get(position)
            except NotAccepted as error:
                # Of the resumption alone: the request was taken, and may have been executed (R4).
                raise PeerGone(f"the response stream could not be resumed: {error}") from error
            try:
                if not _is_event_stream(response):
                    raise PeerGone(f"the response stream could not be resumed: HTTP {response.status}")
                reached = await self._http.follow(response, id, position)
            finally:
                response.finish(reusable=self._conversation.is_answered(id))
            # transports, 2025-11-25: after a `retry`, "the client SHOULD then 'poll' the SSE stream".
            is_news = reached.last_id != position.last_id or reached.retry is not None
            failures = 0 if is_news else failures + 1
            position = reached

    async def _listen(self) -> None:
        """Keeps the GET stream, the push channel, open for as long as the server offers one."""
        position, failures, opened = Position(), 0, False
        while not self._conversation.is_closed:
            started, refused = anyio.current_time(), True
            try:
                response = await self._get(position)
            except (NotAccepted, PeerGone, Rejected):
                self._report_channel(PushChannel.LOST)
                failures += 1
            else:
                with closing(response):
                    if _is_event_stream(response):
                        opened, refused = True, False
                        position = await self._follow_pushes(response, position)
                    else:
                        self._report_channel(PushChannel.LOST)
                        if not self._may_offer_stream(response.status, opened):
                            return
                failures = 0 if anyio.current_time() - started > STABLE_AFTER else failures + 1
            # A stream that its server keeps closing is reopened ever more slowly (requirement R6), and so is one that
            # is refused, whatever pause the server once asked for (WHATWG HTML, section 9.2.3).
            pause = max(position.wait(failures), backoff.delay(failures) if refused else 0.0)
            await anyio.sleep(min(pause, self._context.spec.timeouts.total))

    async def _follow_pushes(self, response: HttpResponse, position: Position) -> Position:
        self._report_channel(PushChannel.RESTORED)
        try:
            position = await self._http.follow(response, None, position)
        except Rejected as error:
            self._conversation.disconnect(str(error))
        if position.last_id is None:
            # Without an id to resume from, notifications until the next stream are lost.
            self._report_channel(PushChannel.LOST)
        return position

    def _report_channel(self, channel: PushChannel) -> None:
        """Publishes a change of the push channel (R21)."""
        if channel is not self._channel and not self._conversation.is_closed:
            self._channel = channel
            self._context.publish(channel)
            if channel is PushChannel.LOST:
                for id in self._due:
                    self._conversation.fail(id, _unanswered())
                self._due.clear()

    def _may_offer_stream(self, status: int, opened: bool) -> bool:
        """Whether a GET stream may be had later than now: 405 says no (transports, Listening for Messages).

        Other refusals say so too, but for those that may pass: where there was a stream before, its server may not have
        noticed its end yet (409 of the TypeScript SDK).
        """
        if opened and status == 404:
            self._conversation.drain("the upstream lost the session")
        return status >= 500 or ((opened or status in TRANSIENT) and status != 405)

    async def _get(self, position: Position) -> HttpResponse:
        resumption = () if position.last_id is None else ((LAST_EVENT, position.last_id),)
        return await self._http.request("GET", (*self._headers(), ("Accept", EVENTS), *resumption))

    async def judge(self, response: HttpResponse, body: bytes, request: Request | None) -> None:
        """A lost session, an error without an id, or no MCP at all."""
        if request is not None and response.content_type == EVENTS:
            raise PeerGone(f"HTTP {response.status}, and its event stream ended without the response")
        rejection = self._http.rejection(response, body)
        if self._conversation.version is None:
            raise rejection
        error = error_in(body)
        if session_is_lost(response.status, body, error, had_session=self._session is not None):
            raise self._session_lost(f"HTTP {response.status}")
        if request is not None and refuses_version(response.status, quotable(body)):
            raise NotAccepted(f"it no longer speaks {self._conversation.version}: {rejection}")
        if response.status == 503:
            self._conversation.drain("the upstream is unavailable: HTTP 503")
            raise PeerGone(str(rejection))
        is_servers = response.status in range(400, 500) and response.status not in AUTHENTICATION
        if not is_servers or error is None or request is None:
            raise rejection
        self._conversation.take(replace(error, id=request.id), request.id)

    def _session_lost(self, how: str) -> NotAccepted:
        reason = f"the upstream lost the session: {how}"
        self._conversation.drain(reason)
        return NotAccepted(reason)


def _unanswered() -> PeerGone:
    return PeerGone("it accepted the request without an answer (HTTP 202), and has no event stream open for it")


def _is_event_stream(response: HttpResponse) -> bool:
    return response.ok and response.content_type == EVENTS
