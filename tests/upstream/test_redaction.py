"""What is taken out of a peer's words."""

from __future__ import annotations

import pytest

from mcproxy.settings import Upstream
from mcproxy.upstream.redaction import Redaction

SPEC = Upstream(
    name="r",
    prefix="r",
    url="https://user-123:pass%2Fword@example.com/s/aaaabbbbccccdddd/mcp?key=query%20secret&debug=1",
    headers={"Authorization": "Bearer bearer-123"},
    env={"KEY": "environment-123", "DEBUG": "1"},
)


@pytest.mark.parametrize(
    "secret",
    ["user-123", "pass%2Fword", "pass/word", "aaaabbbbccccdddd", "query%20secret", "query secret", "bearer-123",
     "environment-123"],
)  # fmt: skip
def test_r44_secrets_of_the_settings_are_redacted_by_value(secret: str) -> None:
    assert Redaction.of(SPEC)(f"say {secret}!") == "say [redacted]!"


def test_ordinary_words_stay() -> None:
    assert Redaction.of(SPEC)("1 mcp at example.com") == "1 mcp at example.com"
