"""The server's side of a handshake conversation (2024-11-05 to 2025-11-25), whatever carries it.

Takes one message of a client at a time: opens its session, answers what concerns the session alone, and makes a
`Call` of everything else, run in a task of its own or in its caller's. Knows no transport: what goes back goes to an
`Outlet`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, assert_never

import msgspec
from msgspec import Raw

from mcproxy import __version__
from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.identity import ForwardedCredentials, Principal
from mcproxy.downstream.handshake.session import Session
from mcproxy.downstream.handshake.session_ids import Opening, kept
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import Incoming
from mcproxy.downstream.io.shutdown import CUT_OFF, SHUTTING_DOWN
from mcproxy.protocol.envelope import META, undressed
from mcproxy.protocol.eras import HOP_META, META_PROGRESS_TOKEN, META_SERVER_INFO, negotiate
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Answer,
    ErrorObject,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    parse_id,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import CANCELLED, DISCOVER, LOG_MESSAGE, METHODS, PROGRESS, Answerer, row_of

_OPENING: Final = frozenset(row.name for row in METHODS.values() if row.opens)
_CALLS: Final = frozenset(
    row.name for row in METHODS.values() if not row.notification and row.answerer is not Answerer.EDGE
)


class Outlet(Protocol):
    """Where all that belongs to one request goes: it asks and notifies there, and is answered there."""

    def send(self, message: Message) -> None:
        """Never blocks. Raises channel.PeerGone where a request cannot be put to the client."""

    def finish(self) -> None:
        """Nothing follows; the answer, if there was one, has been sent."""


def opens(message: Incoming) -> bool:
    """Whether this is the request that opens a session."""
    return isinstance(message, Request) and message.method in _OPENING


async def greet(
    edge: TransportContext,
    sessions: SessionStore,
    request: Request,
    transport: str,
    principal: Principal,
    endpoint: str,
    credentials: ForwardedCredentials | None = None,
) -> tuple[Session, Response]:
    """Opens a session and answers `initialize` (lifecycle). Raises McpError.

    Waits for no upstream but those that `credentials` are for.
    """
    opening = _read_opening(request.params)
    session = sessions.open(transport, principal, endpoint, opening, credentials)
    greeted = False
    try:
        outcome = await edge.handler(Call(METHODS[DISCOVER], {}, session.caller, _Mute(), session))
        response = Response(request.id, _introduction(edge, opening.version, outcome))
        greeted = True
    finally:
        if not greeted:
            sessions.leave(session)
    return session, response


def receive(edge: TransportContext, session: Session, message: Message, outlet: Outlet) -> None:
    """Takes one message of an open session. Of these, a request alone uses `outlet`, and always finishes it."""
    match message:
        case Request():
            call = taken(session, message, outlet)
            if call is not None:
                session.begin(message.id, edge.tasks.create_task(carry_out(edge, session, message.id, call, outlet)))
        case _:
            take(edge, session, message)


def take(edge: TransportContext, session: Session, message: Notification | Response | ErrorResponse) -> None:
    """Takes one message of an open session that is owed no answer."""
    match message:
        case Notification():
            _take_notification(edge, session, message)
        case Response() | ErrorResponse():
            session.requests.settle(message)
        case _:
            assert_never(message)


def refuse(id: RequestId | None, refusal: McpError, outlet: Outlet) -> None:
    outlet.send(ErrorResponse(id, refusal.error()))
    outlet.finish()


def answer_early(request: Request) -> Answer:
    """What a request gets that comes before `initialize`: `ping` alone is served (lifecycle, Initialization)."""
    if request.method in _OWN_ANSWERS:
        return Response(request.id, _OWN_ANSWERS[request.method])
    sentence = f"{request.method} before initialize: open a session first"
    return ErrorResponse(request.id, ErrorObject(INVALID_REQUEST, sentence))


_OWN_ANSWERS: Final[dict[str, Params]] = {"ping": {}}


def taken(session: Session, request: Request, outlet: Outlet) -> Call | None:
    """The call that a request is, to be carried out; None where it has been answered already."""
    try:
        if request.method in _CALLS:
            return _call(session, request, outlet)
        own = _own_answer(request)
    except McpError as refusal:
        refuse(request.id, refusal, outlet)
        return None
    outlet.send(Response(request.id, own))
    outlet.finish()
    return None


def _own_answer(request: Request) -> Params:
    """The answer to what is no call. Raises McpError."""
    if request.method in _OWN_ANSWERS:
        return _OWN_ANSWERS[request.method]
    if request.method in _OPENING:
        raise McpError(INVALID_REQUEST, f"{request.method} again: this session is open already")
    raise McpError(METHOD_NOT_FOUND, f"Method not found: {request.method}")


def _call(session: Session, request: Request, outlet: Outlet) -> Call:
    """Raises McpError where it cannot be one now."""
    if session.draining:
        raise McpError(INTERNAL_ERROR, SHUTTING_DOWN, reason=Reason.UNAVAILABLE)
    if request.id in session.calls:
        raise McpError(INVALID_REQUEST, f"the id {request.id!r} is that of a request still in flight")
    if session.full:
        raise McpError(INTERNAL_ERROR, "busy: too many calls at once (max_calls_per_session)")
    params, token = request.params, None
    if META in params:
        params, token = _without_hop_meta(params)
    client = _SessionClient(session, outlet, token)
    return Call(row_of(request.method), params, session.caller, client, session, id=request.id)


async def carry_out(edge: TransportContext, session: Session, id: RequestId, call: Call, outlet: Outlet) -> None:
    """Carries out a call that was `taken` and that the session has begun, to its end."""
    way = call.client
    assert isinstance(way, _SessionClient)
    answer: Answer | None = None
    try:
        answer = _answer(id, await edge.handler(call))
    finally:
        way.closed = True
        # cancellation: "SHOULD NOT send a response for the cancelled request"; this one its client did not cancel.
        if answer is None and session.abandoned:
            answer = ErrorResponse(id, ErrorObject(INTERNAL_ERROR, CUT_OFF))
        if answer is not None:
            outlet.send(answer)
        # Before the session, which may hang up: a batch is put on its way by this.
        outlet.finish()
        session.finish(id)


def _answer(id: RequestId, outcome: Outcome) -> Answer:
    match outcome:
        case Complete(result=result):
            return Response(id, undressed(result))
        case Failed(error=error):
            return ErrorResponse(id, error)
        case InputRequired():
            sentence = "the upstream needs input that a client of this protocol version cannot give"
            return ErrorResponse(id, ErrorObject(INTERNAL_ERROR, sentence))
        case _:
            assert_never(outcome)


def _take_notification(edge: TransportContext, session: Session, notification: Notification) -> None:
    hear = _HEARD.get(notification.method)
    if hear is not None:
        hear(session, notification.params)
        return
    row = METHODS.get(notification.method)
    if row is None or not row.notification or session.draining or session.full:
        return
    try:
        params, _ = _without_hop_meta(notification.params)
    except McpError:
        return
    call = Call(row, params, session.caller, _Mute(), session)
    key = object()
    session.begin(key, edge.tasks.create_task(_pass_on(edge, session, key, call)))


async def _pass_on(edge: TransportContext, session: Session, key: object, call: Call) -> None:
    try:
        await edge.handler(call)
    finally:
        session.finish(key)


def _cancel(session: Session, params: Params) -> None:
    id = parse_id(params.get("requestId", b""))
    # cancellation, Error Handling: unknown ids are ignored; `initialize` is never among the calls.
    if id is not None and id in session.calls:
        session.calls[id].cancel()


def _take_progress(session: Session, params: Params) -> None:
    session.requests.progress(params)


_HEARD: Final[dict[str, Callable[[Session, Params], None]]] = {CANCELLED: _cancel, PROGRESS: _take_progress}
"""The notifications that concern the session alone."""


class _Mute:
    """A client that can be told and asked nothing: of a notification, or of a session that just opens."""

    def notify(self, method: str, params: Params) -> None:
        return

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, f"{request.method} outside of a client's request")


class _SessionClient(msgspec.Struct, eq=False):
    """The way back of one call (`call.clients.Client`)."""

    session: Session
    outlet: Outlet
    token: Raw | None
    closed: bool = False
    """Whether there is an outcome, after which nothing follows."""

    def notify(self, method: str, params: Params) -> None:
        if self.closed:
            return
        prepare = _PREPARED.get(method)
        prepared = params if prepare is None else prepare(self, params)
        if prepared is not None:
            self.outlet.send(Notification(method, prepared))

    async def ask(self, request: InputRequest) -> Raw:
        if self.closed:
            raise McpError(INVALID_REQUEST, f"{request.method} after the end of the call that it belongs to")
        return await self.session.ask_on(self.outlet.send, request)


def _with_token(way: _SessionClient, params: Params) -> Params | None:
    # progress: "only for requests that provided a progress token"; the token is the very bytes that the client sent.
    return None if way.token is None else {META_PROGRESS_TOKEN: way.token, **params}


def _if_audible(way: _SessionClient, params: Params) -> Params | None:
    return params if way.session.hears(parse_text(params.get("level", b"")) or "") else None


_PREPARED: Final[dict[str, Callable[[_SessionClient, Params], Params | None]]] = {
    PROGRESS: _with_token,
    LOG_MESSAGE: _if_audible,
}
"""What a notification's params become for this client, or that it does not get it (None)."""


def _without_hop_meta(params: Params) -> tuple[Params, Raw | None]:
    """The params without what belongs to this hop, and the progress token."""
    if "_meta" not in params:
        return params, None
    # Some clients write null for what they do not say.
    if _is_null(params["_meta"]):
        return {key: value for key, value in params.items() if key != "_meta"}, None
    meta = _object(params, "_meta")
    token = meta.get(META_PROGRESS_TOKEN)
    if token is not None and _is_null(token):
        token = None
    if token is not None and parse_id(token) is None:
        raise McpError(INVALID_PARAMS, "a progress token must be a string or an integer")
    rest = {key: value for key, value in meta.items() if key not in HOP_META}
    if len(rest) == len(meta):
        return params, None
    without = {key: value for key, value in params.items() if key != "_meta"}
    return ({**without, "_meta": raw(rest)} if rest else without), token


def _read_opening(params: Params) -> Opening:
    version = negotiate(parse_text(params.get("protocolVersion", b"")) or "")
    capabilities = _object(params, "capabilities") if "capabilities" in params else {}
    return kept(Opening(version, capabilities, params.get("clientInfo")))


def _introduction(edge: TransportContext, version: str, outcome: Outcome) -> Params:
    """An InitializeResult for what the gateway says of itself. Raises McpError where it says nothing."""
    if isinstance(outcome, Failed):
        error = outcome.error
        raise McpError(error.code, error.message, error.data, reason=outcome.reason)
    discovered = outcome.result
    meta = parse_object(discovered.get("_meta", EMPTY_OBJECT))
    itself = raw({"name": edge.proxy.name, "version": __version__})
    result = {
        "protocolVersion": raw(version),
        "capabilities": discovered.get("capabilities", EMPTY_OBJECT),
        "serverInfo": discovered.get("serverInfo") or meta.get(META_SERVER_INFO) or itself,
    }
    if "instructions" in discovered:
        result["instructions"] = discovered["instructions"]
    return result


def _is_null(value: Raw) -> bool:
    return bytes(value) == b"null"


def _object(params: Params, key: str) -> Params:
    try:
        return parse_object(params[key])
    except InvalidMessage as error:
        raise McpError(INVALID_PARAMS, f"the member {key!r} must be an object") from error
