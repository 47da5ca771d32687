"""Streamable HTTP of the stateless era (2026-07-28): the question that finds such a server, and headers.

Has no session and resumes nothing; a request is cancelled by closing its response.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from http import HTTPStatus
from typing import Final

import anyio
from msgspec.structs import replace
from yarl import URL

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.concurrency.turns import in_turns
from mcproxy.http.client import ConnectionBroken
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.headers import standard_headers, subject_headers
from mcproxy.protocol.jsonrpc import (
    HEADER_MISMATCH,
    ErrorResponse,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    encode_whole,
)
from mcproxy.protocol.methods import METHODS, Kind, Method, Subject, row_of
from mcproxy.protocol.sse import EventTooLarge
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation, conversing, messages
from mcproxy.upstream.http.requester import ExtraHeaders, Requester, connection_pool
from mcproxy.upstream.http.responses import (
    AUTHENTICATION,
    EVENTS,
    JSON,
    TRANSIENT,
    IncomingEvents,
    first_bytes,
    quotable,
    read_body,
    read_prefix,
    refuses_version,
)
from mcproxy.upstream.http.responses import UpstreamResponse as HttpResponse
from mcproxy.upstream.leniency import Looks, is_message, look
from mcproxy.upstream.link import Link, NotAccepted, Rejected, Unreachable
from mcproxy.upstream.stateless.dialect import StatelessDialect
from mcproxy.upstream.stateless.parameter_headers import ParameterHeaders, next_page
from mcproxy.upstream.stateless.probe import QUESTION, Older, identity, is_modern, wants_handshake
from mcproxy.upstream.streamable import Position, StreamableHttp, error_in

_TOOLS: Final = Kind.TOOLS
REFETCHED_PAGES: Final = 100
"""Pages of a tool list that are read at most to find one definition."""


@asynccontextmanager
async def stateless_over_http(context: LinkContext, timeout: float) -> AsyncIterator[Link]:
    """A link to a server that answers the probe within `timeout` seconds in this era.

    Raises Older, Unreachable or Rejected.
    """
    context.awaited = QUESTION.method
    async with connection_pool(context) as http:
        requester, mirrored = Requester(http, context), ParameterHeaders(context.spec.name)
        dialect = StatelessDialect(context, await _probed(_Question(context, requester), timeout))
        streamable = StreamableHttp(context, requester, _Rules(mirrored))
        async with conversing(context, dialect, streamable) as conversation:
            yield _Mirroring(conversation, mirrored)


class _Question:
    """Sends `server/discover` as a POST, and takes the messages out of the response."""

    def __init__(self, context: LinkContext, requester: Requester) -> None:
        assert context.spec.url is not None
        self._url = URL(context.spec.endpoint.url)
        self.limit = context.spec.max_message_bytes
        """Bytes of a message."""
        self._requester = requester

    def post(self) -> Awaitable[HttpResponse]:
        """Raises NotAccepted, PeerGone or Rejected."""
        varying = subject_headers(row_of(QUESTION.method), QUESTION.params)
        return self._requester.request("POST", self._url, _HEADERS[QUESTION.method], encode_whole(QUESTION), varying)

    async def take_events(self, response: HttpResponse, receive: Callable[[bytes], bool], begun: bytes = b"") -> None:
        """Passes on each message of a response, until it ends or breaks off, or `receive` returns True.

        Raises Rejected.
        """
        try:
            async for batch in IncomingEvents(response.body, self.limit, begun):
                for event in batch:
                    if event.data and is_message(event) and receive(event.data):
                        return
        except EventTooLarge as error:
            raise Rejected(f"{error} (max_message_bytes)") from error
        except ConnectionBroken:
            return  # As at an orderly end, only whether the answer was there matters.

    async def read_refusal(self, response: HttpResponse, receive: Callable[[bytes], bool]) -> bytes:
        """The body of an HTTP error; an event stream is passed to `receive`, and returned as empty."""
        if response.content_type == JSON:
            return await read_body(response, self.limit)
        if response.content_type == EVENTS:
            await self.take_events(response, receive)
            return b""
        return await read_prefix(response)

    async def rejection(self, response: HttpResponse, body: bytes | None = None) -> Rejected:
        return self._requester.rejection(response, await read_prefix(response) if body is None else body)


def _headers(row: Method) -> ExtraHeaders:
    """The headers that all requests of a method share."""
    return (*standard_headers(LATEST, row, {}).items(), ("Accept", f"{JSON}, {EVENTS}"), ("Content-Type", JSON))


_HEADERS: Final = {name: _headers(row) for name, row in METHODS.items()}


async def _probed(question: _Question, timeout: float) -> ServerIdentity:
    try:
        with anyio.fail_after(timeout):
            response = await question.post()
            with closing(response):
                return identity(await _first_answer(question, response))
    except TimeoutError as error:
        raise Older(f"no answer to {QUESTION.method} after {timeout:g} s (probe)", undecided=True) from error
    except NotAccepted as error:
        raise Unreachable(f"{QUESTION.method}: {error}") from error
    except PeerGone as error:
        # Some servers of old hang up on a method that they do not know.
        raise Older(f"{QUESTION.method}: {error}", undecided=True) from error


async def _first_answer(question: _Question, response: HttpResponse) -> Response | ErrorResponse:
    """The answer to the probe, with any status (R76). Raises Older, PeerGone or Rejected."""
    answers: list[Response | ErrorResponse] = []

    def receive(data: bytes) -> bool:
        found = messages(data, batches=False)
        answers.extend(message for message in found if isinstance(message, Response | ErrorResponse))
        return bool(answers)

    if not response.ok:
        body = await question.read_refusal(response, receive)
        receive(body)
        return await _first_refusal(question, response, body, answers)
    begun = await first_bytes(response)
    looks = look(begun)
    if looks is Looks.JSON:
        receive(await read_body(response, question.limit, begun))
    elif looks is Looks.EVENTS or response.content_type == EVENTS:
        await question.take_events(response, receive, begun)
    else:
        raise Older(str(await question.rejection(response, await read_prefix(response, begun))))
    if not answers:
        raise Older(f"{QUESTION.method} was answered with no JSON-RPC response")
    return answers[0]


async def _first_refusal(
    question: _Question, response: HttpResponse, body: bytes, answers: Sequence[Response | ErrorResponse]
) -> Response | ErrorResponse:
    """Judges a refusal of the probe: the body of a 4xx decides; other statuses say nothing about the era.

    streamable-http, Backward Compatibility. Some servers of the handshake era, and gateways in front of them, answer a
    method that they do not know with 403, 429 or 5xx, as the Java SDK's without sessions do with 500.
    """
    results = [answer for answer in answers if isinstance(answer, Response)]
    if results:
        return results[0]
    if answers and _is_clients_fault(response.status):
        return answers[0]
    rejection = await question.rejection(response, body)
    if response.status == HTTPStatus.UNAUTHORIZED:
        raise rejection
    raise Older(str(rejection), undecided=not _is_clients_fault(response.status))


class _Mirroring:
    """Implements `link.Link`: a conversation with a server that may want parameters of tools in headers."""

    def __init__(self, conversation: Conversation, mirrored: ParameterHeaders) -> None:
        self.identity: Final = conversation.identity
        self._conversation = conversation
        self._mirrored = mirrored

    @property
    def is_closed(self) -> bool:
        return self._conversation.is_closed

    async def wait_closed(self) -> str:
        return await self._conversation.wait_closed()

    async def __call__(self, call: Call) -> Outcome:
        if self._mirrored.tools:
            await self._mirrored.check(call)
        outcome = await self._conversation(call)
        if call.row.lists is _TOOLS and isinstance(outcome, Complete):
            return replace(outcome, result=await in_turns(self._mirrored.note(outcome.result)))
        # Headers are checked before anything is executed, so that the call may be sent again (R4; Client Behavior).
        if type(outcome) is Failed and _lacks_headers(call, outcome) and await self._learn_headers(call):
            await self._mirrored.check(call)
            return await self._conversation(call)
        return outcome

    async def _learn_headers(self, call: Call) -> bool:
        """Fetches the list of tools; returns whether the call needs other headers than it had."""
        before = self._mirrored.headers(call.row, call.params)
        params: Params | None = {}
        for _ in range(REFETCHED_PAGES):
            if params is None:
                return False
            outcome = await self(replace(call, row=METHODS[Kind.TOOLS.list_method], params=params))
            if self._mirrored.headers(call.row, call.params) != before:
                return True
            params = next_page(outcome.result) if isinstance(outcome, Complete) else None
        return False


class _Rules:
    """Implements `streamable.HttpRules`: every request stands alone."""

    wants_heads = False

    def __init__(self, mirrored: ParameterHeaders) -> None:
        self._mirrored = mirrored

    def attach(self, http: StreamableHttp, conversation: Conversation) -> None:
        self._http, self._conversation = http, conversation

    async def receive(self) -> None:
        """Nothing arrives but in the responses to requests."""

    async def close(self) -> None:
        """There is no session to end."""

    def head(self, message: Message) -> tuple[ExtraHeaders, Mapping[str, str]]:
        assert isinstance(message, Request), "in this era the gateway sends nothing but requests over HTTP"
        row = row_of(message.method)
        varying = subject_headers(row, message.params)
        if self._mirrored.tools:
            varying |= self._mirrored.headers(row, message.params)
        return _HEADERS.get(row.name) or _headers(row), varying

    def note(self, response: HttpResponse) -> None:
        """The head says nothing that matters later."""

    def check(self, error: ErrorResponse) -> None:
        """There is no session that it could be about."""

    def note_refused(self, message: Notification, response: HttpResponse, body: bytes) -> None:
        """In this era the gateway sends no notifications over HTTP."""

    def failed(self, error: NotAccepted | PeerGone | Rejected) -> None:
        """A request that fails says nothing about others."""

    async def take_other(self, response: HttpResponse, id: RequestId, begun: bytes) -> None:
        raise self._http.rejection(response, await read_prefix(response, begun))

    async def resume(self, id: RequestId, position: Position) -> None:
        # streamable-http: "Resumable SSE streams via `Last-Event-ID` are not supported" (requirement R5).
        raise PeerGone("the response ended without the answer")

    async def judge(self, response: HttpResponse, body: bytes, request: Request | None) -> None:
        """An error without an id, a server of the handshake era, or no MCP at all."""
        rejection, error = self._http.rejection(response, body), error_in(body)
        if request is None or not _is_clients_fault(response.status):
            raise rejection
        if error is not None and is_modern(error.error, response.status):
            self._conversation.take(replace(error, id=request.id), request.id)
            return
        text = quotable(body)
        if wants_handshake(response.status, text) or refuses_version(response.status, text):
            # Replaced by a server of the handshake era, which executes nothing without a session.
            raise NotAccepted(f"it no longer speaks {LATEST}: {rejection}")
        raise rejection


def _is_clients_fault(status: int) -> bool:
    """Whether a status says that the request itself is at fault, so that the body explains it."""
    return 400 <= status < 500 and status not in AUTHENTICATION and status not in TRANSIENT


def _lacks_headers(call: Call, outcome: Failed) -> bool:
    return outcome.error.code == HEADER_MISMATCH and call.row.subject is Subject.TOOL
