"""The home of a request: the process named by the label in the id of a session, a parked call or a task. Pure.

A label is a hint until the value behind it is opened: a request with a forged one goes to a replica that refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw

from mcproxy.catalog.uris import RESULT_SCHEME
from mcproxy.protocol.json.bounds import parse_texts
from mcproxy.protocol.tasks import MAX_LISTENED
from mcproxy.sealing import label_of

_SESSION_PARAMETER: Final = "session_id"
"""The parameter in the URL that clients of 2024-11-05 post to."""
_MARKS: Final = (b'"requestState"', b'"taskId', f'"{RESULT_SCHEME}:'.encode())
"""One of these occurs in every body that names a parked call, a task or a kept result."""
_LISTENED: Final = b'"taskIds"'
"""Occurs in every stateless request for a stream that has a home."""


class HomeKind(Enum):
    """The kind of a thing that lives in one process."""

    NOTHING = "nothing"
    SESSION = "a handshake session"
    STREAM = "a session of 2024-11-05, which ends with its stream"
    PARKED = "a call that waits for its client"
    TASK = "a task"
    RESULT = "a large result of which a part was shown"


@dataclass(frozen=True, slots=True)
class Home:
    """The thing that a request names: its `key`, and the label of the process where it lives; empty if it has none."""

    kind: HomeKind
    key: str = ""
    label: str = ""


NOWHERE: Final = Home(HomeKind.NOTHING)
_NO_TASKS: Final = Raw(b"[]")


class _Params(msgspec.Struct):
    state: str | None = msgspec.field(default=None, name="requestState")
    task: str | None = msgspec.field(default=None, name="taskId")
    tasks: Raw = msgspec.field(default=_NO_TASKS, name="taskIds")
    uri: str = ""
    notifications: _Listened | None = None


class _Listened(msgspec.Struct):
    tasks: Raw = msgspec.field(default=_NO_TASKS, name="taskIds")


class _Body(msgspec.Struct):
    params: _Params | None = None


class _ClientAnswer(msgspec.Struct):
    id: str | int | None = None
    method: str | None = None


_bodies = msgspec.json.Decoder(_Body)
_answers = msgspec.json.Decoder(_ClientAnswer)


def session_home(session: str) -> Home:
    """The home of a session of the handshake era, by its id."""
    return Home(HomeKind.SESSION, session, label_of(session))


def names_stream(target: str) -> bool:
    """Whether a target may be one that clients of 2024-11-05 post to."""
    return _SESSION_PARAMETER in target


def names_something(body: bytes) -> bool:
    """Whether a body may name something that lives in one process."""
    return any(mark in body for mark in _MARKS)


def opens_stream(method: str, body: bytes) -> bool:
    """Whether a request that is sent on opens a stream of changes, in either era, and not one that answers a call."""
    return method == "GET" or _LISTENED in body


def stream_home(target: str) -> Home:
    """The home of an HTTP+SSE stream (2024-11-05), by the URL that its client posts to."""
    key = dict(parse_qsl(target.partition("?")[2])).get(_SESSION_PARAMETER, "")
    return Home(HomeKind.STREAM, key, label_of(key))


def body_home(body: bytes) -> Home:
    """What a stateless request names; nothing for another body, which the handler refuses."""
    try:
        params = _bodies.decode(body).params
    except msgspec.MsgspecError:
        return NOWHERE
    if params is None:
        return NOWHERE
    if params.state is not None:
        label = label_of(params.state)
        # Without a label it is an upstream's own state, which every replica can relay.
        return Home(HomeKind.PARKED, params.state, label) if label else NOWHERE
    try:
        tasks = parse_texts(params.tasks, MAX_LISTENED)
        listened = [] if params.notifications is None else parse_texts(params.notifications.tasks, MAX_LISTENED)
    except msgspec.MsgspecError:
        return NOWHERE
    for task in (params.task, *tasks, *listened):
        if task is not None and label_of(task):
            return Home(HomeKind.TASK, task, label_of(task))
    scheme, _, token = params.uri.partition(":")
    if scheme == RESULT_SCHEME and label_of(token):
        return Home(HomeKind.RESULT, params.uri, label_of(token))
    return NOWHERE


def answered_label(body: bytes) -> str | None:
    """The label of the process whose request a client answers; None where the body is no answer, empty without label.

    What a client says of its calls (cancelled, progress) belongs to no request of ours: an empty label as well.
    """
    try:
        answer = _answers.decode(body)
    except msgspec.MsgspecError:
        return None
    if answer.method is not None:
        return "" if answer.id is None else None
    return label_of(answer.id) if isinstance(answer.id, str) else ""
