"""What a server may tell clients beside what enforcing hooks judge: that a call goes on, and little else.

Results, errors and questions are judged by `hooks`. Whatever else a server may write freely is left out here: texts of
progress, log lines, other notifications, and members of tasks' states that are not of their form.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Outcome
from mcproxy.call.clients import Change, Client, InputRequest, Listener, Notice, ResourceUpdated
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import Upstream, UpstreamChanged, UpstreamEvent, UpstreamStatus
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params, first_level, raw
from mcproxy.protocol.methods import ELICITATION_COMPLETE, PROGRESS
from mcproxy.settings.access.hooks import HookSettings

_ELICITATION: Final = "elicitationId"
_STATUS: Final = re.compile(rb'"(?:working|input_required|completed|failed|cancelled)"')
_TIME: Final = re.compile(rb'"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,18}(?:Z|[+-][0-9]{2}:?[0-9]{2})?"')
_SPAN: Final = re.compile(rb"null|[0-9]{1,15}(?:\.[0-9]{1,6})?")
_FORMS: Final = {
    "resultType": re.compile(rb'"(?:task|complete)"'),
    "taskId": re.compile(rb'".*"', re.DOTALL),
    "status": _STATUS,
    "createdAt": _TIME,
    "lastUpdatedAt": _TIME,
    "ttl": _SPAN,
    "ttlMs": _SPAN,
    "pollInterval": _SPAN,
    "pollIntervalMs": _SPAN,
}
"""The members of a task's state that are not free text, and their forms. The gateway puts its own id in `taskId`."""


def enforces_after(hook: HookSettings) -> bool:
    """Whether the hook decides what reaches clients of the servers that it selects."""
    return hook.phase == "after" and hook.mode == "enforce"


def is_judged(hooks: Sequence[HookSettings], upstream: str) -> bool:
    """Whether an enforcing hook judges anything that comes from an upstream."""
    return any(enforces_after(hook) and any(fnmatchcase(upstream, glob) for glob in hook.upstreams) for hook in hooks)


def formal_state(state: Params, judged: frozenset[str] = frozenset()) -> Params:
    """A task's state without what its server may write freely, but with the members in `judged`."""
    return {
        name: value
        for name, value in state.items()
        if name in judged or (name in _FORMS and _FORMS[name].fullmatch(bytes(value)))
    }


def formal_event(event: UpstreamEvent) -> UpstreamEvent | None:
    """An event of an upstream whose messages are judged, without free text; None if nothing is left of it."""
    match event:
        case UpstreamChanged(change=Notice()):
            return None
        case UpstreamChanged(change=ResourceUpdated(uri=uri)):
            return replace(event, change=ResourceUpdated(uri))
        case _:
            return event


class JudgedClient:
    """The client of a call whose outcome a hook judges. `judge` raises McpError for a question that must not pass."""

    def __init__(self, client: Client, judge: Callable[[InputRequest], Awaitable[None]]) -> None:
        self._client = client
        self._judge = judge
        self._reports = 0

    def notify(self, method: str, params: Params) -> None:
        """Reports progress by the number of reports, which keeps the client waiting; drops other notifications."""
        if method == PROGRESS:
            self._reports += 1
            self._client.notify(method, first_level({"progress": self._reports}))

    async def ask(self, request: InputRequest) -> Raw:
        await self._judge(request)
        return await self._client.ask(request)


class JudgedUpstream:
    """An upstream from which an enforcing hook judges something: its log lines are not told, and its questions only
    as part of a call. On a shared stream it cannot be said which call a log line is about.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    @property
    def name(self) -> str:
        return self._upstream.name

    @property
    def status(self) -> UpstreamStatus:
        return self._upstream.status

    def __call__(self, call: Call) -> Awaitable[Outcome]:
        listener = None if call.listener is None else _QuietListener(call.listener)
        return self._upstream(replace(call, client=_QuietClient(call.client), listener=listener))

    def release(self, owner: str) -> None:
        self._upstream.release(owner)


class _QuietClient(msgspec.Struct, frozen=True):
    client: Client

    def notify(self, method: str, params: Params) -> None:
        if method == PROGRESS:
            self.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        return await self.client.ask(request)


class _QuietListener(msgspec.Struct, frozen=True):
    listener: Listener

    @property
    def caller(self) -> Caller:
        return self.listener.caller

    def set_log_level(self, level: str) -> None:
        self.listener.set_log_level(level)

    def signal(self, change: Change) -> None:
        if not isinstance(change, Notice):
            self.listener.signal(change)
        elif change.method == ELICITATION_COMPLETE and _ELICITATION in change.params:
            self.listener.signal(Notice(change.method, {_ELICITATION: change.params[_ELICITATION]}))

    async def ask(self, request: InputRequest) -> Raw:
        sentence = f"{request.method} refused: a check judges what this server sends, and this belongs to no call"
        raise McpError(INVALID_REQUEST, sentence)


def questions(requests: Sequence[InputRequest]) -> Raw:
    """Questions as a hook is told of them."""
    return raw([{"method": request.method, "params": request.params} for request in requests])
