"""Tasks in the two revisions that have them: their capabilities, members and notifications. Runs none.

In 2025-11-25 the client makes a request a task (basic/utilities/tasks, experimental); in the extension of 2026-07-28
(io.modelcontextprotocol/tasks) the server does. Neither can be put in terms of the other; other revisions have none.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final, assert_never

import msgspec
from msgspec import Raw

from mcproxy.protocol.envelope import META, with_meta
from mcproxy.protocol.eras import STATELESS_VERSIONS, V2025_11_25
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INVALID_PARAMS,
    InvalidMessage,
    Params,
    nonnull,
    parse_object,
    parse_text,
    raw,
)

CAPABILITY: Final = "tasks"
"""The capability of 2025-11-25, for servers and clients."""
EXTENSIONS: Final = "extensions"
EXTENSION: Final = "io.modelcontextprotocol/tasks"
META_RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
TASK: Final = "task"
"""The member of a request that makes it a task, that of a result that describes one (2025-11-25), and the type of
such a result (the extension)."""
TASK_ID: Final = "taskId"

TASK_GET: Final = "tasks/get"
TASK_LIST: Final = "tasks/list"
TASK_RESULT: Final = "tasks/result"
TASK_CANCEL: Final = "tasks/cancel"
TASK_STATUS: Final = "notifications/tasks/status"
TASK_NOTIFICATION: Final = "notifications/tasks"

NEEDED: Final[dict[str, object]] = {EXTENSIONS: {EXTENSION: {}}}
"""What a client of the extension must declare in each request about tasks."""
DECLARED: Final[Params] = {EXTENSIONS: raw({EXTENSION: {}})}
"""The same, as capabilities."""


UNDECLARED: Final = "the client did not declare the extension of tasks"
LISTEN_TASKS: Final = "taskIds"
"""The member of a `subscriptions/listen` filter that names tasks."""
_FILTER: Final = "notifications"
MAX_LISTENED: Final = 10_000
"""Tasks that a filter names."""
_CANCELLED: Final = frozenset({"cancelled"})
_ENDED: Final = _CANCELLED | {"completed", "failed"}


class Dialect(Enum):
    """The kind of tasks that a revision has."""

    CORE = "core"
    EXTENSION = "extension"

    __hash__ = object.__hash__  # Enum's own is Python, and each look-up of a view takes one


class Support(Enum):
    """A tool's `execution.taskSupport`; unknown values count as FORBIDDEN."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


_DIALECTS: Final = {V2025_11_25: Dialect.CORE, **dict.fromkeys(STATELESS_VERSIONS, Dialect.EXTENSION)}


def dialect(version: str) -> Dialect | None:
    """The kind of tasks in a version of MCP; None if it has none."""
    return _DIALECTS.get(version)


def offer(version: str, capabilities: Params) -> Params | None:
    """The task capabilities of a peer of `version`; None if it has none."""
    match dialect(version):
        case Dialect.CORE:
            return _member(capabilities, CAPABILITY)
        case Dialect.EXTENSION:
            return extension_settings(capabilities, EXTENSION)
        case None:
            return None
        case kind:
            assert_never(kind)


def extensions(capabilities: Params) -> Params:
    """The extensions that a peer declares, by identifier (2026-07-28, versioning, Extension Negotiation)."""
    return _member(capabilities, EXTENSIONS) or {}


def extension_settings(capabilities: Params, identifier: str) -> Params | None:
    """The settings of one extension; None if it is not declared."""
    return _member(extensions(capabilities), identifier)


def with_extensions(capabilities: Params, identifiers: Collection[str]) -> Params:
    """`capabilities` with only these of its extensions."""
    rest = {key: value for key, value in capabilities.items() if key != EXTENSIONS}
    kept = {key: value for key, value in extensions(capabilities).items() if key in identifiers}
    return {**rest, EXTENSIONS: raw(kept)} if kept else rest


def takes_tool_calls(offer: Params) -> bool:
    """Whether a server of 2025-11-25 lets clients call tools as tasks (tasks, Server Capabilities)."""
    return "call" in (_member(_member(offer, "requests") or {}, "tools") or {})


def shared_tasks(capabilities: Params, one: str, other: str) -> Params:
    """`capabilities` of either peer with only the kind of tasks that both versions have."""
    if CAPABILITY not in capabilities and EXTENSIONS not in capabilities:
        return capabilities
    rest = without_tasks(capabilities)
    match dialect(one) if dialect(one) is dialect(other) else None:
        case Dialect.CORE if CAPABILITY in capabilities:
            return {**rest, CAPABILITY: capabilities[CAPABILITY]}
        case Dialect.EXTENSION if offer(one, capabilities) is not None:
            return {**rest, EXTENSIONS: capabilities[EXTENSIONS]}
        case _:
            return rest


def without_tasks(capabilities: Params) -> Params:
    """`capabilities` of either peer without tasks of any kind."""
    kept = {key: value for key, value in capabilities.items() if key != CAPABILITY}
    others = extensions(kept)
    return with_extensions(kept, others.keys() - {EXTENSION}) if EXTENSION in others else kept


def support(tool: Params) -> Support:
    """The task support in an entry of `tools/list` (tasks, Tool-Level Negotiation)."""
    execution = _member(tool, "execution")
    if execution is None:
        return Support.FORBIDDEN
    try:
        return Support(parse_text(execution.get("taskSupport", b"")))
    except ValueError:
        return Support.FORBIDDEN


def without_support(tool: Params) -> Params:
    """An entry of `tools/list` without task support."""
    if support(tool) is Support.FORBIDDEN:
        return tool
    execution = _member(tool, "execution") or {}
    rest = {key: value for key, value in execution.items() if key != "taskSupport"}
    others = {key: value for key, value in tool.items() if key != "execution"}
    return {**others, "execution": raw(rest)} if rest else others


def created(kind: Dialect, result: Params) -> str | None:
    """The id of the task that a result of `tools/call` describes; None for a final result."""
    match kind:
        case Dialect.CORE:
            return parse_text((_member(result, TASK) or {}).get(TASK_ID, b""))
        case Dialect.EXTENSION:
            return parse_text(result.get(TASK_ID, b"")) if result.get("resultType") == raw(TASK) else None
        case _:
            assert_never(kind)


def lifetime(kind: Dialect, result: Params) -> float:
    """Seconds that the task in a result of `tools/call` lives; infinite if it names no end."""
    return _seconds(kind, result, "ttl", math.inf)


def poll_interval(kind: Dialect, result: Params) -> float:
    """Seconds between two questions that such a result asks for; 0 if it does not say."""
    return _seconds(kind, result, "pollInterval", 0)


def _seconds(kind: Dialect, result: Params, name: str, default: float) -> float:
    members, key = (_member(result, TASK) or {}, name) if kind is Dialect.CORE else (result, f"{name}Ms")
    try:
        return msgspec.json.decode(members[key], type=float) / 1000
    except (KeyError, msgspec.MsgspecError):
        return default


def is_spent(kind: Dialect, result: Params, *, has_result: bool) -> bool:
    """Whether a result about a task shows that nothing of it is left to be fetched.

    `has_result` says that it is the task's own. In the extension, the state of a task that is over holds its result.
    """
    ended = _CANCELLED if kind is Dialect.CORE else _ENDED
    return has_result or parse_text(result.get("status", b"")) in ended


def has_ended(state: Params) -> bool:
    """Whether a task of that state is over, which it then stays."""
    return parse_text(state.get("status", b"")) in _ENDED


def listening_for(ids: Iterable[str]) -> Params:
    """A filter of `subscriptions/listen` for those tasks, as its request and its acknowledgement hold it."""
    return {_FILTER: raw({LISTEN_TASKS: list(ids)})}


def listened(params: Params, most: int = MAX_LISTENED) -> tuple[str, ...]:
    """The tasks that such a filter names, at most so many, each once. Raises InvalidMessage."""
    members = nonnull(parse_object(params.get(_FILTER, EMPTY_OBJECT)))
    try:
        return tuple(dict.fromkeys(parse_texts(members[LISTEN_TASKS], most))) if LISTEN_TASKS in members else ()
    except msgspec.MsgspecError as error:
        raise InvalidMessage(INVALID_PARAMS, f"{LISTEN_TASKS} must be a list of ids: {error}") from error


def related_task(params: Params) -> str | None:
    """The id of the task that a message says it belongs to (tasks, Related Task Metadata)."""
    related = _member(_member(params, META) or {}, META_RELATED_TASK)
    return None if related is None else parse_text(related.get(TASK_ID, b""))


def related_to(id: str, message: Params) -> Params:
    """`message`, said to belong to that task."""
    return with_meta(message, {META_RELATED_TASK: {TASK_ID: id}})


def unrelated(message: Params) -> Params:
    """`message` without a word of the task that it belongs to."""
    meta = _member(message, META)
    if meta is None or META_RELATED_TASK not in meta:
        return message
    rest = {key: value for key, value in meta.items() if key != META_RELATED_TASK}
    others = {key: value for key, value in message.items() if key != META}
    return {**others, META: raw(rest)} if rest else others


def _member(members: Params, key: str) -> Params | None:
    """The object at `key`; None where there is none."""
    return _read(members[key]) if key in members else None


def _read(value: Raw) -> Params | None:
    try:
        return parse_object(value)
    except InvalidMessage:
        return None
