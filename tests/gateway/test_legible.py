"""The twin of `mcproxy.gateway.legible`: a person can see all that is in the arguments of a call."""

from __future__ import annotations

import hashlib
import json
import unicodedata

import msgspec
import pytest
from hypothesis import given, strategies
from msgspec import Raw

from mcproxy.gateway.legible import legible, masked
from mcproxy.protocol.jsonrpc import raw
from tests.steps import functions_called


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
    assert legible(Raw(sent.encode()), 100) == read


def test_every_control_of_writing_direction_is_seen() -> None:
    directions = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in CONTROLS]
    assert len(directions) > 8
    assert all(legible(raw(f"a{each}b"), 100).isascii() for each in directions)


CONTROLS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@given(strategies.recursive(strategies.text() | strategies.integers(), strategies.lists, max_leaves=5))
def test_what_is_read_is_the_value_that_was_sent(value: object) -> None:
    text = legible(raw(value), 10**6)
    assert json.loads(text) == value
    assert text.isprintable()


def test_of_a_long_text_the_end_is_shown_and_how_long_it_is() -> None:
    sent = json.dumps("x" * 2498 + "; rm -rf /").encode()
    shown = legible(Raw(sent), 100)
    assert shown.startswith(
        '"' + "x" * 49 + " [... the middle is left out here, of 2510 characters in all; SHA-256 of all: "
    )
    assert hashlib.sha256(sent).hexdigest() in shown
    assert shown.endswith("] " + "x" * 39 + '; rm -rf /"')
    assert legible(Raw(sent), 2510) == sent.decode()


PARTS = ["a", "名", "\u202e", "\U000e0041", "\\\\", '\\"', "\\n", "\\u0041", "\\u202E", "\\ud83d\\ude00", "\\\\\\u005c"]


@given(strategies.lists(strategies.sampled_from(PARTS), max_size=60), strategies.integers(1, 40))
def test_head_and_tail_of_a_long_text_are_those_of_the_whole(parts: list[str], most: int) -> None:
    sent = Raw(('"' + "".join(parts) + '"').encode())
    whole, shown = legible(sent, 10**6), legible(sent, most)
    if len(whole) <= most:
        assert shown == whole
    else:
        head, tail = whole[: most // 2], whole[len(whole) - (most - most // 2) :]
        assert shown.startswith(f"{head} [... ")
        assert shown.endswith(f" ...] {tail}")


@pytest.mark.parametrize(("part", "read"), [(r"\u0041", "A"), (r"\u202E", r"\u202e"), ("\\\\", "\\\\"), (r"\"", r"\"")])
def test_no_escape_is_torn_wherever_it_stands_in_a_long_text(part: str, read: str) -> None:
    for before in ("x" * number for number in range(6)):
        assert legible(Raw(f'"{before}{part * 3000}"'.encode()), 10**6) == f'"{before}{read * 3000}"'


@pytest.mark.parametrize("part", [r"\u0041", r"\u202e", r"\\", r"\"", "\u202e"])
def test_r78_no_more_is_read_one_by_one_than_is_shown(part: str) -> None:
    sent = Raw(('"' + part * 200_000 + '"').encode())
    assert functions_called(lambda: legible(sent, 4000)) < 40_000


def test_texts_of_the_named_arguments_are_masked_and_no_others() -> None:
    arguments = {"auth": raw({"token": ["hunter22", 7], "hunter22": None}), "path": raw("hunter22")}
    after = masked(arguments, {"auth"}, lambda text: text.replace("hunter22", "[redacted]"))
    assert msgspec.json.decode(raw(after)) == {
        "auth": {"token": ["[redacted]", 7], "[redacted]": None},
        "path": "hunter22",
    }
