"""The server's side of a handshake conversation (2024-11-05 to 2025-11-25), for every transport.

Takes one message at a time: opens the session, answers `ping` and its like itself, and makes a `Call` of every other
request. Knows no transport: answers and notifications go to an `Outlet`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, assert_never

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy import __version__
from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest, Notice
from mcproxy.call.errors import McpError, Party
from mcproxy.call.identity import ForwardedCredentials, Principal
from mcproxy.downstream.handshake.client_requests import NoClient
from mcproxy.downstream.handshake.session import Session, SessionState
from mcproxy.downstream.handshake.session_ids import Handshake, bounded
from mcproxy.downstream.handshake.session_store import SessionStore
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.inbound import is_initialize
from mcproxy.downstream.io.responses import cut_off, shutting_down
from mcproxy.protocol.capabilities import is_of_extension
from mcproxy.protocol.envelope import META, undressed, without_hop_meta
from mcproxy.protocol.eras import META_PROGRESS_TOKEN, META_SERVER_INFO, Era, negotiate
from mcproxy.protocol.inputs import INPUT_RESPONSES, REQUEST_STATE
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    Answer,
    ErrorObject,
    ErrorResponse,
    InvalidObject,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    is_null,
    nonnull,
    object_or_empty,
    parse_id,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import (
    CANCELLED,
    DISCOVER,
    LOG_MESSAGE,
    METHODS,
    PROGRESS,
    SUBSCRIBE,
    Answerer,
    Shape,
    row_of,
    row_of_notification,
)
from mcproxy.protocol.older_content import WITH_OLDER_CONTENT, in_older_content
from mcproxy.protocol.tasks import TASK, Dialect, created

_CALLS: Final = frozenset(
    row.name
    for row in METHODS.values()
    if not row.notification and row.answerer is not Answerer.EDGE and row.era is not Era.STATELESS
)


_SUBSCRIBE: Final = METHODS[SUBSCRIBE]
_MEANT_OTHERWISE: Final = frozenset({TASK, INPUT_RESPONSES, REQUEST_STATE})
_NULL: Final = Raw(b"null")


class Outlet(Protocol):
    """Takes every message to the client that belongs to one request: notifications, questions and the answer."""

    def send(self, message: Message) -> None:
        """Never blocks. Raises PeerGone where a question cannot be put to the client."""

    def finish(self) -> None:
        """Ends the outlet: the answer was sent, or there is none."""


async def open_session(
    context: TransportContext,
    sessions: SessionStore,
    request: Request,
    transport: str,
    principal: Principal,
    endpoint: str,
    credentials: ForwardedCredentials | None = None,
) -> tuple[Session, Response]:
    """Opens a session and answers `initialize` (lifecycle). Raises McpError.

    Waits only for upstreams that take `credentials`.
    """
    handshake = _read_handshake(request.params)
    session = sessions.open(transport, principal, endpoint, handshake, credentials)
    opened = False
    try:
        outcome = await context.handler(Call(METHODS[DISCOVER], {}, session.caller, NoClient(), session))
        response = Response(request.id, _initialize_result(context, handshake.version, outcome))
        opened = True
    finally:
        if not opened:
            sessions.leave(session)
    return session, response


def receive(context: TransportContext, session: Session, message: Message, outlet: Outlet) -> None:
    """Takes one message of an open session. Only a request uses `outlet`, and always finishes it."""
    match message:
        case Request():
            call = call_or_answer(context, session, message, outlet)
            if call is not None:
                session.begin(
                    message.id, context.tasks.create_task(run_call(context, session, message.id, call, outlet))
                )
        case _:
            receive_unanswered(context, session, message)


def receive_unanswered(
    context: TransportContext, session: Session, message: Notification | Response | ErrorResponse
) -> None:
    """Takes a message of an open session that gets no answer."""
    match message:
        case Notification():
            _take_notification(context, session, message)
        case Response() | ErrorResponse():
            session.requests.settle(message)
        case _:
            assert_never(message)


def send_error(id: RequestId | None, refusal: McpError, outlet: Outlet) -> None:
    """Answers a request with an error, and finishes its outlet."""
    outlet.send(ErrorResponse(id, refusal.error()))
    outlet.finish()


def answer_before_initialize(request: Request) -> Answer:
    """The answer to a request before `initialize`: only `ping` is served (lifecycle, Initialization)."""
    if request.method in _OWN_ANSWERS:
        return Response(request.id, _OWN_ANSWERS[request.method])
    sentence = f"{request.method} before initialize: open a session first"
    return ErrorResponse(request.id, ErrorObject(INVALID_REQUEST, sentence))


_OWN_ANSWERS: Final[dict[str, Params]] = {"ping": {}}


def call_or_answer(context: TransportContext, session: Session, request: Request, outlet: Outlet) -> Call | None:
    """The call to run for a request; None if the request was answered at once."""
    try:
        if request.method in _CALLS or (is_of_extension(request.method) and context.passes(session.caller)):
            return _call(session, request, outlet)
        own = _own_answer(request)
    except McpError as refusal:
        send_error(request.id, refusal, outlet)
        return None
    outlet.send(Response(request.id, own))
    outlet.finish()
    return None


def _own_answer(request: Request) -> Params:
    """The answer to a request that concerns the session alone. Raises McpError."""
    if request.method in _OWN_ANSWERS:
        return _OWN_ANSWERS[request.method]
    if is_initialize(request):
        raise McpError(INVALID_REQUEST, f"{request.method} again: this session is open already")
    raise McpError(METHOD_NOT_FOUND, f"Method not found: {request.method}")


def _call(session: Session, request: Request, outlet: Outlet) -> Call:
    """The call for a request. Raises McpError if the session takes no call, or not this one."""
    if not session.is_open:
        raise shutting_down()
    if request.id in session.calls:
        raise McpError(INVALID_REQUEST, f"the id {request.id!r} is that of a request still in flight")
    if session.full:
        raise McpError(INTERNAL_ERROR, "busy: too many calls at once (max_calls_per_session)")
    params, token = request.params, None
    if META in params:
        params, token = _set_apart(params)
    row = row_of(request.method)
    if row.known and not _MEANT_OTHERWISE.isdisjoint(params):
        params = {key: value for key, value in params.items() if not _is_void(key, value)}
    client = _SessionClient(session, outlet, token)
    return Call(row, params, session.caller, client, session, id=request.id)


def _is_void(key: str, value: Raw) -> bool:
    """Returns whether a member of params is as if left out.

    That is a task that is null, as some clients write it, and what retries have in the stateless era: its servers would
    take it for answers to their own questions, and for the state that they gave.
    """
    return key in (INPUT_RESPONSES, REQUEST_STATE) or (key == TASK and is_null(value))


async def run_call(context: TransportContext, session: Session, id: RequestId, call: Call, outlet: Outlet) -> None:
    """Runs a call that the session has begun, and sends its answer."""
    client = call.client
    assert isinstance(client, _SessionClient)
    answer: Answer | None = None
    try:
        outcome = await context.handler(call)
        if call.row is _SUBSCRIBE and isinstance(outcome, Complete) and not session.subscribed:
            _note_subscribed(context, session)
        answer = _answer(id, call, outcome)
        if TASK in call.params and isinstance(outcome, Complete) and created(Dialect.CORE, outcome.result) is not None:
            client.outlive_call()
    finally:
        client.closed = True
        # cancellation: "SHOULD NOT send a response for the cancelled request"; here the client did not cancel it.
        if answer is None and session.state is SessionState.CUT_OFF:
            answer = cut_off(id)
        if answer is not None:
            outlet.send(answer)
        # Before the session, which may close its stream: finishing the outlet may send a batch.
        outlet.finish()
        session.finish(id)


def _note_subscribed(context: TransportContext, session: Session) -> None:
    session.subscribed = True
    if session.caller.session is not None and session.has_id:
        context.subscribers.add(session.caller.session, session.issued)


def _answer(id: RequestId, call: Call, outcome: Outcome) -> Answer:
    if isinstance(outcome, Complete):
        result = undressed(outcome.result)
        if call.caller.version in WITH_OLDER_CONTENT:
            result = in_older_content(call.caller.version, call.row.shape, result)
        return Response(id, result)
    match outcome:
        case Failed(error=error, party=party):
            return ErrorResponse(id, _older(call, error) if party is Party.UPSTREAM else error)
        case InputRequired():
            sentence = "the upstream needs input that a client of this protocol version cannot give"
            return ErrorResponse(id, ErrorObject(INTERNAL_ERROR, sentence))
        case _:
            assert_never(outcome)


def _older(call: Call, error: ErrorObject) -> ErrorObject:
    """An upstream's error in these revisions, which have a code of its own for a resource that does not exist.

    resources, Error Handling: since 2026-07-28 the code is that of all invalid params, and `data` names the resource.
    """
    key = call.row.subject_key
    if error.code != INVALID_PARAMS or error.data is None or key is None or call.row.shape is not Shape.CONTENTS:
        return error
    named = parse_text(object_or_empty(error.data).get(key, b""))
    is_absent = named is not None and named == parse_text(call.params.get(key, b""))
    return replace(error, code=RESOURCE_NOT_FOUND) if is_absent else error


def _take_notification(context: TransportContext, session: Session, notification: Notification) -> None:
    handle = _OWN_NOTIFICATIONS.get(notification.method)
    if handle is not None:
        handle(session, notification.params)
        return
    row = row_of_notification(notification.method)
    if not row.notification or not session.is_open or session.full:
        return
    if not row.known and not (is_of_extension(row.name) and context.passes(session.caller)):
        return
    try:
        params, _ = _set_apart(notification.params)
    except McpError:
        return
    call = Call(row, params, session.caller, NoClient(), session)
    key = object()
    session.begin(key, context.tasks.create_task(_pass_on(context, session, key, call)))


async def _pass_on(context: TransportContext, session: Session, key: object, call: Call) -> None:
    try:
        await context.handler(call)
    finally:
        session.finish(key)


def _cancel(session: Session, params: Params) -> None:
    id = parse_id(params.get("requestId", b""))
    # cancellation, Error Handling: unknown ids are ignored; `initialize` is never among the calls.
    if id is not None and id in session.calls:
        session.calls[id].cancel()


def _take_progress(session: Session, params: Params) -> None:
    session.requests.progress(params)


_OWN_NOTIFICATIONS: Final[dict[str, Callable[[Session, Params], None]]] = {CANCELLED: _cancel, PROGRESS: _take_progress}
"""Notifications that concern the session alone, and are no calls."""


class _BetweenCalls:
    """The outlet of a call that became a task, for what is told of the task."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def send(self, message: Message) -> None:
        """Drops all but notifications, and all once the session takes no more calls."""
        if isinstance(message, Notification) and self._session.is_open:
            self._session.signal(Notice(message.method, message.params))

    def finish(self) -> None:
        return


class _SessionClient(msgspec.Struct, eq=False):
    """The way back of one call (implements `call.clients.Client`)."""

    session: Session
    outlet: Outlet
    token: Raw | None
    closed: bool = False
    """Whether the call has an outcome, after which nothing may follow but of a task that it became."""
    is_task: bool = False

    def outlive_call(self) -> None:
        """The call became a task, whose progress goes on the session's own stream from now on."""
        self.is_task, self.outlet = True, _BetweenCalls(self.session)

    def notify(self, method: str, params: Params) -> None:
        if self.closed and not self.is_task:
            return
        adapt = _PARAMS_FOR_CLIENT.get(method)
        adapted = params if adapt is None else adapt(self, params)
        if adapted is not None:
            self.outlet.send(Notification(method, adapted))

    async def ask(self, request: InputRequest) -> Raw:
        if self.closed:
            raise McpError(INVALID_REQUEST, f"{request.method} after the end of the call that it belongs to")
        return await self.session.ask_on(self.outlet.send, request)


def _with_token(client: _SessionClient, params: Params) -> Params | None:
    # progress: "only for requests that provided a progress token"; the token is the very bytes that the client sent.
    return None if client.token is None else {META_PROGRESS_TOKEN: client.token, **params}


def _if_audible(client: _SessionClient, params: Params) -> Params | None:
    return params if client.session.wants_log(parse_text(params.get("level", b"")) or "") else None


_PARAMS_FOR_CLIENT: Final[dict[str, Callable[[_SessionClient, Params], Params | None]]] = {
    PROGRESS: _with_token,
    LOG_MESSAGE: _if_audible,
}
"""Functions that adapt a notification's params for this client; None means that the client does not get it."""


def _set_apart(params: Params) -> tuple[Params, Raw | None]:
    """Splits params: those without the `_meta` keys of this hop, and the progress token."""
    if META not in params:
        return params, None
    meta = {} if is_null(params[META]) else _object(params, META)
    token = meta.get(META_PROGRESS_TOKEN)
    if token is not None and is_null(token):
        token = None
    if token is not None and parse_id(token) is None:
        raise McpError(INVALID_PARAMS, "a progress token must be a string or an integer")
    return without_hop_meta(params, meta), token


def _read_handshake(params: Params) -> Handshake:
    version = negotiate(parse_text(params.get("protocolVersion", b"")) or "")
    # Some clients send null for an absent member, at either level.
    given = {} if is_null(params.get("capabilities", _NULL)) else _object(params, "capabilities")
    capabilities = nonnull(given)
    return bounded(Handshake(version, capabilities, params.get("clientInfo")))


def _initialize_result(context: TransportContext, version: str, outcome: Outcome) -> Params:
    """The InitializeResult for the outcome of `server/discover`. Raises McpError if that failed."""
    if isinstance(outcome, Failed):
        error = outcome.error
        raise McpError(error.code, error.message, error.data, reason=outcome.reason)
    discovered = outcome.result
    meta = parse_object(discovered.get(META, EMPTY_OBJECT))
    itself = raw({"name": context.proxy.name, "version": __version__})
    result = {
        "protocolVersion": raw(version),
        "capabilities": discovered.get("capabilities", EMPTY_OBJECT),
        "serverInfo": discovered.get("serverInfo") or meta.get(META_SERVER_INFO) or itself,
    }
    if "instructions" in discovered:
        result["instructions"] = discovered["instructions"]
    return result


def _object(params: Params, key: str) -> Params:
    try:
        return parse_object(params[key])
    except InvalidObject as error:
        raise McpError(INVALID_PARAMS, f"the member {key!r} {error.flaw}") from error
