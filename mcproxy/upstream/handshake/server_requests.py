"""Requests of the server (sampling, elicitation, roots, ping): put to the client that caused them, or answered here.

A request that no client provably caused is answered from the settings or refused at once; none stays unanswered
(requirements R26, R60). A client's `ask` refuses requests that its client did not declare (R61).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, assert_never

import anyio
import msgspec
from msgspec import Raw

from mcproxy.call.clients import InputRequest, Listener
from mcproxy.call.errors import McpError
from mcproxy.pending_requests import PeerGone
from mcproxy.protocol.capabilities import is_of_extension, unknown_extensions
from mcproxy.protocol.envelope import META, without_hop_meta
from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.json.bounds import Bounded, TooMany, parse_array
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Params,
    Request,
    RequestId,
    Response,
    object_or_empty,
    parse_id,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import INPUT_CAPABILITIES
from mcproxy.protocol.tasks import TASK, related_task
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import UNKNOWN
from mcproxy.upstream.attribution import Ambiguous, Attributed, Attribution, SharedByPrincipals, Unsolicited
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Conversation
from mcproxy.upstream.link import NotAccepted, Rejected

_ANSWERED_HERE: Final = {"ping": EMPTY_OBJECT}


MAX_BLOCKS: Final = 10_000
"""Blocks of an answer that are looked at; a longer list passes as it is."""

_CONTENT: Final = "content"
_TEXT: Final = "text"


def with_single_block(version: str | None, answer: Params) -> Params:
    """An answer in the spelling of `version` (schema, CreateMessageResult); the same object if nothing changes."""
    if version is None or version >= V2025_11_25 or _CONTENT not in answer:
        return answer
    try:
        blocks = parse_array(answer[_CONTENT], MAX_BLOCKS)
    except (TooMany, msgspec.MsgspecError, RecursionError):
        return answer
    block = blocks[0] if len(blocks) == 1 else _joined(blocks)
    return answer if block is None else {**answer, _CONTENT: block}


def _joined(blocks: list[Raw]) -> Raw | None:
    """Several blocks of text as one; None where there are none, or others among them."""
    lines = [text for text in map(_text_of, blocks) if text is not None]
    return raw({"type": _TEXT, _TEXT: "\n".join(lines)}) if lines and len(lines) == len(blocks) else None


def _text_of(block: Raw) -> str | None:
    members = object_or_empty(block)
    return parse_text(members.get(_TEXT, b"")) if parse_text(members.get("type", b"")) == _TEXT else None


MAX_DATA: Final = 4 * 1024 * 1024
"""Bytes of the data of an error that is read."""


class _Required(msgspec.Struct):
    """The `data` of URLElicitationRequiredError; only the ids are read here."""

    elicitations: Raw


_required = Bounded(_Required)


class UrlElicitations:
    """The elicitations that are not complete; beyond `most`, the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listeners: dict[str, Listener] = {}

    def note(self, question: Params, listener: Listener | None) -> None:
        """Notes that `question` goes to the client of `listener`; ignores all but URL elicitations."""
        id = parse_text(question.get("elicitationId", b""))
        if id is None or listener is None:
            return
        self._listeners.pop(id, None)
        if len(self._listeners) >= self._most:
            del self._listeners[next(iter(self._listeners))]
        self._listeners[id] = listener

    def note_required(self, error: ErrorObject, listener: Listener | None) -> None:
        """Notes the elicitations that a URLElicitationRequiredError demands."""
        if error.code != URL_ELICITATION_REQUIRED or len(error.data or b"") > MAX_DATA:
            return
        try:
            listed = _required.decode(error.data or EMPTY_OBJECT).elicitations
            questions = [parse_object(question) for question in parse_array(listed, self._most)]
        except (msgspec.MsgspecError, InvalidMessage, RecursionError):
            return
        for question in questions:
            self.note(question, listener)

    def complete(self, params: Params) -> Listener | None:
        """The listener that a `notifications/elicitation/complete` is for; forgets the elicitation."""
        return self._listeners.pop(parse_text(params.get("elicitationId", b"")) or "", None)


class ReplyNow(msgspec.Struct, frozen=True):
    """The request is answered at once with this result."""

    result: Raw


class AskClient(msgspec.Struct, frozen=True):
    """`listener` is the same client between calls; `ids` are the requests in flight that wait for this one."""

    ask: Callable[[InputRequest], Awaitable[Raw]]
    request: InputRequest
    listener: Listener | None
    ids: tuple[RequestId, ...] = ()


class RefuseNow(msgspec.Struct, frozen=True):
    """The request is refused at once with this error."""

    error: McpError


Plan = ReplyNow | AskClient | RefuseNow


class _Open(msgspec.Struct, eq=False):
    """A request of the server that is not answered yet."""

    ids: tuple[RequestId, ...]
    """The calls that it was asked for; none where it may be asked without them, or its answer is there."""
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)
    is_taken_back: bool = False
    over: anyio.Event = msgspec.field(default_factory=anyio.Event)
    """Set once the client is asked no more."""


def plan(request: Request, attribution: Attribution, context: LinkContext, *, own_stream: bool) -> Plan:
    """Decides who answers `request`, from what is known when it arrives.

    `own_stream` says that it came on the response stream of the call that caused it.
    """
    if request.method in _ANSWERED_HERE:
        return ReplyNow(_ANSWERED_HERE[request.method])
    if request.method not in INPUT_CAPABILITIES and not _is_of_extension_of_client(request.method, attribution):
        return RefuseNow(McpError(METHOD_NOT_FOUND, f"unknown method: {request.method}"))
    try:
        meta = parse_object(request.params.get(META, EMPTY_OBJECT))
    except InvalidMessage as invalid:
        return RefuseNow(McpError(invalid.code, f"_meta: {invalid.reason}"))
    params = without_hop_meta(request.params, meta)
    if request.method in INPUT_CAPABILITIES:
        # tasks, Task Support and Handling: declaring none, we ignore that a request wants to be one; a client may not.
        params = {key: value for key, value in params.items() if key != TASK}
    question = InputRequest(request.method, params)
    configured = _configured(context)
    if not own_stream and request.method in configured:
        return ReplyNow(configured[request.method])
    if isinstance(attribution, Attributed):
        return AskClient(attribution.call.client.ask, question, attribution.call.listener, attribution.ids)
    if context.session is not None and context.session.listener is not None:
        return AskClient(context.session.listener.ask, question, context.session.listener)
    return RefuseNow(_refusal(request.method, attribution, context.spec))


def _is_of_extension_of_client(method: str, attribution: Attribution) -> bool:
    """Whether a method may belong to an extension that the client of the causing call declared."""
    if not isinstance(attribution, Attributed) or not is_of_extension(method):
        return False
    return bool(unknown_extensions(attribution.call.caller.capabilities))


def _configured(context: LinkContext) -> dict[str, Raw]:
    """The configured results for a shared link, by method.

    A server asks for roots at any time, above all right after the handshake, and keeps the answer for all its clients:
    a call that happens to run then did not provably cause it.
    """
    if not context.spec.roots or context.session is not None:
        return {}
    return {"roots/list": raw({"roots": [{"uri": uri} for uri in context.spec.roots]})}


def _refusal(
    method: str, attribution: Unsolicited | Ambiguous | SharedByPrincipals, spec: UpstreamSettings
) -> McpError:
    """Says why no client can be asked, and which setting would change that."""
    match attribution:
        case Unsolicited():
            cause = "no client's call is in flight that it could be for"
            remedy = f"`connection: session` for upstream {spec.name!r} gives each client a connection of its own"
        case Ambiguous():
            cause = "this connection is shared, and it cannot be told which client it is for"
            remedy = f"`connection: session` for upstream {spec.name!r} gives each client a connection of its own"
        case SharedByPrincipals():
            cause = "several principals share this connection, and it does not name the call that it is for"
            remedy = (
                f"`connection: principal` for upstream {spec.name!r} gives each principal a connection of its own, "
                "`connection: session` each client"
            )
        case _:
            assert_never(attribution)
    return McpError(INVALID_REQUEST, f"{method} refused: {cause}; {remedy}")


class ServerRequests:
    """The unanswered requests of one link; each is answered in a task of its own."""

    def __init__(self, conversation: Conversation, url_elicitations: UrlElicitations) -> None:
        self._conversation = conversation
        self._context = conversation.context
        self._tasks = conversation.tasks
        self._requests = conversation.requests
        self._send = conversation.send_in_time
        self._url_elicitations = url_elicitations
        self._open: dict[RequestId, _Open] = {}

    def take(self, request: Request, attribution: Attribution, *, own_stream: bool) -> None:
        """Begins to answer `request`; refuses one beyond `max_in_flight`.

        Drops and counts a request with an id in use, and requests of a server that does not read its refusals.
        """
        most = self._context.spec.max_in_flight
        if self._is_over(request.id):
            self._context.count_junk()
            return
        decided = plan(request, attribution, self._context, own_stream=own_stream)
        if request.method in INPUT_CAPABILITIES:
            self._context.asks = True
        if isinstance(decided, AskClient) and len(self._open) >= most:
            decided = RefuseNow(McpError(INTERNAL_ERROR, f"busy: {most} requests wait for answers (max_in_flight)"))
        if isinstance(decided, RefuseNow):
            self._count(request.method)
            if isinstance(attribution, SharedByPrincipals):
                self._context.note_asked_while_shared(request.method)
        # A task goes on without the call that waits for its result.
        ids = decided.ids if isinstance(decided, AskClient) and related_task(request.params) is None else ()
        self._begin(request.id, decided, ids)

    def refuse(self, id: RequestId, error: McpError) -> None:
        """Starts to answer a request that cannot be read. Drops one as `take` does."""
        if not self._is_over(id):
            self._begin(id, RefuseNow(error))

    def _is_over(self, id: RequestId) -> bool:
        return id in self._open or len(self._open) >= 2 * self._context.spec.max_in_flight

    def _begin(self, id: RequestId, decided: Plan, ids: tuple[RequestId, ...] = ()) -> None:
        request = self._open[id] = _Open(ids)
        self._tasks.start_soon(self._answer, id, decided, request)

    def cancel(self, params: Params) -> None:
        """Takes a `notifications/cancelled`: the request is no longer answered."""
        id = parse_id(params.get("requestId", b""))
        if id is not None and id in self._open:
            self._open[id].scope.cancel()

    async def take_back(self, call: RequestId) -> None:
        """Takes back from its client what was asked for a call that is given up, and for no other in flight."""
        asked = [request for request in self._open.values() if call in request.ids]
        asked = [request for request in asked if all(map(self._requests.settled, request.ids))]
        for request in asked:
            request.is_taken_back = True
            request.scope.cancel()
        for request in asked:
            await request.over.wait()

    async def _answer(self, id: RequestId, decided: Plan, request: _Open) -> None:
        try:
            with request.scope:
                reply = await self._reply(id, decided)
                request.ids = ()
                await self._send(reply)
            request.over.set()
            if request.is_taken_back:
                given_up = McpError(INVALID_REQUEST, "the call that asked was given up")
                await self._send(ErrorResponse(id, given_up.error()))
        except (NotAccepted, PeerGone, Rejected):
            return  # The server is gone: the link finds out by itself.
        finally:
            request.over.set()
            del self._open[id]

    async def _reply(self, id: RequestId, decided: Plan) -> Response | ErrorResponse:
        match decided:
            case ReplyNow(result=result):
                return Response(id, parse_object(result))
            case RefuseNow(error=error):
                return ErrorResponse(id, error.error())
            case AskClient(ask=ask, request=request, listener=listener, ids=ids):
                self._url_elicitations.note(request.params, listener)
                try:
                    with self._requests.held(ids):
                        answer = parse_object(await ask(request))
                        return Response(id, with_single_block(self._conversation.version, answer))
                except McpError as refusal:
                    return ErrorResponse(id, refusal.error())
            case _:
                assert_never(decided)

    def _count(self, method: str) -> None:
        label = method if method in INPUT_CAPABILITIES else UNKNOWN
        self._context.metrics.unattributed.labels(self._context.spec.name, label).inc()
