"""Reads the kind of a stateless server's result: complete, input required, or malformed (2026-07-28, basic).

A complete result's content passes unchanged. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcproxy.call.calls import Complete, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.protocol.capabilities import is_of_extension
from mcproxy.protocol.envelope import without_hop_meta
from mcproxy.protocol.inputs import INPUT_REQUESTS, REQUEST_STATE
from mcproxy.protocol.json.bounds import MAX_VALUES, check_values
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, InvalidMessage, Params, is_null, parse_object, parse_text, raw
from mcproxy.protocol.methods import INPUT_CAPABILITIES, Method
from mcproxy.protocol.tasks import EXTENSION, TASK

COMPLETE: Final = "complete"
INPUT_REQUIRED: Final = "input_required"


class Malformed(Exception):
    """A result that violates the specification. The text says how."""


class _InputRequestBody(msgspec.Struct):
    method: str
    params: Raw | UnsetType = UNSET


_COMPLETE: Final = raw(COMPLETE)
_ASKING: Final = frozenset({INPUT_REQUESTS, REQUEST_STATE})
_question = msgspec.json.Decoder(_InputRequestBody)
_state = msgspec.json.Decoder(str)


def outcome(result: Params, row: Method, extensions: Collection[str] = (), *, asks_more: bool = False) -> Outcome:
    """The outcome of a request of `row` with this result. Raises Malformed.

    `extensions` are those that client and server share: a result type that is unknown here may belong to one. With
    `asks_more` both have extensions that the gateway does not know, whose methods may ask for input.
    """
    # basic, ResultType: "clients MUST treat an absent `resultType` as complete".
    said = result.get("resultType")
    if said is None or said == _COMPLETE:
        return Complete(result)
    kind = parse_text(said)
    if kind is None:
        raise Malformed("its result is unreadable: its type is no string")
    if kind == INPUT_REQUIRED:
        return _wanted(result, row, asks_more=asks_more)
    if kind == TASK and not (row.deferrable and EXTENSION in extensions):
        # tasks extension, Capability Negotiation: only to clients that declared it, and only for such requests.
        raise Malformed(f"its result is a task, which is not allowed for {row.name} here")
    if kind != COMPLETE and not extensions:
        raise Malformed(f"its result is of an unknown type ({kind[:100]!r}), and no extension is shared with it")
    return Complete(result)


def _wanted(result: Params, row: Method, *, asks_more: bool) -> InputRequired:
    if not row.may_ask:
        raise Malformed(f"it asks for input, which is not allowed for {row.name}")
    result = {key: value for key, value in result.items() if key not in _ASKING or not is_null(value)}
    try:
        state = _state.decode(result[REQUEST_STATE]) if REQUEST_STATE in result else None
        asked = result.get(INPUT_REQUESTS, EMPTY_OBJECT)
        check_values(asked, MAX_VALUES)
        listed = parse_object(asked)
        questions = {key: _question.decode(question) for key, question in listed.items()}
        requests = {key: InputRequest(question.method, _params(question)) for key, question in questions.items()}
    except (msgspec.MsgspecError, InvalidMessage, RecursionError) as error:
        raise Malformed(f"it asks for input in a malformed way: {error}") from error
    methods = [question.method for question in questions.values()]
    unknown = next((method for method in methods if not _may_be_asked(method, asks_more=asks_more)), None)
    if unknown is not None:
        raise Malformed(f"it asks for something that no client can be asked for: {unknown[:100]!r}")
    if not questions and state is None:
        raise Malformed("it asks for input, with neither inputRequests nor a requestState")
    return InputRequired(requests, state, result)


def _may_be_asked(method: str, *, asks_more: bool) -> bool:
    return method in INPUT_CAPABILITIES or (asks_more and is_of_extension(method))


def _params(question: _InputRequestBody) -> Params:
    return {} if question.params is UNSET else without_hop_meta(parse_object(question.params))
