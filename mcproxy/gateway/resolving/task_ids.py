"""Task ids as clients know them: the upstream's own, sealed for one principal at one endpoint. Stores nothing.

An id holds its task's link and own id, so it survives a restart and cannot be guessed. It is unknown, like an invented
id, to another caller, over another session's link, and to a caller for whom the policy has since withdrawn the upstream
or the tool whose call became the task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

from mcproxy.call.calls import Call, CallSubject
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, LinkOwner
from mcproxy.catalog.naming import Space
from mcproxy.catalog.rewriting import TaskRewriter
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, json_of, parse_text
from mcproxy.protocol.methods import Kind, Subject
from mcproxy.protocol.tasks import NEEDED, UNDECLARED, Dialect, dialect, offer
from mcproxy.sealing import Sealer, Unsealable


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a link, by the upstream's own id. `tool` is the tool whose call became the task, where known."""

    link: LinkKey
    id: str
    tool: str = field(default="", compare=False)
    roles: str = field(default="", compare=False)
    """A digest of the roles of the call that became it (`TaskIds.roles_of`)."""


class _SealedTask(msgspec.Struct, frozen=True, array_like=True):
    upstream: str
    owner: LinkOwner
    id: str
    tool: str = ""
    roles: str = ""


_sealed: Final = msgspec.json.Decoder(_SealedTask)


class TaskIds:
    """Seals and opens clients' task ids; each is valid for one principal at one endpoint."""

    def __init__(self, catalogue: Catalogue, sealer: Sealer) -> None:
        self._catalogue = catalogue
        self._sealer = sealer

    def seal(self, task: Task, caller: Caller) -> str:
        """The client's id of a task; the same each time for the same task and caller."""
        sealed = _SealedTask(task.link.upstream, task.link.owner, task.id, task.tool, task.roles)
        return self._sealer.name_here(_purpose(caller), msgspec.json.encode(sealed))

    def open(self, id: str, caller: Caller) -> Task | None:
        """The task behind `id`; None if it names no task that `caller` may reach."""
        try:
            sealed = _sealed.decode(self._sealer.open(_purpose(caller), id))
        except (Unsealable, msgspec.MsgspecError):
            return None
        task = Task(LinkKey(sealed.upstream, sealed.owner), sealed.id, sealed.tool, sealed.roles)
        return task if self.reaches(caller, task) else None

    def of(self, call: Call) -> Task | None:
        """The task that a call is about; None if it is about none that its caller may reach."""
        if call.row.subject is not Subject.TASK or call.row.subject_key is None:
            return None
        return self.open(parse_text(call.params.get(call.row.subject_key, b"")) or "", call.caller)

    def reaches(self, caller: Caller, task: Task) -> bool:
        """Whether `caller`, whose task it was, may still use it."""
        layout = self._catalogue.layout(caller)
        if not layout.shows(task.link.upstream):
            return False
        space = layout.space(task.link.upstream)
        serving = self._catalogue.link(space, caller)
        return serving == task.link and self._may_have(task.link, caller) and self._may_call(space, task, caller)

    def roles_of(self, caller: Caller) -> str:
        """As `Task.roles`, for a task of a call that `caller` makes now."""
        return self._sealer.digest("task roles", msgspec.json.encode(sorted(caller.principal.roles)))

    def find(self, id: str, caller: Caller) -> Task:
        """As `open`. Raises McpError for an unknown task, and where the client may not ask for tasks at all."""
        match dialect(caller.version):
            case None:
                raise McpError(METHOD_NOT_FOUND, f"protocol version {caller.version} has no tasks")
            case Dialect.EXTENSION if offer(caller.version, caller.capabilities) is None:
                # tasks extension, Protocol Errors: "MUST", for any id.
                data = {"requiredCapabilities": NEEDED}
                raise McpError(MISSING_CLIENT_CAPABILITY, UNDECLARED, data)
            case _:
                task = self.open(id, caller)
        if task is None:
            # tasks, Error Handling: -32602 for an id that is invalid or not there.
            raise McpError(INVALID_PARAMS, "Task not found", {"taskId": id})
        return task

    def rewriter(self, link: LinkKey, caller: Caller, tool: str, roles: str) -> TaskRewriter:
        """Rewrites the ids of tasks that calls of a link's tool became to the caller's ids. `roles` as in `Task`."""
        return TaskRewriter(lambda id: self.seal(Task(link, id, tool, roles), caller))

    def _may_have(self, link: LinkKey, caller: Caller) -> bool:
        """Whether the upstream has tasks of the caller's kind, as far as is known."""
        return self._catalogue.known.identity(link) is None or self._catalogue.tasks(link, caller.version) is not None

    def _may_call(self, space: Space, task: Task, caller: Caller) -> bool:
        """Whether the caller may make the call. A tool that is no longer listed is judged by its name.

        The call's arguments are not known any more. If the policy judges them, only the same roles surely allow them.
        """
        if not task.tool:
            return True
        name = space.expose_name(task.tool)
        shown = None if name is None else self._catalogue.whole_view(caller).find(Kind.TOOLS, name)
        entry = None if shown is None else shown.entry
        if not space.shows(Kind.TOOLS, task.tool, entry):
            return False
        subject = CallSubject(space.upstream, Kind.TOOLS, task.tool, entry)
        return not self._catalogue.judges_arguments(caller, subject) or task.roles == self.roles_of(caller)


def _purpose(caller: Caller) -> str:
    return json_of(["task", caller.principal.name, caller.endpoint]).decode()
