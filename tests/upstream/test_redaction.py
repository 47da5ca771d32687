"""What is taken out of a peer's words."""

from __future__ import annotations

import pytest
from msgspec import Raw

from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.redaction import MAX_REPLACED, Redaction

SPEC = UpstreamSettings(
    name="r",
    prefix="r",
    url="https://user-123:pass%2Fword@example.com/s/aaaabbbbccccdddd/mcp?key=query%20secret&debug=1",
    headers={"Authorization": "Bearer bearer-123"},
    env={"KEY": "environment-123", "PIN": "12345678", "DEBUG": "1"},
)


@pytest.mark.parametrize(
    "secret",
    ["user-123", "pass%2Fword", "pass/word", "aaaabbbbccccdddd", "query%20secret", "query secret", "bearer-123",
     "environment-123"],
)  # fmt: skip
def test_r44_secrets_of_the_settings_are_redacted_by_value(secret: str) -> None:
    assert Redaction.of(SPEC)(f"say {secret}!") == "say [redacted]!"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (b'{"a": ["bearer-123", 1.0, "x"]}', b'{"a": ["[redacted]", 1.0, "x"]}'),
        (b'{"say bearer\\u002d123": null}', b'{"say [redacted]": null}'),
        (b'["\\ud800 bearer-123"]', b'["\\"\\\\ud800 [redacted]\\""]'),
        (b'{"pin": 12345678}', b'{"pin": "[redacted]"}'),
        (b'{"kept":  "\\u0041\\"", "n": -1e5}', b'{"kept":  "\\u0041\\"", "n": -1e5}'),
    ],
)
def test_r44_secrets_are_redacted_in_json_which_stays_json(said: bytes, shown: bytes) -> None:
    assert bytes(Redaction.of(SPEC).in_json(Raw(said))) == shown


def test_ordinary_words_stay() -> None:
    assert Redaction.of(SPEC)("1 mcp at example.com") == "1 mcp at example.com"


@pytest.mark.parametrize(
    "written",
    ["bearer-123", "bearer\\u002d123", "\\u0062earer-123", "b\\u0065arer\\u002D123", "pass\\/word", "query secret"],
)
def test_r78_of_large_json_with_a_secret_in_it_nothing_is_left(written: str) -> None:
    redact, much = Redaction.of(SPEC), ', 1, "a"' * MAX_REPLACED
    assert bytes(redact.in_json(Raw(f'["{written}"{much}]'.encode()))) == b'"[redacted]"'
    assert bytes(redact.in_json(Raw(f"[0{much}, 12345678]".encode()))) == b'"[redacted]"'
    other = Raw(f'["{written[:-1]}"{much}]'.encode())
    assert redact.in_json(other) is other
