"""Answers of newer clients as servers of older revisions know them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcproxy.protocol.eras import HANDSHAKE_VERSIONS, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import first_level
from mcproxy.upstream.handshake.server_requests import MAX_BLOCKS, with_single_block

A: dict[str, Any] = {"type": "text", "text": "a"}
B: dict[str, Any] = {"type": "text", "text": "b", "annotations": {}}
IMAGE: dict[str, Any] = {"type": "image", "data": "AA==", "mimeType": "image/png"}


def content(given: Any, version: str | None = "2025-06-18") -> Any:
    """The content of an answer that a server of `version` gets; what else the answer has stays."""
    told = with_single_block(version, first_level({"role": "assistant", "content": given, "model": "m", "x": None}))
    read = {key: json.loads(bytes(value)) for key, value in told.items()}
    assert {key: read[key] for key in ("role", "model", "x")} == {"role": "assistant", "model": "m", "x": None}
    return read["content"]


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS[:-1])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([A], A),
        ([IMAGE], IMAGE),
        ([A, B], {"type": "text", "text": "a\nb"}),
        ([A, A, A], {"type": "text", "text": "a\na\na"}),
    ],
)
def test_a_server_of_old_gets_one_block(version: str, given: Any, told: Any) -> None:
    assert content(given, version) == told


@pytest.mark.parametrize(
    "given",
    [
        A,
        [],
        [A, IMAGE],
        [A, {"type": "text"}],
        [A, {"type": "text", "text": 1}],
        [A, None],
        None,
        "x",
        {"name": "of a form"},
        [A] * (MAX_BLOCKS + 1),
    ],
)
def test_what_is_one_block_or_makes_none_passes(given: Any) -> None:
    assert content(given) == given


@pytest.mark.parametrize("version", [None, LATEST_HANDSHAKE])
def test_a_server_that_knows_lists_of_blocks_gets_them(version: str | None) -> None:
    assert content([A, B], version) == [A, B]


def test_an_answer_without_content_passes() -> None:
    answer = first_level({"action": "cancel"})
    assert with_single_block("2025-06-18", answer) is answer
