"""What a call is aimed at, in its upstream's own names, as far as that is known without asking anybody.

For limits and the audit, which speak of a tool alike whatever it is called at an endpoint. Decides nothing: where the
call goes, `resolving` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Raw

from mcproxy.access.policy import Decision
from mcproxy.call import Call, Caller
from mcproxy.catalog.merging import View
from mcproxy.catalog.naming import SEPARATOR
from mcproxy.gateway.catalogue import Catalogue
from mcproxy.gateway.task_ids import TaskIds
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, parse_object, parse_text
from mcproxy.protocol.methods import METHODS, Kind, Subject

MAX_UNLISTED: Final = 256
"""Characters of a name that no upstream vouches for: it is counted under, and kept."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a call is about."""

    upstream: str = ""
    """Empty where it is about no upstream that the caller sees."""
    kind: Kind | None = None
    """None for a task, and where it is about nothing."""
    own: str = ""
    """The upstream's own name of it; what the caller wrote, where that is no upstream's."""
    entry: Raw | None = field(default=None, compare=False)
    """Its entry in a list, where it has one."""


Aims = Callable[[Call], Aim]
Judges = Callable[[Call], tuple[Aim, Decision | None]]
"""What a call is aimed at, whether its caller may see that or not, and what the policy says of it."""


class Aiming:
    """Called with a call, says its `Aim`, as far as the caller's `view` goes."""

    def __init__(self, catalogue: Catalogue, task_ids: TaskIds, view: Callable[[Caller], View]) -> None:
        self._catalogue = catalogue
        self._task_ids = task_ids
        self._view = view

    def __call__(self, call: Call) -> Aim:
        row = METHODS.get(call.method)
        if row is None or row.subject is None or row.subject_key is None:
            return Aim()
        subject = call.params.get(row.subject_key, b"")
        match row.subject:
            case Subject.TOOL:
                return self._named(Kind.TOOLS, parse_text(subject) or "", call)
            case Subject.PROMPT:
                return self._named(Kind.PROMPTS, parse_text(subject) or "", call)
            case Subject.RESOURCE:
                return self._resource(parse_text(subject) or "", call)
            case Subject.REFERENCE:
                reference = _readable(subject)
                if "uri" in reference:
                    return self._resource(parse_text(reference["uri"]) or "", call)
                return self._named(Kind.PROMPTS, parse_text(reference.get("name", b"")) or "", call)
            case Subject.TASK:
                id = parse_text(subject) or ""
                task = self._task_ids.open(id, call.caller)
                return Aim(own=id) if task is None else Aim(task.link.upstream, own=task.id)

    def _named(self, kind: Kind, name: str, call: Call) -> Aim:
        view = self._view(call.caller)
        if (shown := view.find(kind, name)) is not None:
            return Aim(shown.upstream, kind, shown.own, shown.entry)
        space = next((space for space in view.layout.spaces if space.may_own_name(name)), None)
        if space is None or self._catalogue.listing(self._catalogue.link(space, call.caller), kind) is not None:
            return Aim(kind=kind, own=name)
        # Not listed yet: the call makes the gateway ask, and counts as one of the tool that it may turn out to be.
        own = name.removeprefix(space.prefix + SEPARATOR) if space.prefix else name
        return Aim(space.upstream, kind, own[:MAX_UNLISTED])

    def _resource(self, uri: str, call: Call) -> Aim:
        found = self._view(call.caller).resource(uri)
        return Aim(kind=Kind.RESOURCES, own=uri) if found is None else Aim(found[0].upstream, Kind.RESOURCES, found[1])

    def judged(self, call: Call) -> tuple[Aim, Decision | None]:
        """With what the policy says of it; None where it has nothing to say."""
        aim = self(call)
        if aim.kind is None or not aim.upstream:
            return aim, None
        arguments = _readable(call.params.get("arguments", b"{}"))
        return aim, self._catalogue.decision(call.caller, aim.upstream, aim.kind, aim.own, aim.entry, arguments)


def _readable(data: bytes) -> Params:
    try:
        return parse_object(data)
    except InvalidMessage:
        return {}
