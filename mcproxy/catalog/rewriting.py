"""Rewrite the URIs and task ids in an upstream's results to those that callers use; every other byte passes (R32).

Walks raw JSON one level at a time along the places where the specification puts them (R27). Values of another shape
pass unchanged: clients judge an upstream's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from operator import is_not
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Complete, Failed, InputRequired, Outcome, ResultFindings
from mcproxy.call.clients import InputRequest
from mcproxy.protocol.json.bounds import LONG, Bounded, parse_array
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, may_hold, parse_object, parse_text, raw
from mcproxy.protocol.methods import Kind, Shape
from mcproxy.protocol.tasks import META_RELATED_TASK, TASK, TASK_ID

Rename = Callable[[str], str]
Edit = Callable[[Raw], Raw]
"""Returns the same object if there is nothing to change."""
Edits = Mapping[str, Edit]
"""Edits for the members of an object, by key."""

_HINT: Final = b"resource"
"""It is part of every key and type that says where a URI is, but for the contents of resources themselves."""

_PRIVATE: Final = raw("private")
_TRUE: Final = raw(True)

MAX_ITEMS: Final = 10_000
"""Items of an array that are examined; a longer array passes unchanged."""


class _TypedItem(msgspec.Struct):
    """An item of an array, as far as it says what it is."""

    type: str


_typed_item = msgspec.json.Decoder(_TypedItem)
_objects = Bounded(list[Params], LONG)


class Rewriter:
    """Rewrites an upstream's messages to the names of one endpoint."""

    def __init__(self, rename: Rename) -> None:
        uri = _text(rename)
        meta = _members({"ui": _members({"resourceUri": uri}), "ui/resourceUri": uri})
        place: Edits = {"uri": uri, "_meta": meta}
        located = _members(place)
        blocks: dict[str, Edit] = {
            "resource": _members({"resource": located, "_meta": meta}),
            "resource_link": located,
        }
        content = _each_typed(blocks)
        files = _members_of_each({"uri": uri})
        # client, Sampling: a message's tool results hold blocks of their own, and those no further ones.
        block = _typed({**blocks, "tool_result": _members({"content": content})})
        message = _members({"content": _one_or_each(block)})
        questions = _values(_members({"params": _members({"messages": _each(message)})}))
        self._shapes: dict[Shape, Edits] = {
            Shape.PLAIN: _hinted({"_meta": meta}),
            Shape.CONTENT: _hinted({"content": content, "_meta": meta}),
            Shape.CONTENTS: {"contents": _members_of_each(place), **_hinted({"_meta": meta})},
            Shape.RESOURCES: {"resources": _members_of_each(place), **_hinted({"_meta": meta})},
            Shape.SKILL: {"skill": _members({**place, "resources": files}), **_hinted({"_meta": meta})},
            Shape.MESSAGES: _hinted({"messages": _each(message), "_meta": meta}),
            Shape.TASK: _hinted(
                {"result": _members({"content": content, "_meta": meta}), "inputRequests": questions, "_meta": meta}
            ),
        }
        self._meta = meta
        self._files = files

    def outcome(self, shape: Shape, outcome: Outcome) -> Outcome:
        """`outcome` in the names of the endpoint; an upstream's error passes unchanged."""
        if isinstance(outcome, Complete):
            edits, result, found = self._shapes[shape], outcome.result, outcome.findings
            renamed = _changes(edits, result) if found is None else self._remembered(edits, result, found)
            return replace(outcome, result={**result, **renamed}) if renamed else outcome
        return self._input_required(outcome) if isinstance(outcome, InputRequired) else outcome

    def _remembered(self, edits: Edits, result: Params, found: ResultFindings) -> Params:
        """The members that change: a look-up, if they were found before."""
        if found.renamed_by is not self:
            found.renamed_by, found.renamed = self, _changes(edits, result)
        return found.renamed

    def result(self, shape: Shape, result: Params) -> Params:
        """A result of that shape in the names of the endpoint; the same object where nothing is another."""
        return _changed(self._shapes[shape], result)

    def request(self, request: InputRequest) -> InputRequest:
        """An upstream's request to the client: messages of sampling hold content."""
        return InputRequest(request.method, self.params(request.params))

    def params(self, params: Params) -> Params:
        """Params of a request for input in the names of the endpoint; `messages` hold content."""
        return _changed(self._shapes[Shape.MESSAGES], params)

    def entry(self, kind: Kind, entry: Params, key: str) -> Params:
        """One entry of a list, identified by `key` instead."""
        changed: Params = {**entry, kind.key: raw(key)}
        if "_meta" in entry:
            changed["_meta"] = self._meta(entry["_meta"])
        if kind is Kind.SKILLS and "resources" in entry:
            changed["resources"] = self._files(entry["resources"])
        return changed

    def _input_required(self, outcome: InputRequired) -> InputRequired:
        requests = {id: self.request(request) for id, request in outcome.requests.items()}
        if all(requests[id].params is request.params for id, request in outcome.requests.items()):
            return outcome
        asked = _members({id: _members({"params": _replaced(raw(r.params))}) for id, r in requests.items()})
        return InputRequired(requests, outcome.state, _changed({"inputRequests": asked}, outcome.result))


class TaskRewriter:
    """Rewrites the ids of one upstream's tasks to those of one client."""

    def __init__(self, rename: Rename) -> None:
        id = _text(rename)
        task = _members({TASK_ID: id})
        meta = _members({META_RELATED_TASK: task})
        self._related: Edits = {"_meta": meta}
        questions = _values(_members({"params": _members(self._related)}))
        self._created: Edits = {TASK: task, TASK_ID: id, **self._related}
        self._task: Edits = {
            TASK_ID: id,
            "result": _members(self._related),
            "inputRequests": questions,
            **self._related,
        }

    def created(self, result: Params) -> Params:
        """A CreateTaskResult of either kind."""
        return _changed(self._created, result)

    def task(self, task: Params) -> Params:
        """A task, as lists, results and notifications hold it."""
        return _changed(self._task, task)

    def related(self, message: Params) -> Params:
        """A message of a task: a final result, or the params of a message before it."""
        return _changed(self._related, message)


def edited(outcome: Outcome, edit: Callable[[Params], Params]) -> Outcome:
    """`outcome` with its final result edited, if it has one."""
    return replace(outcome, result=edit(outcome.result)) if isinstance(outcome, Complete) else outcome


def respelled(outcome: Outcome, own: Raw, asked: Raw) -> Outcome:
    """`outcome`, where it is an error about the requested resource, with its URI as the caller spelt it (R27).

    resources, Error Handling: the URI stands in the error's `data`. All else of an upstream's error is its own.
    """
    if not isinstance(outcome, Failed) or outcome.error.data is None:
        return outcome
    spelling = {parse_text(own): parse_text(asked)}
    data = outcome.error.data
    edited = _members({"uri": _text(lambda uri: spelling.get(uri) or uri)})(data)
    return outcome if edited is data else replace(outcome, error=replace(outcome.error, data=edited))


def kept_private(outcome: Outcome) -> Outcome:
    """`outcome` with `cacheScope: private`: other callers may not be allowed to use what its upstream marks public.

    caching, Cache Scope: what is `public` "may be shared outside of the initial requests authorization context".
    """
    if not isinstance(outcome, Complete) or "cacheScope" not in outcome.result:
        return outcome
    return replace(outcome, result={**outcome.result, "cacheScope": _PRIVATE})


def marked(outcome: Outcome) -> Outcome:
    """The outcome of a tool, with `is_error` set where its result says so."""
    return replace(outcome, is_error=True) if isinstance(outcome, Complete) and is_error(outcome.result) else outcome


def is_error(result: Params) -> bool:
    """Whether a tool's result says that the tool failed."""
    return result.get("isError") == _TRUE


def _hinted(edits: Edits) -> Edits:
    """`edits` of what may hold a URI alone: it looks for the sign of one first."""
    return {key: _where_hinted(edit) for key, edit in edits.items()}


def _where_hinted(edit: Edit) -> Edit:
    return lambda value: edit(value) if may_hold(value, _HINT) else value


def _changed(edits: Edits, members: Params) -> Params:
    changes = _changes(edits, members)
    return {**members, **changes} if changes else members


def _changes(edits: Edits, members: Params) -> Params:
    """The edited members that differ."""
    changes: Params = {}
    for key in edits:
        if key in members and (after := edits[key](members[key])) is not members[key]:
            changes[key] = after
    return changes


def _members(edits: Edits) -> Edit:
    """Edits some members of an object."""

    def edit(value: Raw) -> Raw:
        if not _opens(value, b"{"):
            return value
        try:
            members = parse_object(value)
        except InvalidMessage:
            return value
        changed = _changed(edits, members)
        return value if changed is members else raw(changed)

    return edit


def _typed(edits: Edits) -> Edit:
    """Edits an object according to its member `type`; leaves an unknown type unchanged."""

    def edit(value: Raw) -> Raw:
        if not _opens(value, b"{"):
            return value
        try:
            kind = parse_text(parse_object(value).get("type", b""))
        except InvalidMessage:
            return value
        chosen = edits.get(kind) if kind is not None else None
        return value if chosen is None else chosen(value)

    return edit


def _each(edit: Edit) -> Edit:
    """Edits every item of an array."""

    def edit_each(value: Raw) -> Raw:
        if not _opens(value, b"["):
            return value
        try:
            items = parse_array(value, MAX_ITEMS)
        except (msgspec.MsgspecError, RecursionError):
            return value
        changed = [edit(item) for item in items]
        return raw(changed) if any(map(is_not, changed, items)) else value

    return edit_each


def _each_typed(edits: Edits) -> Edit:
    """Edits every item of an array by its member `type`; of a long array all types are read first, in one pass."""
    each = _each(_typed(edits))
    return lambda value: each(value) if len(value) <= LONG or _may_have_types(value, edits) else value


def _may_have_types(items: Raw, types: Container[str]) -> bool:
    """False where no item of an array is of one of these types."""
    try:
        found = [_typed_item.decode(item).type for item in parse_array(items, MAX_ITEMS)]
    except (msgspec.MsgspecError, RecursionError):
        return True
    return any(type in types for type in found)


def _members_of_each(edits: Edits) -> Edit:
    """Edits some members of every object of an array, which is read in one go."""
    one_by_one = _each(_members(edits))

    def edit(value: Raw) -> Raw:
        try:
            items = _objects.decode(value)
        except (msgspec.MsgspecError, RecursionError):
            return one_by_one(value)  # which is bounded too, and slower
        changed = [_changed(edits, item) for item in items]
        return raw(changed) if any(map(is_not, changed, items)) else value

    return edit


def _values(edit: Edit) -> Edit:
    """Edits every value of an object."""

    def edit_values(value: Raw) -> Raw:
        try:
            members = parse_object(value)
        except InvalidMessage:
            return value
        return _members(dict.fromkeys(members, edit))(value)

    return edit_values


def _one_or_each(edit: Edit) -> Edit:
    each = _each(edit)
    return lambda value: each(value) if _opens(value, b"[") else edit(value)


def _text(rename: Rename) -> Edit:
    """Renames a string."""

    def edit(value: Raw) -> Raw:
        text = parse_text(value)
        renamed = rename(text) if text is not None else None
        return value if renamed is None or renamed == text else raw(renamed)

    return edit


def _replaced(by: Raw) -> Edit:
    return lambda value: by


def _opens(value: Raw, bracket: bytes) -> bool:
    return memoryview(value)[:1] == bracket
