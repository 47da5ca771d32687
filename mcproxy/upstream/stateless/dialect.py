"""The stateless era (2026-07-28) as a `Dialect`: each request stands alone, in an envelope.

Answers itself the methods that this era has no request for. Asks no client: a server's request for input is an outcome
of the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcproxy.call.calls import Call, Complete, Failed, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, Timeouts
from mcproxy.protocol.capabilities import is_of_extension, unknown_extensions
from mcproxy.protocol.envelope import LONGEST_REMEMBERED, Envelope, put_on, without_hop_meta, wrap, written
from mcproxy.protocol.eras import LATEST, STATELESS_VERSIONS, Era
from mcproxy.protocol.inputs import INPUT_REQUESTS, REQUEST_STATE
from mcproxy.protocol.json.bounds import MAX_VALUES, check_values
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    UNSUPPORTED_PROTOCOL_VERSION,
    ErrorResponse,
    InvalidMessage,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    is_null,
    json_of,
    parse_id,
    parse_object,
    parse_text,
    raw,
)
from mcproxy.protocol.memo import remember_short
from mcproxy.protocol.methods import (
    CANCELLED,
    DISCOVER,
    INPUT_CAPABILITIES,
    LISTEN,
    LOG_MESSAGE,
    METHODS,
    PROGRESS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Method,
)
from mcproxy.protocol.tasks import DECLARED, EXTENSION, TASK, extensions, offer, shared_tasks
from mcproxy.upstream.attribution import Attributed
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Answering, Conversation, OnNotification
from mcproxy.upstream.link import NotAccepted
from mcproxy.upstream.stateless import probe as probing
from mcproxy.upstream.stateless.subscriptions import ListenStream, announced

FOREVER: Final = Timeouts(math.inf, math.inf)
"""The timeout of the listen stream once it is acknowledged: it lasts as long as its link."""

FIRST_LISTEN_TIMEOUT: Final = 1.0
"""Seconds that a new link waits for its listen stream; if it opens later, all lists count as changed."""


COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"


class Malformed(Exception):
    """A result that violates the specification. The text says how."""


class _InputRequestBody(msgspec.Struct):
    method: str
    params: Raw | UnsetType = UNSET


_COMPLETE: Final = raw(COMPLETE)
_ASKING: Final = frozenset({INPUT_REQUESTS, REQUEST_STATE})
_question = msgspec.json.Decoder(_InputRequestBody)
_state = msgspec.json.Decoder(str)


def read_result(result: Params, row: Method, extensions: Collection[str] = (), *, asks_more: bool = False) -> Outcome:
    """The outcome of a request of `row` with this result. Raises Malformed.

    `extensions` are those that client and server share: a result type that is unknown here may belong to one. With
    `asks_more` both have extensions that the gateway does not know, whose methods may ask for input.
    """
    # basic, ResultType: "clients MUST treat an absent `resultType` as complete".
    said = result.get("resultType")
    if said is None or said == _COMPLETE:
        return Complete(result)
    kind = parse_text(said)
    if kind is None:
        raise Malformed("its result is unreadable: its type is no string")
    if kind == INPUT_REQUIRED:
        return _wanted(result, row, asks_more=asks_more)
    if kind == TASK and not (row.deferrable and EXTENSION in extensions):
        # tasks extension, Capability Negotiation: only to clients that declared it, and only for such requests.
        raise Malformed(f"its result is a task, which is not allowed for {row.name} here")
    if kind != COMPLETE and not extensions:
        raise Malformed(f"its result is of an unknown type ({kind[:100]!r}), and no extension is shared with it")
    return Complete(result)


def _wanted(result: Params, row: Method, *, asks_more: bool) -> InputRequired:
    if not row.may_ask:
        raise Malformed(f"it asks for input, which is not allowed for {row.name}")
    result = {key: value for key, value in result.items() if key not in _ASKING or not is_null(value)}
    try:
        state = _state.decode(result[REQUEST_STATE]) if REQUEST_STATE in result else None
        asked = result.get(INPUT_REQUESTS, EMPTY_OBJECT)
        check_values(asked, MAX_VALUES)
        listed = parse_object(asked)
        questions = {key: _question.decode(question) for key, question in listed.items()}
        requests = {key: InputRequest(question.method, _params(question)) for key, question in questions.items()}
    except (msgspec.MsgspecError, InvalidMessage, RecursionError) as error:
        raise Malformed(f"it asks for input in a malformed way: {error}") from error
    methods = [question.method for question in questions.values()]
    unknown = next((method for method in methods if not _may_be_asked(method, asks_more=asks_more)), None)
    if unknown is not None:
        raise Malformed(f"it asks for something that no client can be asked for: {unknown[:100]!r}")
    if not questions and state is None:
        raise Malformed("it asks for input, with neither inputRequests nor a requestState")
    return InputRequired(requests, state, result)


def _may_be_asked(method: str, *, asks_more: bool) -> bool:
    return method in INPUT_CAPABILITIES or (asks_more and is_of_extension(method))


def _params(question: _InputRequestBody) -> Params:
    return {} if question.params is UNSET else without_hop_meta(parse_object(question.params))


class StatelessDialect:
    """Implements `conversation.Dialect`, with the server that `identity` names."""

    reads_batches = False
    cancels_by_closing = True
    answers_anywhere = False
    question: tuple[str, Params] = (DISCOVER, probing.QUESTION.params)

    def __init__(self, context: LinkContext, identity: ServerIdentity) -> None:
        self._context = context
        self._identity = identity
        self._conversation: Conversation
        self._extensions = extensions(identity.capabilities)
        self._has_unknown_extensions = bool(unknown_extensions(identity.capabilities))
        # tasks extension, Protocol Errors: a client that names tasks in a filter must have declared the extension.
        has_tasks = offer(identity.version, identity.capabilities) is not None
        self._listen_envelope = Envelope(LATEST, DECLARED, probing.OURSELVES.info) if has_tasks else probing.OURSELVES
        self._subscriptions = ListenStream(context, announced(identity.capabilities), self._listen)
        self.answered_here: Mapping[str, Answering] = {
            **_WITHOUT_REQUEST,
            SUBSCRIBE: self._subscriptions.subscribe,
            UNSUBSCRIBE: self._subscriptions.unsubscribe,
            LISTEN: self._subscriptions.listen,
        }
        self.notifications: Mapping[str, OnNotification] = {
            PROGRESS: self._on_progress,
            LOG_MESSAGE: self._on_log_message,
            CANCELLED: self._on_cancelled,
        }

    def attach(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._requests, self._calls = conversation.requests, conversation.calls
        self._names_requests = conversation.send_cancel is None
        """Whether each message comes in the response to the request that caused it."""

    async def identify(self) -> ServerIdentity:
        return self._identity

    async def start(self) -> None:
        """Opens the listen stream; waits for that FIRST_LISTEN_TIMEOUT at most."""
        tasks = self._conversation.tasks
        tasks.start_soon(self._subscriptions.run)
        await self._subscriptions.begin(FIRST_LISTEN_TIMEOUT)
        # In a task, which first runs once the link is published: earlier reports would be about no link.
        tasks.start_soon(self._subscriptions.report)

    async def notify(self, call: Call) -> Outcome:
        """A client's notification has no way upstream in this era."""
        return Complete({})

    def begin(self, id: RequestId, call: Call) -> None:
        if call.caller.log_level is not None or self._has_unknown_extensions:
            self._calls.begin(id, call)
        elif not self._names_requests:
            self._calls.note_principal(call)  # Log messages do not name their request then.

    def params(self, call: Call, id: RequestId) -> Params:
        """The params with an envelope that declares what the caller declared (basic, Per-request protocol fields).

        Capabilities for tasks of another revision are left out: they mean nothing in this one.
        """
        caller = call.caller
        declaration = _declaration(json_of(caller.capabilities), caller.version, caller.log_level)
        return put_on(call.params, declaration, id if call.row.may_ask else None)

    def outcome(self, call: Call, answer: Response | ErrorResponse) -> Outcome:
        if isinstance(answer, ErrorResponse):
            if answer.error.code == UNSUPPORTED_PROTOCOL_VERSION:
                # Not executed, and the server was replaced: the next link finds out which versions it speaks now.
                raise NotAccepted(f"it no longer speaks {self._identity.version}: {answer.error.message}")
            return Failed(self._context.redacted(answer.error), Party.UPSTREAM)
        try:
            if not self._extensions:
                return read_result(answer.result, call.row)
            asks = self._has_unknown_extensions and bool(unknown_extensions(call.caller.capabilities))
            return read_result(answer.result, call.row, self._shared_extensions(call.caller), asks_more=asks)
        except Malformed as malformed:
            return self._context.failed(call, str(malformed), Reason.PROTOCOL_ERROR)

    def _shared_extensions(self, caller: Caller) -> Collection[str]:
        """Extensions whose result types the client knows; handshake revisions have no result types."""
        if caller.version not in STATELESS_VERSIONS:
            return ()
        return extensions(caller.capabilities).keys() & self._extensions.keys()

    def note_task(self, id: RequestId | None, call: Call, answer: Response | ErrorResponse) -> None:
        """Tasks need no notes: their messages come on streams that name them."""

    async def take_back(self, id: RequestId) -> None:
        """There is nothing to take back: servers ask by the outcomes of calls."""

    def may_be_silent(self) -> bool:
        return False

    def closing(self, reason: str) -> None:
        for id in self._subscriptions.close(reason):
            self._requests.fail(id, PeerGone(reason))

    def asked(self, request: Request, cause: RequestId | None) -> None:
        # basic/patterns: "Servers MUST NOT initiate JSON-RPC requests, and clients do not send responses".
        self._context.count_junk()

    def asked_badly(self, request: InvalidMessage) -> None:
        """It is counted already, and gets no answer."""

    async def _listen(self, params: Params, begun: Callable[[RequestId], None]) -> Response | ErrorResponse:
        async def send(message: Message) -> None:
            assert isinstance(message, Request)
            begun(message.id)
            await self._conversation.send(message)

        try:
            return await self._requests.exchange(
                LISTEN,
                wrap(params, self._listen_envelope),
                send,
                FOREVER,
                send_cancel=self._conversation.send_cancel,
            )
        except NotAccepted as error:
            self._conversation.drain(str(error))
            raise

    def _on_progress(self, notification: Notification, _: RequestId | None) -> bool:
        self._requests.progress(notification.params)
        return True

    def _on_log_message(self, notification: Notification, cause: RequestId | None) -> bool:
        """A log message belongs to one request (logging); on a shared channel nothing tells to which."""
        attribution = self._calls.on_shared_stream() if cause is None else self._calls.of(cause)
        if isinstance(attribution, Attributed):
            attribution.call.client.notify(notification.method, notification.params)
        else:
            self._context.metrics.unattributed.labels(self._context.spec.name, LOG_MESSAGE).inc()
        return True

    def other_notification(self, notification: Notification, cause: RequestId | None) -> bool:
        """A change, or an extension's notification about one request."""
        if self._subscriptions.take(notification, cause):
            return True
        if not self._has_unknown_extensions or not is_of_extension(notification.method):
            return False
        attribution = self._calls.on_shared_stream() if cause is None else self._calls.of(cause)
        if not isinstance(attribution, Attributed):
            return False
        attribution.call.client.notify(notification.method, without_hop_meta(notification.params))
        return True

    def _on_cancelled(self, notification: Notification, _: RequestId | None) -> bool:
        """A server may end a listen stream by it, and no other request (cancellation)."""
        id = parse_id(notification.params.get("requestId", b""))
        if id is None or not self._subscriptions.holds(id):
            return False
        self._requests.fail(id, PeerGone("the server ended it"))
        return True


# Most callers declare the same capabilities as others, and as before.
@remember_short(LONGEST_REMEMBERED)
def _declaration(capabilities: bytes, version: str, log_level: str | None) -> bytes:
    declared = shared_tasks(parse_object(capabilities), version, LATEST)
    return written(Envelope(LATEST, declared, probing.OURSELVES.info, log_level))


async def _answer_empty(call: Call) -> Outcome:
    """Answers a handshake method that has no request in this era."""
    return Complete({})


_WITHOUT_REQUEST: Final[Mapping[str, Answering]] = {
    row.name: _answer_empty for row in METHODS.values() if row.era is Era.HANDSHAKE
}
