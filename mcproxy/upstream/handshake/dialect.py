"""The handshake era (2024-11-05 to 2025-11-25) as a `Dialect`: from `initialize` on.

The server may ask clients (`server_requests`), and tells of changes without being asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple, assert_never

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Client, Notice
from mcproxy.call.errors import McpError, Party
from mcproxy.call.upstreams import ServerIdentity
from mcproxy.pending_requests import PeerGone, RequestTimeout, as_minted, with_progress_token
from mcproxy.protocol.envelope import untyped
from mcproxy.protocol.eras import META_PROGRESS_TOKEN
from mcproxy.protocol.jsonrpc import (
    ErrorResponse,
    InvalidMessage,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    parse_id,
    parse_text,
)
from mcproxy.protocol.methods import (
    CANCELLED,
    CHANGED,
    ELICITATION_COMPLETE,
    INITIALIZED,
    LOG_MESSAGE,
    PROGRESS,
    RESOURCE_UPDATED,
    Subject,
)
from mcproxy.protocol.tasks import TASK_ID, TASK_STATUS, Dialect, created, has_ended, related_task
from mcproxy.telemetry.metrics import UNKNOWN
from mcproxy.upstream.attribution import Ambiguous, Attributed, Attribution, SharedByPrincipals, Unsolicited
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.conversation import Answering, Conversation, OnNotification, changes
from mcproxy.upstream.handshake.initialization import Initialization
from mcproxy.upstream.handshake.server_requests import ServerRequests, UrlElicitations
from mcproxy.upstream.link import (
    CutOff,
    Echoed,
    NotAccepted,
    Rejected,
    Unreachable,
    supported_versions,
    unanswered,
)


class _Maker(NamedTuple):
    """The call that a task was made by: its request's id, which is its progress token too, and its client."""

    token: RequestId
    client: Client


class TaskClients:
    """Those of tasks that are not known to be over; of more than `most`, the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_task: dict[str, _Maker] = {}
        self._by_token: dict[RequestId, Client] = {}

    def answered(self, token: RequestId | None, call: Call, answer: Response | ErrorResponse) -> None:
        """Takes note of the answer to a call, under its request's id: it became a task, or a task is over."""
        result = answer.result if isinstance(answer, Response) else {}
        if call.row.subject is Subject.TASK:
            if call.row.waits or has_ended(result):
                self._forget(parse_text(call.params.get(TASK_ID, b"")))
            return
        task = created(Dialect.CORE, result)
        if task is not None and token is not None:
            self._add(task, _Maker(token, call.client))

    def changed(self, task: str, state: Params) -> None:
        """Takes note of the state of a task that its server tells of."""
        if has_ended(state):
            self._forget(task)

    def find(self, task: str | None) -> Client | None:
        """The client whose call became that task."""
        maker = self._by_task.get(task or "")
        return None if maker is None else maker.client

    def progress(self, params: Params) -> None:
        """Passes a `notifications/progress` to the client whose call had its token, and became a task."""
        token = parse_id(params.get(META_PROGRESS_TOKEN, b""))
        client = None if token is None else self._by_token.get(as_minted(token))
        if client is not None:
            client.notify(PROGRESS, {key: value for key, value in params.items() if key != META_PROGRESS_TOKEN})

    def _add(self, task: str, maker: _Maker) -> None:
        self._forget(task)
        if len(self._by_task) >= self._most:
            self._forget(next(iter(self._by_task)))
        self._by_task[task] = maker
        self._by_token[maker.token] = maker.client

    def _forget(self, task: str | None) -> None:
        maker = self._by_task.pop(task or "", None)
        if maker is not None:
            del self._by_token[maker.token]


class HandshakeDialect:
    """Implements `conversation.Dialect`."""

    reads_batches = True
    cancels_by_closing = False
    answers_anywhere = True
    question: tuple[str, Params] = ("ping", {})
    begin: Callable[[RequestId, Call], None]

    def __init__(self, context: LinkContext) -> None:
        self._context = context
        self._conversation: Conversation
        self._url_elicitations = UrlElicitations(context.spec.max_in_flight)
        self._task_clients = TaskClients(context.spec.max_in_flight)
        self.answered_here: Mapping[str, Answering] = {}
        self.notifications: Mapping[str, OnNotification] = {
            PROGRESS: self._on_progress,
            TASK_STATUS: self._on_task_status,
            CANCELLED: self._on_cancelled,
            LOG_MESSAGE: self._on_log_message,
            ELICITATION_COMPLETE: self._on_elicitation_complete,
            RESOURCE_UPDATED: self._on_change,
        }

    def attach(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._requests, self._calls = conversation.requests, conversation.calls
        self.begin = self._calls.begin
        self._questions = ServerRequests(conversation, self._url_elicitations)
        self._initialization = Initialization(self._context, self._requests, conversation.send_unless_lost)

    async def identify(self) -> ServerIdentity:
        self._context.awaited = "initialize"
        with _initializing():
            return await self._initialization.identity()

    async def start(self) -> None:
        with _initializing():
            await self._conversation.send(Notification(INITIALIZED, {}))

    async def notify(self, call: Call) -> Outcome:
        try:
            await self._conversation.send_in_time(Notification(call.method, call.params))
        except NotAccepted as error:
            self._conversation.drain(str(error))
            raise
        except Rejected as error:
            return unanswered(self._context, call, error)
        return Complete({})

    def params(self, call: Call, id: RequestId) -> Params:
        return with_progress_token(call.params, id) if call.row.may_ask else call.params

    def outcome(self, call: Call, answer: Response | ErrorResponse) -> Outcome:
        if isinstance(answer, Response):
            return Complete(untyped(answer.result))
        supported, version = supported_versions(answer.error), self._conversation.version
        if supported is not None and version not in supported:
            raise NotAccepted(f"it no longer speaks {version}: {answer.error.message}")
        self._url_elicitations.note_required(answer.error, call.listener)
        return Failed(self._context.redacted(answer.error), Party.UPSTREAM)

    def note_task(self, id: RequestId | None, call: Call, answer: Response | ErrorResponse) -> None:
        self._task_clients.answered(id, call, answer)

    async def take_back(self, id: RequestId) -> None:
        await self._questions.take_back(id)

    def may_be_silent(self) -> bool:
        """Whether the server waits for an answer of a client, or a call waits for the result of a task."""
        return self._requests.is_any_held() or self._calls.is_any_waiting()

    def closing(self, reason: str) -> None:
        """There is nothing to end."""

    def asked(self, request: Request, cause: RequestId | None) -> None:
        if self._conversation.version is None and self._initialization.is_echo(request):
            # Not refused as an unknown method: the refusal would come back too, and pass for the answer.
            self._requests.fail(request.id, Echoed())
            return
        self._questions.take(request, self._attribute(request, cause), own_stream=cause is not None)

    def asked_badly(self, request: InvalidMessage) -> None:
        if request.id is not None:
            self._questions.refuse(request.id, McpError(request.code, request.reason))

    def _attribute(self, message: Request | Notification, cause: RequestId | None) -> Attribution:
        task = related_task(message.params)
        if task is not None:
            # tasks, Input Required Status: it may come "on any SSE stream", even on that of another client's call.
            return self._calls.of_task(task)
        attribution = self._calls.on_shared_stream(self._requests.is_held) if cause is None else self._calls.of(cause)
        if isinstance(attribution, Ambiguous) and self._context.session is not None:
            return Unsolicited()  # On a link with an owner it is for the owner, whichever call caused it.
        return attribution

    def _on_progress(self, notification: Notification, _: RequestId | None) -> bool:
        if not self._requests.progress(notification.params):
            self._task_clients.progress(notification.params)
        return True

    def _on_cancelled(self, notification: Notification, _: RequestId | None) -> bool:
        self._questions.cancel(notification.params)
        return True

    def _on_log_message(self, notification: Notification, cause: RequestId | None) -> bool:
        level = parse_text(notification.params.get("level", b"")) or "info"
        return self._pass_on(notification, Notice(notification.method, notification.params, level), cause)

    def _on_elicitation_complete(self, notification: Notification, _: RequestId | None) -> bool:
        """Reports it only "to the client that initiated the elicitation request" (elicitation)."""
        notice = Notice(notification.method, notification.params)
        listener = self._url_elicitations.complete(notification.params)
        if listener is not None:
            listener.signal(notice)
        elif self._context.session is not None:
            self._context.publish(notice)
        else:
            self._count_unattributed(notification.method)
        return True

    def _pass_on(self, notification: Notification, notice: Notice, cause: RequestId | None) -> bool:
        """Notifies the client whose call caused the message; all clients only if no call can have caused it."""
        attribution = self._attribute(notification, cause)
        match attribution:
            case Attributed(call=call):
                call.client.notify(notice.method, notice.params)
            case Unsolicited():
                # It may be about an earlier call, and so is only for the one principal that has called.
                self._context.publish(replace(notice, principal=self._calls.principal))
            case Ambiguous() | SharedByPrincipals():
                client = self._task_clients.find(related_task(notification.params))
                if client is None:
                    self._count_unattributed(notice.method)
                else:
                    client.notify(notice.method, notice.params)
            case _:
                assert_never(attribution)
        return True

    def _count_unattributed(self, method: str) -> None:
        label = method if method in self.notifications else UNKNOWN
        self._context.metrics.unattributed.labels(self._context.spec.name, label).inc()

    def _on_task_status(self, notification: Notification, cause: RequestId | None) -> bool:
        id = parse_text(notification.params.get(TASK_ID, b""))
        if id is not None:
            self._task_clients.changed(id, notification.params)
        return self._on_change(notification, cause)

    def _on_change(self, notification: Notification, _: RequestId | None) -> bool:
        found = changes(notification, notification.params, TASK_STATUS)
        for change in found:
            self._context.publish(change)
        return bool(found)

    def other_notification(self, notification: Notification, cause: RequestId | None) -> bool:
        if notification.method in CHANGED:
            return self._on_change(notification, cause)
        return self._pass_on(notification, Notice(notification.method, notification.params), cause)


@contextmanager
def _initializing() -> Iterator[None]:
    """Raises Unreachable for what fails (lifecycle, Initialization)."""
    try:
        yield
    except (NotAccepted, PeerGone) as error:
        raise CutOff(f"initialize: {error}") from error
    except RequestTimeout as error:
        raise Unreachable(f"initialize: {error}") from error
