"""The twin of `mcproxy.gateway.approval.legible`: a person can see all that is in the arguments of a call."""

from __future__ import annotations

import hashlib
import json
import unicodedata

import msgspec
import pytest
from hypothesis import given, strategies
from msgspec import Raw

from mcproxy.gateway.approval.legible import abridged, legible, masked
from mcproxy.protocol.jsonrpc import raw


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('"/srv/a b/ä/名"', '"/srv/a b/ä/名"'),
        ('"a\u202eb"', '"a\\u202eb"'),
        ('"a\u200bb\ufeff"', '"a\\u200bb\\ufeff"'),
        ('"a\u00a0b\u3000c"', '"a\\u00a0b\\u3000c"'),
        ('"a\u3164b\u2800"', '"a\\u3164b\\u2800"'),
        ('"a\U000e0041"', '"a\\udb40\\udc41"'),
        ('"\\u001b[2K\\r\\n"', '"\\u001b[2K\\r\\n"'),
        ('"\\u0072\\u006d -rf"', '"rm -rf"'),
        ('"\\u202E"', '"\\u202e"'),
        ('"\\\\u0072"', '"\\\\u0072"'),
        ('"\\u0022,\\u005c"', '"\\u0022,\\u005c"'),
        ('{"a" :\n\n\n 1,\t"a": 2}', '{"a":1,"a":2}'),
    ],
)
def test_what_cannot_be_seen_is_written_as_an_escape_and_what_can_as_it_is(sent: str, read: str) -> None:
    assert legible(Raw(sent.encode())) == read


def test_every_control_of_writing_direction_is_seen() -> None:
    directions = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in CONTROLS]
    assert len(directions) > 8
    assert all(legible(raw(f"a{each}b")).isascii() for each in directions)


CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(strategies.recursive(strategies.text() | strategies.integers(), strategies.lists, max_leaves=5))
def test_what_is_read_is_the_value_that_was_sent(value: object) -> None:
    text = legible(raw(value))
    assert json.loads(text) == value
    assert text.isprintable()


def test_of_a_long_text_the_end_is_shown_and_how_much_is_left_out() -> None:
    text = "x" * 2500 + "; rm -rf /"
    shown = abridged(text, 100)
    assert shown.startswith("x" * 50 + " [... 2410 of 2510 characters are left out here; SHA-256 of all: ")
    assert hashlib.sha256(text.encode()).hexdigest() in shown
    assert shown.endswith("] " + "x" * 40 + "; rm -rf /")
    assert abridged(text, 2510) == text


def test_texts_of_the_named_arguments_are_masked_and_no_others() -> None:
    arguments = {"auth": raw({"token": ["hunter22", 7], "hunter22": None}), "path": raw("hunter22")}
    after = masked(arguments, {"auth"}, lambda text: text.replace("hunter22", "[redacted]"))
    assert msgspec.json.decode(raw(after)) == {
        "auth": {"token": ["[redacted]", 7], "[redacted]": None},
        "path": "hunter22",
    }
