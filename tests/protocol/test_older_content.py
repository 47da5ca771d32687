"""The twin of `mcproxy.protocol.older_content`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from mcproxy.protocol.eras import HANDSHAKE_VERSIONS
from mcproxy.protocol.jsonrpc import Params, first_level, raw
from mcproxy.protocol.methods import Shape
from mcproxy.protocol.older_content import MAX_ITEMS, in_older_content

TEXT = {"type": "text", "text": "a resource_link, and audio"}
LINK = {
    "type": "resource_link",
    "uri": "files+file:///main.rs",
    "name": "main.rs",
    "title": "The main file",
    "description": "Where it begins.",
    "mimeType": "text/x-rust",
    "annotations": {"priority": 1},
}
LINK_AS_TEXT = {
    "type": "text",
    "text": "The main file: files+file:///main.rs\nWhere it begins.",
    "annotations": {"priority": 1},
}
AUDIO = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
AUDIO_AS_RESOURCE = {"type": "resource", "resource": {"uri": "audio:2", "blob": "AAAA", "mimeType": "audio/wav"}}


def decoded(members: Params) -> Any:
    return json.loads(bytes(raw(members)))


@pytest.mark.parametrize(
    ("version", "blocks"),
    [
        ("2024-11-05", [TEXT, LINK_AS_TEXT, AUDIO_AS_RESOURCE]),
        ("2025-03-26", [TEXT, LINK_AS_TEXT, AUDIO]),
        ("2025-06-18", [TEXT, LINK, AUDIO]),
        ("2025-11-25", [TEXT, LINK, AUDIO]),
    ],
)
def test_a_client_gets_the_types_of_blocks_that_its_revision_has(version: str, blocks: list[object]) -> None:
    result = first_level({"content": [TEXT, LINK, AUDIO], "isError": False})
    assert decoded(in_older_content(version, Shape.CONTENT, result)) == {"content": blocks, "isError": False}
    prompt = first_level({"messages": [{"role": "user", "content": block} for block in (TEXT, LINK, AUDIO)]})
    messages = [{"role": "user", "content": block} for block in blocks]
    assert decoded(in_older_content(version, Shape.MESSAGES, prompt)) == {"messages": messages}


def test_what_an_old_revision_knows_is_not_touched() -> None:
    for version in HANDSHAKE_VERSIONS:
        for shape, result in (
            (Shape.CONTENT, first_level({"content": [TEXT, 7, {}]})),
            (Shape.MESSAGES, first_level({"messages": [{"role": "user", "content": TEXT}]})),
            (Shape.CONTENT, first_level({"content": []})),
            (Shape.MESSAGES, first_level({"messages": []})),
            (Shape.CONTENTS, first_level({"contents": [LINK]})),
            (Shape.CONTENT, {}),
        ):
            assert in_older_content(version, shape, result) is result


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ({"uri": "x://y", "name": "y"}, "y: x://y"),
        ({"uri": "x://y", "name": "y", "title": None, "description": ""}, "y: x://y"),
        ({"uri": "x://y"}, "x://y"),
        ({}, ""),
    ],
)
def test_a_link_is_said_as_far_as_it_says_something(link: dict[str, object], text: str) -> None:
    result = first_level({"content": [{"type": "resource_link", **link}]})
    assert decoded(in_older_content("2024-11-05", Shape.CONTENT, result))["content"] == [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    "value",
    [
        b'"a resource_link"',
        b'[{"type":"resource_link"',
        b"[" + b",".join([b'{"type":"resource_link"}'] * (MAX_ITEMS + 1)) + b"]",
    ],
    ids=["no list", "no JSON", "too many"],
)
def test_content_that_is_malformed_or_too_long_passes_as_it_is(value: bytes) -> None:
    result = {"content": Raw(value)}
    assert in_older_content("2025-03-26", Shape.CONTENT, result) is result
    prompt = {"messages": Raw(value)}
    assert in_older_content("2025-03-26", Shape.MESSAGES, prompt) is prompt


def test_a_message_that_is_none_passes_beside_those_that_are() -> None:
    prompt = first_level({"messages": [7, {"role": "user"}, {"role": "user", "content": [LINK]}]})
    got = decoded(in_older_content("2025-03-26", Shape.MESSAGES, prompt))
    assert got == {"messages": [7, {"role": "user"}, {"role": "user", "content": [LINK_AS_TEXT]}]}


@pytest.mark.parametrize(
    ("version", "content", "shown"),
    [
        ("2024-11-05", [], [{"type": "text", "text": '{"n":1}'}]),
        ("2025-03-26", None, [{"type": "text", "text": '{"n":1}'}]),
        ("2025-03-26", [TEXT], [TEXT]),
        ("2025-06-18", [], []),
    ],
)
def test_structured_content_that_is_all_there_is_is_a_text_for_those_who_do_not_know_it(
    version: str, content: object, shown: object
) -> None:
    said = {} if content is None else {"content": content}
    got = decoded(in_older_content(version, Shape.CONTENT, first_level({**said, "structuredContent": {"n": 1}})))
    assert got == {"content": shown, "structuredContent": {"n": 1}}
