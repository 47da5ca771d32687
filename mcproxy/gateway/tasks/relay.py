"""Passes on calls about tasks, calls that become tasks, and changes of tasks, by clients' ids (`task_ids`).

Tasks pass where client and upstream have the same kind of tasks (`protocol.tasks`). For other clients, a tool that must
be called as a task is called as one here, and its result awaited. A task is found by its id alone; `registry` keeps
which sessions know it, to tell them of changes and list it to them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, Outcome
from mcproxy.call.clients import Client, InputRequest, Listener, TaskChanged
from mcproxy.call.errors import McpError, Reason
from mcproxy.call.upstreams import UpstreamChanged, UpstreamEvent
from mcproxy.catalog.rewriting import TaskRewriter, edited
from mcproxy.gateway.component import Component
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.routes import ExposedRoute
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.targets import Target
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.gateway.tasks.places import TaskPlaces
from mcproxy.gateway.tasks.registry import TaskRegistry
from mcproxy.gateway.tasks.states import RESULT, TaskStates
from mcproxy.pending_requests import CANCEL_TIMEOUT
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, METHOD_NOT_FOUND, Params, parse_object, parse_text, raw
from mcproxy.protocol.methods import METHODS, Shape, Subject
from mcproxy.protocol.tasks import (
    CAPABILITY,
    TASK,
    TASK_CANCEL,
    TASK_ID,
    TASK_RESULT,
    Dialect,
    Support,
    created,
    dialect,
    related_to,
    takes_tool_calls,
    unrelated,
)

SendToUpstream = Callable[[Target, Call], Awaitable[Outcome]]
"""Carries a call to its upstream and back (`exchange.UpstreamExchange`)."""


class TaskRelay(Component):
    """`call` makes a call whose target is known; `send` carries it to its upstream and back."""

    heeds = frozenset({TaskChanged})

    def __init__(
        self,
        catalogue: Catalogue,
        ids: TaskIds,
        states: TaskStates,
        registry: TaskRegistry,
        listeners: Listeners,
        places: TaskPlaces,
        send: SendToUpstream,
    ) -> None:
        self._catalogue = catalogue
        self._ids = ids
        self._states = states
        self._registry = registry
        self._listeners = listeners
        self._places = places
        self._send = send

    def on_event(self, event: UpstreamEvent) -> None:
        """Tells clients of their tasks' new states. Never blocks."""
        match event:
            case UpstreamChanged(change=TaskChanged() as change):
                self._tell(LinkKey(event.upstream, event.owner), change)
            case _:
                pass

    def _tell(self, link: LinkKey, change: TaskChanged) -> None:
        """Passes a task's new state to the sessions that know the task, each under its own id, and to no other."""
        for listener, task in self._registry.holders(Task(link, change.id)).items():
            caller = listener.caller
            if not self._ids.reaches(caller, task):
                continue
            state = self._states.told(task, caller, change.params)
            if RESULT in change.params and RESULT not in state:
                continue  # Its client polls for it: clients "MUST NOT rely" on notifications.
            told = TaskChanged(self._ids.seal(task, caller), change.method, state)
            self._listeners.signal(listener, link.upstream, told)

    def call(self, target: Target, call: Call) -> Awaitable[Outcome]:
        """The outcome of a call that is about a task, or may become one. Raises McpError."""
        row, route = call.row, target.route
        if route is None or not row.deferrable:
            about_task = row.subject is Subject.TASK
            return self._about_task(target, call) if about_task else self._send(target, call)
        if not route.deferred and TASK not in call.params:
            return self._send(target, call)
        if not route.has_tasks:
            return self._without_tasks(target, route, call)
        return self._with_tasks(target, route, call)

    async def _about_task(self, target: Target, call: Call) -> Outcome:
        task = self._ids.find(parse_text(call.params[TASK_ID]) or "", call.caller)
        self._hold(call.listener, task)
        outcome = await self._send(target, self._named(call, task))
        self._places.note(task, call, outcome)
        rewriter = self._ids.rewriter(task.link, call.caller, task.tool, task.roles)
        return edited(outcome, rewriter.task if call.row.shape is Shape.TASK else rewriter.related)

    async def _with_tasks(self, target: Target, route: ExposedRoute, call: Call) -> Outcome:
        link, roles = self._catalogue.link(target.space, call.caller), self._ids.roles_of(call.caller)
        new = Task(link, "", route.shown.own, roles)
        return self._noted(new, call, await self._send(target, self._named(call, new)))

    def _without_tasks(self, target: Target, route: ExposedRoute, call: Call) -> Awaitable[Outcome]:
        """The outcome for a client and an upstream that have no kind of tasks in common."""
        wished = TASK in call.params
        if wished and CAPABILITY in self._catalogue.view(call.caller).capabilities:
            # tasks, Tool-Level Negotiation: "Servers SHOULD return a -32601 ... error if a client attempts to do so".
            raise McpError(METHOD_NOT_FOUND, "this tool cannot be called as a task")
        if route.shown.task_support is Support.REQUIRED and self._takes_tool_calls(target, call):
            return _awaited(target, call, self._send)
        if wished:
            # tasks, Task Support and Handling: a receiver that declares no tasks ignores a request's `task` member.
            target = replace(target, params={key: value for key, value in target.params.items() if key != TASK})
        return self._send(target, call)

    def _noted(self, new: Task, call: Call, outcome: Outcome) -> Outcome:
        """`outcome`; if it describes a new task, with the caller's id for the task. `new` has no id yet."""
        kind = dialect(call.caller.version)
        assert kind is not None
        id = _created(kind, outcome)
        if id is None or not isinstance(outcome, Complete):
            return outcome
        task = Task(new.link, id, new.tool, new.roles)
        self._hold(call.listener, task)
        call.notes.keep_place = partial(self._places.hold, task, call, kind, outcome.result)
        return edited(outcome, self._ids.rewriter(new.link, call.caller, new.tool, new.roles).created)

    def _hold(self, listener: Listener | None, task: Task) -> None:
        if listener is not None and listener in self._listeners:
            self._registry.add(listener, task)

    def _takes_tool_calls(self, target: Target, call: Call) -> bool:
        link = self._catalogue.link(target.space, call.caller)
        identity = self._catalogue.known.identity(link)
        return identity is not None and takes_tool_calls(self._catalogue.tasks(link, identity.version) or {})

    def _named(self, call: Call, about: Task) -> Call:
        """`call` with a client that translates task ids: the caller's ids outward, the upstream's ids back."""

        def own(id: str) -> str:
            task = self._ids.open(id, call.caller)
            return id if task is None or task.link != about.link else task.id

        outward, back = self._ids.rewriter(about.link, call.caller, about.tool, about.roles), TaskRewriter(own)
        return replace(call, client=TaskClient(call.client, outward.related, back.related))


class TaskClient(msgspec.Struct, frozen=True):
    """The way back during a call about a task: notifications, questions and answers belong to the task."""

    client: Client
    outward: Callable[[Params], Params]
    back: Callable[[Params], Params]

    def notify(self, method: str, params: Params) -> None:
        self.client.notify(method, self.outward(params))

    async def ask(self, request: InputRequest) -> Raw:
        answer = await self.client.ask(InputRequest(request.method, self.outward(request.params)))
        return raw(self.back(parse_object(answer)))


async def _awaited(target: Target, call: Call, send: SendToUpstream) -> Outcome:
    """Calls a tool as a task for a client without tasks; the outcome is the task's.

    Cancelling this cancels the task.
    """
    reports = TaskClient(call.client, unrelated, lambda answer: answer)
    outcome = await send(replace(target, params={**target.params, TASK: EMPTY_OBJECT}), replace(call, client=reports))
    id = _created(Dialect.CORE, outcome)
    if id is None:
        return outcome
    about = Target(target.space, {TASK_ID: raw(id)})
    client = TaskClient(call.client, unrelated, lambda answer: related_to(id, answer))
    over = False
    try:
        outcome = await send(about, replace(call, row=METHODS[TASK_RESULT], client=client))
        over = not (isinstance(outcome, Failed) and outcome.reason is Reason.TIMEOUT)
        return edited(outcome, unrelated)
    finally:
        if not over:
            with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
                await send(about, replace(call, row=METHODS[TASK_CANCEL]))


def _created(kind: Dialect, outcome: Outcome) -> str | None:
    return created(kind, outcome.result) if isinstance(outcome, Complete) else None
