"""The twin of `mcproxy.protocol.inputs`."""

from __future__ import annotations

import pytest

from mcproxy.protocol.inputs import Capabilities, check_answer, merged, missing_capabilities, named
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, raw

FORM: dict[str, object] = {"message": "?", "requestedSchema": {}}
URL: dict[str, object] = {"message": "?", "mode": "url", "url": "https://example.com"}


def members(value: dict[str, object]) -> Params:
    return {key: raw(member) for key, member in value.items()}


@pytest.mark.parametrize(
    ("declared", "method", "params", "missing"),
    [
        ({}, "roots/list", {}, {"roots": {}}),
        ({"roots": {}}, "roots/list", {}, {}),
        ({}, "elicitation/create", FORM, {"elicitation": {}}),
        ({"elicitation": {}}, "elicitation/create", FORM, {}),
        ({"elicitation": {"form": {}}}, "elicitation/create", {**FORM, "mode": "form"}, {}),
        ({"elicitation": {"url": {}}}, "elicitation/create", FORM, {"elicitation": {"form": {}}}),
        ({}, "elicitation/create", URL, {"elicitation": {"url": {}}}),
        ({"elicitation": {}}, "elicitation/create", URL, {"elicitation": {"url": {}}}),
        ({"elicitation": {"url": {}}}, "elicitation/create", URL, {}),
        ({"elicitation": {"form": {}, "url": None}}, "elicitation/create", URL, {"elicitation": {"url": {}}}),
        ({"elicitation": {"form": None, "url": None}}, "elicitation/create", FORM, {}),
        ({"elicitation": True}, "elicitation/create", URL, {"elicitation": {"url": {}}}),
        ({"sampling": {}}, "sampling/createMessage", {"messages": []}, {}),
        ({"sampling": {}}, "sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}),
        ({"sampling": {"tools": {}}}, "sampling/createMessage", {"tools": []}, {}),
        ({"sampling": {}}, "sampling/createMessage", {"toolChoice": {}}, {"sampling": {"tools": {}}}),
        ({"roots": {}}, "sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}),
    ],
)
def test_what_a_client_lacks_to_answer(
    declared: dict[str, object], method: str, params: dict[str, object], missing: Capabilities
) -> None:
    assert missing_capabilities(members(declared), method, members(params)) == missing


def test_what_is_missing_adds_up_and_has_names() -> None:
    both = merged({"elicitation": {"url": {}}}, {"elicitation": {"form": {}}, "roots": {}})
    assert both == {"elicitation": {"url": {}, "form": {}}, "roots": {}}
    assert named(both) == "elicitation.url, elicitation.form, roots"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("elicitation/create", {"action": "decline"}),
        ("elicitation/create", {"action": "accept", "content": {"name": "Ada", "age": 36}, "_meta": {"x": 1}}),
        ("sampling/createMessage", {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}),
        ("sampling/createMessage", {"role": "assistant", "content": [], "model": "m", "stopReason": "toolUse"}),
        ("roots/list", {"roots": []}),
        ("roots/list", {"roots": [{"uri": "file:///a"}]}),
    ],
)
def test_a_result_of_its_request_is_an_answer(method: str, answer: object) -> None:
    check_answer(method, raw(answer))


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("elicitation/create", {"action": "agree"}),
        ("elicitation/create", {"content": {}}),
        ("elicitation/create", {"action": "accept", "content": []}),
        ("elicitation/create", "accept"),
        ("elicitation/create", None),
        ("sampling/createMessage", {"role": "system", "content": {}, "model": "m"}),
        ("sampling/createMessage", {"role": "assistant", "content": {}}),
        ("roots/list", {"roots": {}}),
        ("roots/list", {"roots": ["file:///a"]}),
        ("roots/list", [{"roots": []}]),
    ],
)
def test_anything_else_is_none(method: str, answer: object) -> None:
    with pytest.raises(InvalidMessage):
        check_answer(method, raw(answer))


def test_an_answer_to_a_question_of_an_extension_is_any_object() -> None:
    check_answer("novel/ask", raw({"any": 1}))
    with pytest.raises(InvalidMessage):
        check_answer("novel/ask", raw([1]))
