"""The twin of `mcproxy.catalog.contents`."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from mcproxy.catalog.contents import contents_fault
from mcproxy.protocol.jsonrpc import Params, first_level
from mcproxy.settings import Content


def read(*parts: object) -> Params:
    return first_level({"contents": [{"uri": "x:y", **part} if isinstance(part, dict) else part for part in parts]})


def rules(**given: object) -> Content:
    return Content.model_validate(given)


@given(st.binary())
def test_base64_passes(data: bytes) -> None:
    assert contents_fault(Content(), read({"blob": base64.b64encode(data).decode()})) is None


@pytest.mark.parametrize("blob", ["AAA", "AAAA=", "AA==AA==", "AAAA\n", " AAAA", "A-_A", "ä", "%%%%", 7])
def test_a_blob_that_is_no_base64_does_not(blob: object) -> None:
    assert contents_fault(Content(), read({"text": "fine"}, {"blob": blob})) is not None
    if isinstance(blob, str):
        assert contents_fault(rules(check_blobs=False), read({"blob": blob})) is None


def test_a_blob_is_found_under_an_escaped_key() -> None:
    escaped = {"contents": Raw(rb'[{"uri": "x:y", "\u0062lob": "!"}]')}
    assert contents_fault(Content(), escaped) == "a blob that is not Base64 (content.check_blobs)"


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        ("text/plain", True),
        ("Text/Plain; charset=utf-8", True),
        ("image/png", True),
        ("image/svg+xml", True),
        ("application/json", False),
        ("text/html", False),
        ("", False),
        (None, False),
    ],
)
def test_only_allowed_types_pass(kind: str | None, passes: bool) -> None:
    found = contents_fault(rules(types=["text/plain", "image/*"]), read({"mimeType": kind, "text": "x"}))
    assert (found is None) is passes
    assert found is None or "content.types" in found


def test_the_largest_content_is_counted_in_bytes_that_a_client_gets() -> None:
    bounded = rules(max_bytes=4)
    assert contents_fault(bounded, read({"text": "ääx"})) == "content of 5 bytes (content.max_bytes)"
    assert contents_fault(bounded, read({"text": "ää"}, {"blob": base64.b64encode(b"1234").decode()})) is None
    assert contents_fault(bounded, read({"blob": base64.b64encode(b"12345").decode()})) is not None


def test_what_is_not_bounded_is_not_looked_at() -> None:
    assert contents_fault(Content(), first_level({"contents": 7})) is None
    assert contents_fault(rules(max_bytes=1), first_level({"contents": 7})) is not None
