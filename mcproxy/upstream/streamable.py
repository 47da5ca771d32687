"""Streamable HTTP: each message is a POST, and the response to a request carries its whole exchange.

A `Transport` that knows no era: `HttpRules` say which headers a message has, and what a refusal means.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, Protocol

import anyio
import msgspec
from yarl import URL

from mcproxy.concurrency import backoff
from mcproxy.http.client import ConnectionBroken
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.jsonrpc import (
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Request,
    RequestId,
    encode_whole,
)
from mcproxy.protocol.sse import Event, EventDecoder, EventTooLarge
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation, has_answer, messages
from mcproxy.upstream.http.requester import ExtraHeaders, Requester
from mcproxy.upstream.http.responses import (
    EVENTS,
    JSON,
    IncomingEvents,
    UpstreamResponse,
    first_bytes,
    read_body,
    read_prefix,
)
from mcproxy.upstream.leniency import Looks, is_message, look
from mcproxy.upstream.link import NotAccepted, Rejected

NOTIFICATION_PATIENCE: Final = 3.0
"""Seconds for which the response to a notification is waited for; servers exist that never send one."""
SHORTEST_POLL: Final = 0.1
"""Seconds between two polls at least, whatever the server asks for."""

_OBJECT: Final = b"{"
_EVENT_ID: Final = re.compile(r"[^\x00-\x1f\x7f]{1,4096}")
"""Ids that a header can hold. From any other, and from an empty one (WHATWG HTML, 9.2), no stream can be resumed."""


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


class HttpRules(Protocol):
    """What differs between eras over Streamable HTTP. Each may raise NotAccepted, PeerGone or Rejected."""

    def attach(self, http: StreamableHttp, conversation: Conversation) -> None:
        """Gives it the transport that goes by it. Called once, before anything else."""

    def head(self, message: Message) -> tuple[ExtraHeaders, Mapping[str, str]]:
        """The headers of a POST: those that many share, and those that vary."""

    wants_heads: bool
    """Whether `note` is to be called."""

    def note(self, response: UpstreamResponse) -> None:
        """Notes what the head of the response to a request says."""

    def check(self, error: ErrorResponse) -> None:
        """As `Transport.check`."""

    async def take_other(self, response: UpstreamResponse, id: RequestId, begun: bytes) -> None:
        """Takes a success that is neither JSON nor an event stream, and of whose body `begun` was read."""

    async def resume(self, id: RequestId, position: Position) -> None:
        """Goes on with an event stream that ended before the answer to request `id`."""

    async def judge(self, response: UpstreamResponse, body: bytes, request: Request | None) -> None:
        """Judges an HTTP error that is not the answer to `request`, nor to any request if that is None."""

    def note_refused(self, message: Notification, response: UpstreamResponse, body: bytes) -> None:
        """Notes that a notification was answered with an HTTP error. Raises nothing."""

    def failed(self, error: NotAccepted | PeerGone | Rejected) -> None:
        """Notes that a request failed. Raises nothing."""

    async def receive(self) -> None:
        """Takes what the server sends outside of responses to POSTs, if it does."""

    async def close(self) -> None:
        """Takes leave of the server. Raises nothing."""


class Finished:
    """The end of a delivery, and the error that it ended with."""

    def __init__(self) -> None:
        self.event: Final = anyio.Event()
        self.error: NotAccepted | Rejected | None = None


class StreamableHttp:
    """Implements `conversation.Transport`."""

    carries_exchanges = True

    def __init__(self, context: LinkContext, requester: Requester, rules: HttpRules) -> None:
        assert context.spec.url is not None
        self._url = URL(context.spec.endpoint.url)
        self._context = context
        self._requester = requester
        self._rules = rules

    def attach(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._rules.attach(self, conversation)

    async def receive(self) -> None:
        await self._rules.receive()

    def note_unanswered(self) -> None:
        """A server that hangs is not told from a busy one."""

    async def close(self, *, politely: bool) -> None:
        if politely:
            await self._rules.close()

    def send(self, message: Message) -> Awaitable[None]:
        if isinstance(message, Request):
            return self._exchange(message)
        return self._notify(message) if isinstance(message, Notification) else self._post(message)

    async def _post(self, message: Message) -> None:
        response = await self.request("POST", self._rules.head(message)[0], encode_whole(message))
        try:
            if not response.ok:
                body = await read_prefix(response)
                if isinstance(message, Notification):
                    self._rules.note_refused(message, response, body)
                else:
                    await self._rules.judge(response, body, None)
        finally:
            response.release()

    async def _notify(self, message: Notification) -> None:
        """Sends a notification. No answer to it ends anything, and one that does not come is not waited for long."""
        done = Finished()
        self._conversation.tasks.start_soon(self._deliver, message, done)
        with anyio.move_on_after(NOTIFICATION_PATIENCE):
            await done.event.wait()
        if done.error is not None:
            raise done.error

    async def _deliver(self, message: Notification, done: Finished) -> None:
        try:
            with anyio.move_on_after(self._context.spec.timeouts.idle):
                await self._post(message)
        except PeerGone:
            self._context.oddities.note("notification", "hangs up on notifications; accepted")
        except (NotAccepted, Rejected) as error:
            done.error = error
        finally:
            done.event.set()

    async def request(self, method: str, headers: ExtraHeaders, body: bytes | None = None) -> UpstreamResponse:
        """Sends what is no request of MCP; takes no more calls if there is no connection for it."""
        try:
            return await self._requester.request(method, self._url, headers, body)
        except NotAccepted as unreachable:
            self._conversation.drain(str(unreachable))
            raise

    def rejection(self, response: UpstreamResponse, body: bytes) -> Rejected:
        """The error for a response that is not MCP."""
        return self._requester.rejection(response, body)

    async def _exchange(self, request: Request) -> None:
        """POSTs a request, and reads its response until it is answered (transports, Sending Messages)."""
        rules, id = self._rules, request.id
        try:
            headers, varying = rules.head(request)
            response = await self._requester.request("POST", self._url, headers, encode_whole(request), varying)
            try:
                if rules.wants_heads:
                    rules.note(response)
                head = response.body.head
                if head.status < 400 and head.content_type == JSON:
                    body = await read_body(response, self._context.spec.max_message_bytes)
                    if body[:1] == _OBJECT:
                        taken = self._conversation.receive(body, id)
                        if taken is not None:
                            await taken
                    elif await self._took_odd(response, request, body):
                        return
                    if not self._conversation.settled(id):
                        raise PeerGone("the response holds no answer to the request")
                else:
                    await self._take_other(response, request)
            finally:
                if not response.body.is_complete:
                    response.finish(reusable=self._conversation.is_answered(id))
        except (NotAccepted, PeerGone, Rejected) as error:
            self._conversation.fail(id, error)
            rules.failed(error)

    async def _take_other(self, response: UpstreamResponse, request: Request) -> None:
        """Takes a response other than a JSON success."""
        if not response.ok:
            await self._refused(response, request)
            return
        begun = await first_bytes(response)
        looks, is_stream = look(begun), response.content_type == EVENTS
        if looks is Looks.JSON:
            self._note_type(response)
            body = await read_body(response, self._context.spec.max_message_bytes, begun)
            await self._take_all(body, request.id)
        elif is_stream or looks is Looks.EVENTS:
            if not is_stream:
                self._note_type(response)
            position = await self.follow(response, request.id, Position(), begun)
            if not self._conversation.settled(request.id):
                await self._rules.resume(request.id, position)
        else:
            await self._rules.take_other(response, request.id, begun)

    async def _took_odd(self, response: UpstreamResponse, request: Request, body: bytes) -> bool:
        """Takes a body that is called JSON and does not begin like an object; True if its answer comes elsewhere."""
        match look(body):
            case Looks.EVENTS:
                self._note_type(response)
                decoder = EventDecoder(len(body) + 1)
                events = decoder.feed(body)
                for event in (*events, *(last for last in (decoder.end(),) if last is not None)):
                    if is_message(event):
                        await self._take_all(event.data, request.id)
            case Looks.BLANK | Looks.PAGE:
                await self._rules.take_other(response, request.id, body)
                return True
            case _:
                await self._take_all(body, request.id)
        return False

    async def _take_all(self, data: bytes, id: RequestId) -> None:
        taken = self._conversation.receive(data, id)
        if taken is not None:
            await taken

    def _note_type(self, response: UpstreamResponse) -> None:
        type = response.content_type[:60]
        said = f"answers with Content-Type {type}" if type else "answers without Content-Type"
        self._context.oddities.note("content_type", f"{self._context.redact(said)}; accepted for what it is")

    def check(self, error: ErrorResponse) -> None:
        self._rules.check(error)

    async def follow(
        self, response: UpstreamResponse, id: RequestId | None, position: Position, begun: bytes = b""
    ) -> Position:
        """Reads an event stream to its end, or to the answer to `id`; returns the position reached."""
        try:
            async for batch in IncomingEvents(response.body, self._context.spec.max_message_bytes, begun):
                for event in batch:
                    position = position.after(event)
                    if is_message(event):
                        taken = self._conversation.receive(event.data, id)
                        if taken is not None:
                            await taken
                    elif event.data:
                        self._context.count_junk()
                if id is not None and self._conversation.settled(id):
                    break
        except EventTooLarge as error:
            raise Rejected(f"{error} (max_message_bytes)") from error
        except ConnectionBroken:
            return position  # As at an orderly end, only whether the answer was there matters.
        return position

    async def _refused(self, response: UpstreamResponse, request: Request) -> None:
        """Handles an HTTP error: the answer to `request` (R76), or whatever else."""
        body = await self._read_refusal(response, request.id)
        found = self._messages(body) if body else ()
        if has_answer(found, request.id):
            await self._conversation.take_batch(found, request.id)
        if not self._conversation.settled(request.id):
            await self._rules.judge(response, body, request)

    def _messages(self, body: bytes) -> Sequence[Message | InvalidMessage]:
        return messages(body, batches=self._conversation.reads_batches, oddities=self._conversation.context.oddities)

    async def _read_refusal(self, response: UpstreamResponse, id: RequestId) -> bytes:
        """The body of an HTTP error: only its beginning if it cannot be an answer, none of an event stream."""
        if response.content_type == JSON:
            return await read_body(response, self._context.spec.max_message_bytes)
        if response.content_type == EVENTS:
            await self.follow(response, id, Position())
            return b""
        return await read_prefix(response)


def error_in(body: bytes) -> ErrorResponse | None:
    """The one error in a body, whatever its id."""
    found = messages(body, batches=False)
    return found[0] if isinstance(found[0], ErrorResponse) else None
