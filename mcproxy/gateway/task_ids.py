"""The ids of tasks that clients know: the upstream's own, sealed for one principal at one endpoint. Keeps nothing.

An id says where its task is, so that it survives a restart and cannot be guessed; to anybody else, and over the link
of another session, it is as unknown as one that was made up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from mcproxy.call import Caller, McpError, Owner
from mcproxy.catalog.rewriting import TaskRewriter
from mcproxy.gateway.catalogue import Catalogue, LinkKey
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CLIENT_CAPABILITY, raw
from mcproxy.protocol.tasks import NEEDED, UNDECLARED, Dialect, dialect, offer
from mcproxy.sealing import Sealer, Unsealable


class Task(NamedTuple):
    """A task of a link, by the upstream's own id."""

    link: LinkKey
    id: str


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    upstream: str
    owner: Owner
    id: str


_sealed: Final = msgspec.json.Decoder(_Sealed)


class TaskIds:
    def __init__(self, catalogue: Catalogue, sealer: Sealer) -> None:
        self._catalogue = catalogue
        self._sealer = sealer

    def seal(self, task: Task, caller: Caller) -> str:
        """The same for the same task and caller, each time."""
        sealed = _Sealed(task.link.upstream, task.link.owner, task.id)
        return self._sealer.name(_purpose(caller), msgspec.json.encode(sealed))

    def open(self, id: str, caller: Caller) -> Task | None:
        """None where `id` is of no task that `caller` could reach."""
        try:
            sealed = _sealed.decode(self._sealer.open(_purpose(caller), id))
        except (Unsealable, msgspec.MsgspecError):
            return None
        task = Task(LinkKey(sealed.upstream, sealed.owner), sealed.id)
        layout = self._catalogue.layout(caller)
        if not layout.shows(sealed.upstream):
            return None
        serving = self._catalogue.link(layout.space(sealed.upstream), caller)
        return task if serving == task.link and self._may_have(task.link, caller) else None

    def find(self, id: str, caller: Caller) -> Task:
        """As `open`. Raises McpError, as well where the client may not ask for tasks at all."""
        match dialect(caller.version):
            case None:
                raise McpError(METHOD_NOT_FOUND, f"protocol version {caller.version} has no tasks")
            case Dialect.EXTENSION if offer(caller.version, caller.capabilities) is None:
                # tasks extension, Protocol Errors: "MUST", whatever the id.
                data = {"requiredCapabilities": NEEDED}
                raise McpError(MISSING_CLIENT_CAPABILITY, UNDECLARED, data)
            case _:
                task = self.open(id, caller)
        if task is None:
            # tasks, Error Handling: -32602 for an id that is invalid or not there.
            raise McpError(INVALID_PARAMS, "Task not found", {"taskId": id})
        return task

    def rewriter(self, link: LinkKey, caller: Caller) -> TaskRewriter:
        """Puts the ids of a link's tasks into the caller's names."""
        return TaskRewriter(lambda id: self.seal(Task(link, id), caller))

    def _may_have(self, link: LinkKey, caller: Caller) -> bool:
        """Whether the upstream has tasks of the caller's kind, as far as is known of it."""
        return self._catalogue.identity(link) is None or self._catalogue.tasks(link, caller.version) is not None


def _purpose(caller: Caller) -> str:
    return bytes(raw(["task", caller.principal.name, caller.endpoint])).decode()
