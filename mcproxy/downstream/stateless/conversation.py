"""The server's side of one stateless request (2026-07-28), for every transport: checked, made a `Call`, answered.

Each request stands alone: nothing is inferred from another, and a client is asked nothing while its request runs.
Knows no transport; `subscriptions` serves the one request that stays open.
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
from mcproxy.call.identity import Caller, Principal
from mcproxy.downstream.io.context import TransportContext
from mcproxy.downstream.io.request_head import METHOD_FIELD, NAME_FIELD, VERSION_FIELD, RequestHead
from mcproxy.http import server as http
from mcproxy.protocol.capabilities import is_of_extension
from mcproxy.protocol.envelope import (
    LONGEST_REMEMBERED,
    META,
    SERVED_VERSIONS,
    InvalidEnvelope,
    check_version,
    dressed,
    read_envelope,
    server_meta,
    set_apart,
)
from mcproxy.protocol.eras import META_PROGRESS_TOKEN, Era
from mcproxy.protocol.headers import (
    METHOD,
    VERSION,
    HeaderMismatch,
    check_header,
    check_name,
    check_parameter_headers,
    encode_value,
    mirrored_name,
)
from mcproxy.protocol.inputs import INPUT_RESPONSES, REQUEST_STATE
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
    is_null,
    parse_text,
    raw,
)
from mcproxy.protocol.memo import remember_short
from mcproxy.protocol.methods import (
    DISCOVER,
    LOG_MESSAGE,
    PROGRESS,
    Answerer,
    Method,
    Subject,
    is_audible,
    row_of,
)

SendMessage = Callable[[Message], None]
"""Never blocks."""

_RESERVED: Final = range(-32099, -32019)
"""The codes that the specification keeps for itself (basic, "Error Codes")."""

_OF_RETRIES: Final = frozenset({INPUT_RESPONSES, REQUEST_STATE})

_EDGE: Final = Answerer.EDGE
_TOOL: Final = Subject.TOOL
_HANDSHAKE: Final = Era.HANDSHAKE


class ClientIntroduction(msgspec.Struct, frozen=True, eq=False):
    """What a `_meta` says of the client that sent it."""

    caller: Caller
    """The caller, without forwarded credentials."""
    meta: Raw | None
    """The other members of the `_meta`, which are passed to the upstream."""
    progress_token: RequestId | None


class Admitted(msgspec.Struct, frozen=True, eq=False):
    """A request that passed every check."""

    id: RequestId
    row: Method
    params: Params
    """Without the envelope."""
    caller: Caller
    progress_token: RequestId | None = None

    @property
    def stays_open(self) -> bool:
        """Whether it is `subscriptions/listen`, which is answered by a stream of changes."""
        return self.row.answerer is _EDGE


def admit(context: TransportContext, request: Request, principal: Principal, endpoint: str) -> Admitted:
    """Checks a request that came without HTTP headers: the envelope, then the version and the method.

    Raises McpError: -32602 for the envelope, -32022 for the version, -32601 for the method.
    """
    try:
        meta, token = set_apart(request.params)
        introduction = _introduced(meta, principal, endpoint, "stdio")
        row = row_of(request.method)
        _check_served(context, introduction.caller, row)
    except InvalidEnvelope as refusal:
        raise _refused(refusal.error) from refusal
    return _admitted(request, row, introduction, introduction.caller, token)


def admit_over_http(context: TransportContext, request: Request, fields: http.Headers, head: RequestHead) -> Admitted:
    """Checks as `admit` does, and between envelope and version the headers that mirror the body: -32020."""
    try:
        meta, token = set_apart(request.params)
        introduction = _introduced(meta, head.principal, head.endpoint, "http")
        caller = introduction.caller
        if head.credentials is not None:
            caller = replace(caller, credentials=head.credentials)
        row = row_of(request.method)
        _check_headers(context, caller, row, request, fields)
    except (InvalidEnvelope, HeaderMismatch) as refusal:
        raise _refused(refusal.error) from refusal
    return _admitted(request, row, introduction, caller, token)


def _admitted(
    request: Request, row: Method, introduction: ClientIntroduction, caller: Caller, token: RequestId | None
) -> Admitted:
    params = dict(request.params)
    if introduction.meta is None:
        del params[META]
    else:
        params[META] = introduction.meta
    if INPUT_RESPONSES in params or REQUEST_STATE in params:
        params = {key: value for key, value in params.items() if key not in _OF_RETRIES or not is_null(value)}
    return Admitted(request.id, row, params, caller, introduction.progress_token if token is None else token)


def _refused(error: ErrorObject) -> McpError:
    return McpError(error.code, error.message, error.data)


# Most clients send the same `_meta` with each request, and what is known of a caller is found by its identity.
@remember_short(LONGEST_REMEMBERED)
def _introduced(meta: bytes, principal: Principal, endpoint: str, transport: str) -> ClientIntroduction:
    said, kept = read_envelope(meta)
    caller = Caller(
        principal,
        said.version,
        said.capabilities,
        said.info,
        endpoint,
        log_level=said.log_level,
        transport=transport,
    )
    return ClientIntroduction(caller, kept, said.progress_token)


async def respond(context: TransportContext, admitted: Admitted, send: SendMessage) -> None:
    """Runs a request: `send` gets its notifications, its answer last. Where it is cancelled, it sends nothing more."""
    client = _RequestClient(context, admitted, send)
    call = Call(admitted.row, admitted.params, admitted.caller, client, id=admitted.id)
    try:
        outcome = await context.handler(call)
    finally:
        client.closed = True
    send(answer(context, admitted, outcome))


def answer(context: TransportContext, admitted: Admitted, outcome: Outcome) -> Answer:
    """An outcome as a response of this era."""
    if isinstance(outcome, Complete):
        absent, own = _HINTED if admitted.row.hinted else _COMPLETE, _OWN_MEMBERS.get(admitted.row.name, {})
        return Response(admitted.id, dressed(outcome.result, absent, own, meta=_server_meta(context.proxy.name)))
    match outcome:
        case InputRequired(result=result) if admitted.row.may_ask:
            return Response(admitted.id, dressed(result, _INPUT_REQUIRED, {}, meta=_server_meta(context.proxy.name)))
        case InputRequired():
            # mrtr, Supported Requests: "MUST NOT ... on any other client requests".
            sentence = f"the upstream needs input for {admitted.row.name}, which may not ask for any"
            return ErrorResponse(admitted.id, ErrorObject(INTERNAL_ERROR, sentence))
        case Failed(error=error):
            return ErrorResponse(admitted.id, ErrorObject(_current_code(error.code), error.message, error.data))
        case _:
            assert_never(outcome)


@lru_cache(1)
def _server_meta(name: str) -> Raw:
    """What every result says of the gateway."""
    return server_meta({"name": name, "version": __version__})


_OWN_MEMBERS: Final[Mapping[str, Params]] = {DISCOVER: {"supportedVersions": raw(SERVED_VERSIONS)}}
"""Members that replace those of the core: which versions are served is known here."""

_COMPLETE: Final = first_level({"resultType": "complete"})
_HINTED: Final = first_level({"resultType": "complete", "ttlMs": 0, "cacheScope": "private"})
"""With the caching of a result that names none: usable once, by its caller alone (caching)."""
_INPUT_REQUIRED: Final = first_level({"resultType": "input_required"})


def _current_code(code: int) -> int:
    """`code` in this revision, which forbids older codes and those of another hop (basic, "Error Codes")."""
    if code == RESOURCE_NOT_FOUND:
        return INVALID_PARAMS
    if code in _RESERVED and code != MISSING_CLIENT_CAPABILITY:
        return INTERNAL_ERROR
    return code


def _check_headers(
    context: TransportContext, caller: Caller, row: Method, request: Request, fields: http.Headers
) -> None:
    """Checks that the headers agree with the body. Raises HeaderMismatch, and as `_check_served` does.

    The headers of a tool's own parameters are checked as far as its schema is known.
    """
    name = mirrored_name(row, request.params)
    get = fields.get
    written = None if name is None else encode_value(name)
    is_as_written = (
        get(VERSION_FIELD) == caller.version and get(METHOD_FIELD) == request.method and get(NAME_FIELD) == written
    )
    if is_as_written and not fields.has_repeated:
        _check_served(context, caller, row)
    else:
        # They are not spelt as we spell them, and may agree all the same. A version or method that is not served here
        # may have other rules for headers: it is refused as such before they are compared (Protocol Version Header).
        check_header(fields.all, VERSION, caller.version)
        check_version(caller.version)
        check_header(fields.all, METHOD, request.method)
        _check_served(context, caller, row)
        check_name(fields.all, name)
    if name is not None and row.subject is _TOOL:
        mirrored = context.mirrored(caller, name)
        if mirrored:
            check_parameter_headers(fields.all, mirrored, request.params.get("arguments"))


def _check_served(context: TransportContext, caller: Caller, row: Method) -> None:
    """Raises InvalidEnvelope for the version, and McpError for the method."""
    check_version(caller.version)
    passes = row.known or (is_of_extension(row.name) and context.passes(caller))
    if not passes or row.notification or row.era is _HANDSHAKE:
        raise McpError(METHOD_NOT_FOUND, f"Method not found: {row.name}")


def not_asked(request: InputRequest) -> McpError:
    """Why a client of this era is sent no request."""
    return McpError(INVALID_REQUEST, f"{request.method}: this client can be asked for input only in a result")


class _RequestClient(msgspec.Struct, eq=False):
    """The way back of one request (implements `call.clients.Client`), open until its outcome."""

    context: TransportContext
    admitted: Admitted
    send: SendMessage
    closed: bool = False

    def notify(self, method: str, params: Params) -> None:
        if self.closed:
            return
        adapt = _PARAMS_FOR_CLIENT.get(method)
        if adapt is None:
            passes = is_of_extension(method) and self.context.passes(self.admitted.caller)
            adapted = params if passes else None
        else:
            adapted = adapt(self.admitted, params)
        if adapted is not None:
            self.send(Notification(method, adapted))

    async def ask(self, request: InputRequest) -> Raw:
        # mrtr: input is requested in a result. A stage of the pipeline (`gateway.input`) turns this into one.
        raise not_asked(request)


def _with_token(admitted: Admitted, params: Params) -> Params | None:
    token = admitted.progress_token
    return None if token is None else {**params, META_PROGRESS_TOKEN: raw(token)}


def _if_audible(admitted: Admitted, params: Params) -> Params | None:
    # logging: the server "MUST NOT emit notifications/message for a request that does not include" a level.
    return params if is_audible(parse_text(params.get("level", b"")) or "", admitted.caller.log_level) else None


_PARAMS_FOR_CLIENT: Final[Mapping[str, Callable[[Admitted, Params], Params | None]]] = {
    PROGRESS: _with_token,
    LOG_MESSAGE: _if_audible,
}
"""Adapts a notification's params for this request; None where it does not get it.

A method that is not among them is passed on only if it belongs to an extension.
"""
