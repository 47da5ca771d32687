"""The server's side of one stateless request (2026-07-28), whatever carries it: admitted, made a `Call`, answered.

Each request stands alone: nothing is inferred from another, and a client is asked nothing while its request runs.
Knows no transport; `listening` serves the one request that stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, assert_never

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy import __version__
from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, ForwardedCredentials, Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.http import server as http
from mcproxy.protocol.envelope import (
    LONGEST_REMEMBERED,
    META,
    SERVED_VERSIONS,
    InvalidEnvelope,
    check_version,
    dressed,
    read,
    set_apart,
)
from mcproxy.protocol.eras import META_PROGRESS_TOKEN, Era
from mcproxy.protocol.headers import (
    HeaderMismatch,
    check_parameter_headers,
    check_standard_headers,
    mirrored_name,
)
from mcproxy.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CLIENT_CAPABILITY,
    RESOURCE_NOT_FOUND,
    Answer,
    ErrorObject,
    ErrorResponse,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    first_level,
    parse_text,
    raw,
)
from mcproxy.protocol.methods import (
    DISCOVER,
    LOG_MESSAGE,
    METHODS,
    PROGRESS,
    Answerer,
    Method,
    Subject,
    is_audible,
)

SendMessage = Callable[[Message], None]
"""Never blocks."""

_RESERVED: Final = range(-32099, -32019)
"""The codes that the specification keeps for itself (basic, "Error Codes")."""


class Admitted(msgspec.Struct, frozen=True, eq=False):
    """A request that may be served."""

    id: RequestId
    row: Method
    params: Params
    """Without the envelope."""
    caller: Caller
    progress_token: RequestId | None = None

    @property
    def stays_open(self) -> bool:
        """Whether it is answered by a stream of changes."""
        return self.row.answerer is Answerer.EDGE


def admit(
    context: TransportContext,
    request: Request,
    principal: Principal,
    endpoint: str,
    fields: http.Headers | None = None,
    credentials: ForwardedCredentials | None = None,
) -> Admitted:
    """The first checks, in the order of who is most to blame. `fields` are the HTTP headers, if any came.

    Raises McpError: -32602 for the envelope, -32020 for the headers, -32022 for the version, -32601 for the method.
    """
    try:
        introduction, token = _introduction(request.params, principal, endpoint, fields)
        caller = introduction.caller
        if credentials is not None:
            caller = replace(caller, credentials=credentials)
        row = _row(caller.version, request.method) if fields is None else _row_agreed(context, caller, request, fields)
    except (InvalidEnvelope, HeaderMismatch) as refusal:
        error = refusal.error
        raise McpError(error.code, error.message, error.data) from refusal
    params = dict(request.params)
    if introduction.meta is None:
        del params[META]
    else:
        params[META] = introduction.meta
    return Admitted(request.id, row, params, caller, token)


class _Introduction(msgspec.Struct, frozen=True, eq=False):
    """What a client says with its requests of itself."""

    said: Raw
    """The `_meta` that it said it by."""
    caller: Caller
    """But for the credentials that it brought, which are remembered nowhere."""
    meta: Raw | None
    """What else is in its `_meta`."""
    progress_token: RequestId | None


def _introduction(
    params: Params, principal: Principal, endpoint: str, fields: http.Headers | None
) -> tuple[_Introduction, RequestId | None]:
    """And the token of its progress. Raises InvalidEnvelope."""
    last = None if fields is None else fields.noted.get(_Introduction)
    if last is not None and last.said == params.get(META):
        caller = last.caller
        if caller.principal is principal and caller.endpoint == endpoint:
            return last, last.progress_token
    meta, token = set_apart(params)
    is_short = len(meta) <= LONGEST_REMEMBERED
    introduced = _introduced_again if is_short else _introduced
    introduction = introduced(meta, principal, endpoint, "stdio" if fields is None else "http")
    if fields is not None and is_short:
        fields.noted[_Introduction] = introduction
    return introduction, introduction.progress_token if token is None else token


def _introduced(meta: bytes, principal: Principal, endpoint: str, transport: str) -> _Introduction:
    said, kept = read(meta)
    caller = Caller(
        principal,
        said.version,
        said.capabilities,
        said.info,
        endpoint,
        log_level=said.log_level,
        transport=transport,
    )
    return _Introduction(Raw(meta), caller, kept, said.progress_token)


_introduced_again: Final = lru_cache(256)(_introduced)
"""Most clients say the same with each request; what is known of a caller is then found by its identity."""


async def respond(context: TransportContext, admitted: Admitted, send: SendMessage) -> None:
    """Carries out a request: what belongs to it goes to `send`, its answer last. Cancelled, it sends nothing more."""
    way = _RequestClient(admitted, send)
    call = Call(admitted.row, admitted.params, admitted.caller, way, id=admitted.id)
    try:
        outcome = await context.handler(call)
    finally:
        way.close()
    send(answer(context, admitted, outcome))


def answer(context: TransportContext, admitted: Admitted, outcome: Outcome) -> Answer:
    """An outcome as a client of this era is told it."""
    match outcome:
        case Complete(result=result):
            absent, own = _HINTED if admitted.row.hinted else _COMPLETE, _OWN_MEMBERS.get(admitted.row.name, {})
            return Response(admitted.id, dressed(result, absent, own, server=_implementation(context.proxy.name)))
        case InputRequired(result=result) if admitted.row.may_ask:
            return Response(
                admitted.id, dressed(result, _INPUT_REQUIRED, {}, server=_implementation(context.proxy.name))
            )
        case InputRequired():
            # mrtr, Supported Requests: "MUST NOT ... on any other client requests".
            sentence = f"the upstream needs input for {admitted.row.name}, which may not ask for any"
            return ErrorResponse(admitted.id, ErrorObject(INTERNAL_ERROR, sentence))
        case Failed(error=error):
            return ErrorResponse(admitted.id, ErrorObject(_current_code(error.code), error.message, error.data))
        case _:
            assert_never(outcome)


@lru_cache(1)
def _implementation(name: str) -> bytes:
    """By which every result says whose it is."""
    return bytes(raw({"name": name, "version": __version__}))


_OWN_MEMBERS: Final[Mapping[str, Params]] = {DISCOVER: {"supportedVersions": raw(SERVED_VERSIONS)}}
"""What the edge knows better than the core: which eras it serves."""

_COMPLETE: Final = first_level({"resultType": "complete"})
_HINTED: Final = first_level({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
"""With what a result says that says nothing of caching: usable once, by its caller alone (caching)."""
_INPUT_REQUIRED: Final = first_level({"resultType": "input_required"})


def _current_code(code: int) -> int:
    """`code` as this revision has it: no older one, nor one of another hop, MUST be emitted (basic, "Error Codes")."""
    if code == RESOURCE_NOT_FOUND:
        return INVALID_PARAMS
    if code in _RESERVED and code != MISSING_CLIENT_CAPABILITY:
        return INTERNAL_ERROR
    return code


class _Agreement(msgspec.Struct, frozen=True, eq=False):
    """Of what the fields of a head agreed with when they came last; most come again with the same."""

    version: str
    row: Method
    subject: Raw | None
    """As the body had it; None where it was none, which is then looked at each time."""
    name: str | None
    """The same, read."""


def _row_agreed(context: TransportContext, caller: Caller, request: Request, fields: http.Headers) -> Method:
    """The row of a request whose headers say what its body says. Raises HeaderMismatch, and what `_row` does.

    Those of a tool's own parameters are checked as far as they are known.
    """
    agreed = fields.noted.get(_Agreement)
    if (
        agreed is None
        or agreed.row.name != request.method
        or agreed.version != caller.version
        or (agreed.row.subject_key is not None and agreed.subject != request.params.get(agreed.row.subject_key))
    ):
        agreed = fields.noted[_Agreement] = _agreement(caller.version, request, fields)
    if agreed.name is not None and agreed.row.subject is Subject.TOOL:
        mirrored = context.mirrored(caller, agreed.name)
        if mirrored:
            check_parameter_headers(fields.all, mirrored, request.params.get("arguments"))
    return agreed.row


def _agreement(version: str, request: Request, fields: http.Headers) -> _Agreement:
    name = mirrored_name(request.method, request.params)
    check_standard_headers(fields.all, version, request.method, name)
    row = _row(version, request.method)
    subject = None if row.subject_key is None or name is None else request.params[row.subject_key].copy()
    return _Agreement(version, row, subject, name)


def _row(version: str, method: str) -> Method:
    """Raises InvalidEnvelope for the version, and McpError for the method."""
    check_version(version)
    row = METHODS.get(method)
    if row is None or row.notification or row.era is Era.HANDSHAKE:
        raise McpError(METHOD_NOT_FOUND, f"Method not found: {method}")
    return row


class _RequestClient:
    """The way back of one request (`call.clients.Client`), open until its outcome."""

    def __init__(self, admitted: Admitted, send: SendMessage) -> None:
        self.admitted = admitted
        self._send = send
        self._closed = False

    def notify(self, method: str, params: Params) -> None:
        prepare = _PREPARED.get(method)
        if self._closed or prepare is None:
            return
        prepared = prepare(self.admitted, params)
        if prepared is not None:
            self._send(Notification(method, prepared))

    async def ask(self, request: InputRequest) -> Raw:
        # mrtr: input is asked for in a result. A stage of the gateway makes one of this; without it there is no way.
        raise McpError(INVALID_REQUEST, f"{request.method}: this client can be asked by an answer alone")

    def close(self) -> None:
        self._closed = True


def _with_token(admitted: Admitted, params: Params) -> Params | None:
    token = admitted.progress_token
    return None if token is None else {**params, META_PROGRESS_TOKEN: raw(token)}


def _if_audible(admitted: Admitted, params: Params) -> Params | None:
    # logging: the server "MUST NOT emit notifications/message for a request that does not include" a level.
    return params if is_audible(parse_text(params.get("level", b"")) or "", admitted.caller.log_level) else None


_PREPARED: Final[Mapping[str, Callable[[Admitted, Params], Params | None]]] = {
    PROGRESS: _with_token,
    LOG_MESSAGE: _if_audible,
}
"""What a notification's params become for this request, or that it does not get it (None). No other belongs to one."""
