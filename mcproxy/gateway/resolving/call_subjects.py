"""The subject of a call (tool, prompt, resource, task) in its upstream's own names, as far as the catalogue knows it.

For limits and the audit log, which count and name a tool alike at all endpoints. Asks no upstream, and decides nothing:
`targets` says where the call goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mcproxy.call.calls import Call, CallSubject
from mcproxy.call.errors import McpError
from mcproxy.catalog.naming import SEPARATOR
from mcproxy.catalog.views.view import View
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.gateway.resolving.task_ids import TaskIds
from mcproxy.protocol.jsonrpc import object_or_empty, parse_text
from mcproxy.protocol.methods import Kind, Subject

MAX_UNLISTED: Final = 256
"""Characters that are kept of a name in no upstream's list."""


_NOTHING: Final = CallSubject()
CallSubjects = Callable[[Call], CallSubject]
"""Finds the subject of a call, and maybe the policy's decision on it."""


class SubjectResolver:
    """Resolves a call's subject in its caller's view; with `beyond`, also in a view that no policy restricts."""

    def __init__(self, catalogue: Catalogue, task_ids: TaskIds, *, beyond: bool = False) -> None:
        self._catalogue = catalogue
        self._task_ids = task_ids
        self._beyond = beyond

    def __call__(self, call: Call) -> CallSubject:
        row = call.row
        if row.named_in is None or row.subject_key is None:
            return self._unnamed(call)
        return self._named(row.named_in, parse_text(call.params.get(row.subject_key, b"")) or "", call)

    def _unnamed(self, call: Call) -> CallSubject:
        """The subject of a call that does not give a listed name."""
        row = call.row
        if not row.known:
            space = self._catalogue.passing(call.caller)
            return _NOTHING if space is None else CallSubject(space.upstream)
        if row.subject_key is None:
            return _NOTHING
        subject = call.params.get(row.subject_key, b"")
        match row.subject:
            case Subject.RESOURCE:
                return self._resource(parse_text(subject) or "", call)
            case Subject.REFERENCE:
                reference = object_or_empty(subject)
                if "uri" in reference:
                    return self._resource(parse_text(reference["uri"]) or "", call)
                return self._named(Kind.PROMPTS, parse_text(reference.get("name", b"")) or "", call)
            case Subject.TASK:
                id = parse_text(subject) or ""
                task = self._task_ids.open(id, call.caller)
                return (
                    CallSubject(own=id)
                    if task is None
                    else CallSubject(task.link.upstream, own=task.id, tool=task.tool)
                )
            case Subject.TOOL | Subject.PROMPT | None:
                return _NOTHING

    def _named(self, kind: Kind, name: str, call: Call) -> CallSubject:
        routes = self._catalogue.routes(call.caller)
        route = routes.find(kind, name)
        if route is None:
            return self._unseen(kind, name, call, routes.view)
        call.notes.subject = route.subject
        return route.subject

    def _unseen(self, kind: Kind, name: str, call: Call, view: View) -> CallSubject:
        if kind is Kind.TOOLS and name in view.logins:
            return CallSubject(kind=kind, own=name)
        if self._beyond:
            view = self._catalogue.whole_view(call.caller)
            if (shown := view.find(kind, name)) is not None:
                return CallSubject(shown.upstream, kind, shown.own, shown.entry)
        space = next((space for space in view.layout.spaces if space.may_own_name(name)), None)
        if space is None or self._catalogue.known.listing(self._catalogue.link(space, call.caller), kind) is not None:
            return CallSubject(kind=kind, own=name)
        # Not listed yet: the call will have the list fetched. Any name may come, so such calls count together.
        own = name.removeprefix(space.prefix + SEPARATOR) if space.prefix else name
        return CallSubject(space.upstream, kind, own[:MAX_UNLISTED], is_guess=True)

    def _resource(self, uri: str, call: Call) -> CallSubject:
        found = self._catalogue.view(call.caller).resource(uri)
        if found is not None:
            call.notes.subject = subject = CallSubject(found[0].upstream, Kind.RESOURCES, found[1])
            return subject
        if self._beyond:
            found = self._catalogue.whole_view(call.caller).resource(uri)
        return (
            CallSubject(kind=Kind.RESOURCES, own=uri)
            if found is None
            else CallSubject(found[0].upstream, Kind.RESOURCES, found[1])
        )

    def judged(self, call: Call) -> CallSubject:
        """The subject with the policy's decision, or without one where the policy does not apply."""
        subject = self(call)
        if subject.decision is not None or subject.kind is None or not subject.upstream:
            return subject
        arguments = object_or_empty(call.params.get("arguments", b"{}"))
        if subject.final is not None:
            try:
                arguments = subject.final(arguments, call.caller.principal)
            except McpError:
                return CallSubject(subject.upstream, subject.kind, subject.own, subject.entry)
        if subject.judge is not None:
            decision = subject.judge(arguments)
        else:
            decision = self._catalogue.decision(call.caller, subject, arguments)
        return CallSubject(subject.upstream, subject.kind, subject.own, subject.entry, decision)
