"""The clients of calls that became tasks on one link: they hear of progress and log messages while the task lasts.

"The progressToken provided in the initial request remains valid throughout the task lifetime" (2025-11-25, tasks). A
look-up with a bound.
"""

from __future__ import annotations

from typing import NamedTuple

from mcproxy.call.calls import Call
from mcproxy.call.clients import Client
from mcproxy.pending_requests import as_minted
from mcproxy.protocol.eras import META_PROGRESS_TOKEN
from mcproxy.protocol.jsonrpc import ErrorResponse, Params, RequestId, Response, parse_id, parse_text
from mcproxy.protocol.methods import PROGRESS, Subject
from mcproxy.protocol.tasks import TASK_ID, Dialect, created, has_ended


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
