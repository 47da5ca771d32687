"""Questions in the forms of older revisions: choices with titles, and messages to a model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.downstream.handshake.client_requests import MAX_MESSAGES, in_older_form
from mcproxy.protocol.jsonrpc import Params, first_level, raw

TITLED = {"type": "string", "title": "Size", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "L"}]}
OLDER = {"type": "string", "title": "Size", "enum": ["s", "l"], "enumNames": ["Small", "L"]}
PLAIN = {"type": "string", "enum": ["s", "l"], "default": "s"}
SEVERAL = {"type": "array", "items": {"anyOf": [{"const": "s", "title": "Small"}]}}


def form(**properties: object) -> Params:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return first_level({"mode": "form", "message": "?", "requestedSchema": schema})


def decoded(params: Params) -> Any:
    return json.loads(bytes(raw(params)))


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18"])
def test_choices_with_titles_are_spelled_as_older_clients_know_them(version: str) -> None:
    asked = in_older_form(version, form(size=TITLED, other=PLAIN, several=SEVERAL))
    assert decoded(asked) == decoded(form(size=OLDER, other=PLAIN, several=SEVERAL))


def test_a_client_that_knows_them_gets_the_form_as_it_is() -> None:
    asked = form(size=TITLED)
    assert in_older_form("2025-11-25", asked) is asked


def text(words: str) -> dict[str, object]:
    return {"type": "text", "text": words}


def test_messages_of_several_blocks_become_messages_of_one() -> None:
    plain = {"role": "assistant", "content": text("c"), "_meta": {"k": 1}}
    several = {"role": "user", "content": [text("a"), text("b")]}
    question = first_level({"messages": [several, plain, {"role": "user", "content": [text("d")]}], "maxTokens": 9})
    asked = in_older_form("2025-06-18", question)
    one, two, last = ({"role": "user", "content": text(words)} for words in "abd")
    assert decoded(asked) == {"messages": [one, two, plain, last], "maxTokens": 9}
    assert in_older_form("2025-11-25", question) is question


@pytest.mark.parametrize(
    "question",
    [
        first_level({"messages": []}),
        first_level({"messages": 7}),
        first_level({"messages": [{"role": "user", "content": [text("a")]}] * (MAX_MESSAGES + 1)}),
        first_level({"messages": [7, {"role": "user", "content": []}, {"role": "user"}]}),
        first_level({"messages": [{"role": "robot", "content": [text("a")]}]}),
        first_level({"messages": [{"role": "user", "content": text("a")}]}),
        first_level({"message": "no form"}),
        first_level({"requestedSchema": 7}),
        first_level({"requestedSchema": {"properties": []}}),
        form(other=PLAIN, several=SEVERAL, odd=7),
        form(odd={"type": "string", "oneOf": [{"const": 1, "title": "One"}]}),
        form(odd={"type": "string", "oneOf": "all"}),
        form(odd={"type": "string", "oneOf": [{"const": "s", "title": "Small"}], "enum": ["s"]}),
    ],
)
def test_what_is_spelled_no_otherwise_passes_as_it_is(question: Params) -> None:
    assert in_older_form("2025-06-18", question) is question
