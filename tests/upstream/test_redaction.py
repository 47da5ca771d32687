"""What is taken out of a peer's words."""

from __future__ import annotations

import pytest
from msgspec import Raw

from mcproxy.settings import UpstreamSettings
from mcproxy.upstream.redaction import MAX_REPLACED, MAX_TIMES, Redaction

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


def test_r44_secrets_in_the_arguments_of_a_child_are_redacted() -> None:
    args = (
        "--api-key",
        "hunter2",
        "-H",
        "Authorization: Bearer abc-def-123",
        "--auth",
        "anonymous",
        "postgres://u:pass-1@h",
    )
    redact = Redaction.of(UpstreamSettings(name="r", prefix="r", command="x", args=args))
    assert redact("no hunter2 with Bearer abc-def-123 for anonymous at pass-1 of h") == (
        "no [redacted] with Bearer [redacted] for anonymous at [redacted] of h"
    )


def test_ordinary_words_stay() -> None:
    assert Redaction.of(SPEC)("1 mcp at example.com") == "1 mcp at example.com"


@pytest.mark.parametrize(
    "written",
    ["bearer-123", "bearer\\u002d123", "\\u0062earer-123", "b\\u0065arer\\u002D123", "pass\\/word", "query secret"],
)
def test_r78_secrets_are_redacted_in_large_json_which_stays_json(written: str) -> None:
    redact, much = Redaction.of(SPEC), ', 1, "a"' * MAX_REPLACED
    said = Raw(f'[{{"key {written}": "say {written}!"}}{much}]'.encode())
    assert bytes(redact.in_json(said)) == f'[{{"key [redacted]": "say [redacted]!"}}{much}]'.encode()
    other = Raw(f'["{written[:-1]}"{much}]'.encode())
    assert redact.in_json(other) is other


@pytest.mark.parametrize(
    "said",
    [
        "[0{much}, 12345678]",
        '["\\\\\\nbearer-123"{much}]',
        "[{secrets}0{much}]",
    ],
    ids=["a number", "a part of an escape", "very many"],
)
def test_r78_of_large_json_nothing_is_left_where_its_secrets_cannot_be_replaced_one_by_one(said: str) -> None:
    redact = Redaction.of(SPEC.model_copy(update={"env": {"PIN": "12345678", "KEY": "nbearer-123"}}))
    much, secrets = ', 1, "a"' * MAX_REPLACED, '"bearer-123",' * (MAX_TIMES + 1)
    text = said.replace("{much}", much).replace("{secrets}", secrets).encode()
    assert bytes(redact.in_json(Raw(text))) == b'"[redacted]"'
