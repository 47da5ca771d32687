"""What is taken for a secret."""

from __future__ import annotations

import pytest

from mcproxy.settings.secret_values import looks_secret

TOKEN = "ghp_" + "a1B2c3D4e5" * 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_KEY", "abcdefghijkl"),
        ("PASSWORD", "correct horse"),
        ("X", TOKEN),
        ("X", "123e4567-e89b-12d3-a456-426614174000"),
        ("X", "9f8a7b6c5d4e3f2a1b0c"),
        ("DATABASE_URL", "postgres://user:pass@host/db"),
    ],
)
def test_what_looks_secret(name: str, value: str) -> None:
    assert looks_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("API_KEY", "${API_KEY}"),
        ("USE_AUTH", "true"),
        ("KEY_FILE", "/etc/keys/one.pem"),
        ("AUTH_URL", "https://login.example.com/oauth2"),
        ("X", "@modelcontextprotocol/server-filesystem"),
        ("X", "mcp-server-time-2025-with-a-long-name"),
        ("X", "2025-11-25"),
        ("", "-y"),
    ],
)
def test_what_does_not_look_secret(name: str, value: str) -> None:
    assert not looks_secret(name, value)
