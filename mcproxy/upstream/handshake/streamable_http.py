"""Streamable HTTP of the handshake era (2025-03-26 to 2025-11-25), client side: POST to send, GET to listen.

A request's own response stream carries its whole exchange, and is resumed if the server allows that. If the server lost
the session, or answers nothing in it any more, the link closes; `reconnecting` makes another. Sends no request twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Final

import anyio
import msgspec
from msgspec.structs import replace
from yarl import URL

from mcproxy.call.upstreams import PushChannel
from mcproxy.concurrency import backoff
from mcproxy.http.client import ConnectionBroken
from mcproxy.pending_requests import CANCEL_TIMEOUT, PeerGone
from mcproxy.protocol.jsonrpc import (
    INVALID_REQUEST,
    ErrorResponse,
    InvalidMessage,
    Message,
    Request,
    RequestId,
    Response,
    encode_whole,
    parse_message,
)
from mcproxy.protocol.sse import Event, EventTooLarge
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation, conversing, has_answer, messages
from mcproxy.upstream.handshake.dialect import HandshakeDialect
from mcproxy.upstream.http.requester import ExtraHeaders, Requester, connection_pool
from mcproxy.upstream.http.responses import (
    AUTHENTICATION,
    EVENTS,
    JSON,
    TRANSIENT,
    IncomingEvents,
    quotable,
    read_body,
    read_prefix,
    refuses_version,
)
from mcproxy.upstream.http.responses import UpstreamResponse as HttpResponse
from mcproxy.upstream.link import Link, NotAccepted, Rejected

SESSION: Final = "Mcp-Session-Id"
VERSION: Final = "MCP-Protocol-Version"
LAST_EVENT: Final = "Last-Event-ID"
MAX_RESUMPTIONS: Final = 5
"""Fruitless resumptions of one response stream in a row, for a server that did not ask to be polled."""
STABLE_AFTER: Final = 5.0
"""Seconds after which a listening stream counts as stable: when it ends, it is reopened after the first delay."""
SHORTEST_POLL: Final = 0.1
"""Seconds between two polls at least, whatever the server asks for."""

ACCEPTED: Final = 202

_SESSION_ID: Final = re.compile(r"[\x21-\x7e]{1,4096}")
_EVENT_ID: Final = re.compile(r"[^\x00-\x1f\x7f]{1,4096}")
"""Ids that a header can hold. From any other, and from an empty one (WHATWG HTML, 9.2), no stream can be resumed."""
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
        streamable = _Streamable(context, Requester(http, context))
        async with conversing(context, HandshakeDialect(context), streamable) as conversation:
            yield conversation


class Position(msgspec.Struct, frozen=True):
    """How far an event stream has been read, and how long its server asks us to wait before resuming it."""

    last_id: str | None = None
    retry: float | None = None
    """Seconds."""

    def after(self, event: Event) -> Position:
        """The position once `event` was read."""
        if event.id is None and event.retry is None:
            return self
        retry = self.retry if event.retry is None else event.retry / 1000
        if event.id is None:
            return Position(self.last_id, retry)
        return Position(event.id if _EVENT_ID.fullmatch(event.id) else None, retry)

    def wait(self, failures: int) -> float:
        """Seconds until the stream is resumed: as the server asked, else by the number of failures in a row."""
        # transports, 2025-11-25: "The client MUST respect the `retry` field"
        return backoff.delay(failures) if self.retry is None else max(self.retry, SHORTEST_POLL)


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


class _Streamable:
    """Implements `conversation.Transport`; owns the session id."""

    carries_exchanges = True

    def __init__(self, context: LinkContext, requester: Requester) -> None:
        assert context.spec.url is not None
        self._url = URL(context.spec.url)
        self._context = context
        self._requester = requester
        self._session: str | None = None
        self._post_headers: ExtraHeaders | None = None
        self._channel = PushChannel.RESTORED
        self._is_pinging = False
        """Whether it is being asked if the session still works."""
        self._due: set[RequestId] = set()
        """Requests that were only accepted: their answers are due on the GET stream."""

    def attach(self, conversation: Conversation) -> None:
        self._conversation = conversation

    async def receive(self) -> None:
        await self._conversation.opened.wait()
        await self._listen()

    def note_unanswered(self) -> None:
        """A server that hangs is not told from a busy one."""

    async def close(self, *, politely: bool) -> None:
        """Deletes the session, if there is one that the server still knows."""
        if not politely or self._session is None:
            return
        with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
            try:
                response = await self._requester.request("DELETE", self._url, self._headers())
                response.close()
            except (NotAccepted, PeerGone, Rejected):
                return

    def send(self, message: Message) -> Awaitable[None]:
        return self._exchange(message) if isinstance(message, Request) else self._post_message(message)

    async def _post_message(self, message: Message) -> None:
        response = await self._request("POST", self._headers_of_post(), encode_whole(message))
        try:
            if not response.ok:
                await self._refused(response, None)
        finally:
            response.release()

    async def _exchange(self, request: Request) -> None:
        """POSTs a request, and reads its response until it is answered (transports, Sending Messages)."""
        try:
            response = await self._requester.request("POST", self._url, self._headers_of_post(), encode_whole(request))
            try:
                if self._session is None:
                    self._keep_session(response)
                head = response.body.head
                if head.status < 400 and head.content_type == JSON:
                    body = await read_body(response, self._context.spec.max_message_bytes)
                    found = messages(body, request.id, batches=True)
                    if len(found) > 1:
                        await self._take_all(found[:-1], request.id)
                    self._take_last(found[-1], request.id)
                else:
                    await self._take_other(response, request.id)
            finally:
                if not response.body.is_complete:
                    response.finish(reusable=self._conversation.is_answered(request.id))
        except (NotAccepted, PeerGone, Rejected) as error:
            self._conversation.fail(request.id, error)
            broke = isinstance(error, PeerGone) or (isinstance(error, Rejected) and (error.status or 0) >= 500)
            is_open = self._conversation.version is not None and not self._conversation.is_closed
            if broke and is_open and not self._is_pinging:
                self._conversation.tasks.start_soon(self._drain_unless_answered)

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

    async def _take_all(self, found: Sequence[Message | InvalidMessage], id: RequestId) -> None:
        """Takes several messages of a response, as a batch."""
        await self._conversation.take_batch([self._checked(message, id) for message in found], id)

    def _take_last(self, message: Message | InvalidMessage, id: RequestId) -> None:
        self._conversation.take(message if isinstance(message, Response) else self._checked(message, id), id)
        if not self._conversation.settled(id):
            raise PeerGone("the response holds no answer to the request")

    def _checked(self, message: Message | InvalidMessage, id: RequestId) -> Message | InvalidMessage:
        """`message`; an error without an id counts as that of request `id`.

        Raises NotAccepted if the session is lost.
        """
        if not isinstance(message, ErrorResponse) or message.id == id:
            return message
        if session_is_lost(200, b"", message, had_session=self._session is not None):
            raise self._session_lost(message.error.message)
        return replace(message, id=id if message.id is None else message.id)

    async def _take_other(self, response: HttpResponse, id: RequestId) -> None:
        """Takes a response other than a JSON success."""
        if not response.ok:
            await self._refused(response, id)
        elif response.content_type == EVENTS:
            position = await self._follow(response, id, Position())
            await self._resume(id, position)
        elif response.status == ACCEPTED and self._conversation.version is not None:
            await self._await_elsewhere(response, id)
        else:
            raise self._requester.rejection(response, await read_prefix(response))

    async def _await_elsewhere(self, response: HttpResponse, id: RequestId) -> None:
        """Has the answer to a request that was only accepted come on the GET stream. Raises PeerGone if there is none.

        Transports, Sending Messages, has that status for what is not answered, and Listening for Messages forbids such
        answers. But clients of the first official SDKs take an answer wherever it comes, so such servers exist.
        """
        await read_prefix(response)
        if self._channel is PushChannel.LOST:
            raise _unanswered()
        self._due = {each for each in self._due if not self._conversation.settled(each)} | {id}

    async def _follow(self, response: HttpResponse, id: RequestId | None, position: Position) -> Position:
        """Reads an event stream to its end, or to the answer to `id`; returns the position reached."""
        try:
            async for batch in IncomingEvents(response.body, self._context.spec.max_message_bytes):
                for event in batch:
                    position = position.after(event)
                    if event.data and event.event == "message":
                        taken = self._conversation.receive(event.data, id)
                        if taken is not None:
                            await taken
                if id is not None and self._conversation.settled(id):
                    break
        except EventTooLarge as error:
            raise Rejected(f"{error} (max_message_bytes)") from error
        except ConnectionBroken:
            return position  # As at an orderly end, only whether the answer was there matters.
        return position

    async def _resume(self, id: RequestId, position: Position) -> None:
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
                reached = await self._follow(response, id, position)
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
            position = await self._follow(response, None, position)
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
        return await self._request("GET", (*self._headers(), ("Accept", EVENTS), *resumption))

    async def _request(self, method: str, headers: ExtraHeaders, body: bytes | None = None) -> HttpResponse:
        try:
            return await self._requester.request(method, self._url, headers, body)
        except NotAccepted as unreachable:
            self._conversation.drain(str(unreachable))
            raise

    def _headers_of_post(self) -> ExtraHeaders:
        """The headers of a POST: the same for all messages once the handshake is done."""
        if self._post_headers is not None:
            return self._post_headers
        headers = (*self._headers(), ("Accept", f"{JSON}, {EVENTS}"), ("Content-Type", JSON))
        if self._conversation.version is not None:
            self._post_headers = headers
        return headers

    def _headers(self) -> ExtraHeaders:
        known = ((SESSION, self._session), (VERSION, self._conversation.version))
        return tuple((name, value) for name, value in known if value is not None)

    def _keep_session(self, response: HttpResponse) -> None:
        id = response.fields.get(SESSION.lower())
        if id is None or not response.ok:
            return
        if _SESSION_ID.fullmatch(id) is None:
            raise Rejected("its session id is too long, or has characters other than visible ASCII")
        self._session, self._post_headers = id, None

    async def _refused(self, response: HttpResponse, id: RequestId | None) -> None:
        """Handles an HTTP error: the answer to request `id` (R76), a lost session, an error, or no MCP at all."""
        body = await self._read_refusal(response, id)
        if id is not None and await self._take_answer(body, id):
            return
        error = _error_in(body)
        open = self._conversation.version is not None
        if open and session_is_lost(response.status, body, error, had_session=self._session is not None):
            raise self._session_lost(f"HTTP {response.status}")
        if open and id is not None and refuses_version(response.status, quotable(body)):
            rejection = self._requester.rejection(response, body)
            raise NotAccepted(f"it no longer speaks {self._conversation.version}: {rejection}")
        if open and response.status == 503:
            self._conversation.drain("the upstream is unavailable: HTTP 503")
            raise PeerGone(str(self._requester.rejection(response, body)))
        is_servers = response.status in range(400, 500) and response.status not in AUTHENTICATION
        if open and is_servers and error is not None and id is not None:
            self._conversation.take(replace(error, id=id), id)
            return
        raise self._requester.rejection(response, body)

    async def _read_refusal(self, response: HttpResponse, id: RequestId | None) -> bytes:
        """The body of an HTTP error; only its beginning if it cannot be the answer to request `id`."""
        if id is not None and response.content_type == JSON:
            return await read_body(response, self._context.spec.max_message_bytes)
        if id is not None and response.content_type == EVENTS:
            await self._follow(response, id, Position())
            if not self._conversation.settled(id):
                raise PeerGone(f"HTTP {response.status}, and its event stream ended without the response")
            return b""
        return await read_prefix(response)

    async def _take_answer(self, body: bytes, id: RequestId) -> bool:
        """Takes the messages of a body if one is the answer to request `id`; returns whether `id` is answered."""
        found = messages(body, batches=True) if body else ()
        if has_answer(found, id):
            await self._conversation.take_batch(found, id)
        return self._conversation.settled(id)

    def _session_lost(self, how: str) -> NotAccepted:
        reason = f"the upstream lost the session: {how}"
        self._conversation.drain(reason)
        return NotAccepted(reason)


def _unanswered() -> PeerGone:
    return PeerGone("it accepted the request without an answer (HTTP 202), and has no event stream open for it")


def _is_event_stream(response: HttpResponse) -> bool:
    return response.ok and response.content_type == EVENTS


def _error_in(body: bytes) -> ErrorResponse | None:
    try:
        message = parse_message(body)
    except InvalidMessage:
        return None
    return message if isinstance(message, ErrorResponse) else None
