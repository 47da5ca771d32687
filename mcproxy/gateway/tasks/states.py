"""States of tasks as callers are told of them unasked: entries of `tasks/list`, and notifications. Sends nothing.

States do not pass the pipeline's stages that judge results of tools (`hooks`) and limit them (`results`). So a result
that one of these has to see first is left out of states, and is given only by a call about its task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Raw

from mcproxy.call.identity import Caller
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.gateway.judged_messages import formal_state
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.task_ids import Task, TaskIds
from mcproxy.protocol.envelope import META
from mcproxy.protocol.inputs import INPUT_REQUESTS
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import Shape

RESULT: Final = "result"

_WITH_URIS: Final = frozenset({RESULT, INPUT_REQUESTS, META})
"""The members of a state that may hold URIs."""

Withholds = Callable[[Caller, Task, Raw], bool]
"""Whether a task's result may reach its caller only as the outcome of a call."""


class TaskStates:
    """Puts tasks' states into callers' names, without results that only a call may give."""

    def __init__(
        self, catalogue: Catalogue, ids: TaskIds, withholds: Withholds, is_judged: Callable[[Task], bool]
    ) -> None:
        """`is_judged` says whether what the task's server writes may be told only after a hook has judged it."""
        self._catalogue = catalogue
        self._ids = ids
        self._withholds = withholds
        self._is_judged = is_judged

    def told(self, task: Task, caller: Caller, state: Params) -> Params:
        """A state in the caller's names, without what only a call may give."""
        if self._is_judged(task):
            state = formal_state(state)
        if RESULT in state and self._withholds(caller, task, state[RESULT]):
            state = {name: member for name, member in state.items() if name != RESULT}
        state = self._ids.rewriter(task.link, caller, task.tool, task.roles).task(state)
        space = self._catalogue.layout(caller).space(task.link.upstream)
        if space.transparent or _WITH_URIS.isdisjoint(state):
            return state
        return Rewriter(space.expose_uri).result(Shape.TASK, state)
