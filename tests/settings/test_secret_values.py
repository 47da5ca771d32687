"""What is taken for a secret."""

from __future__ import annotations

import pytest

from mcproxy.settings.secret_values import (
    argument_secrets,
    looks_secret,
    masked_arguments,
    may_name_secret,
    names_secret,
)

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


@pytest.mark.parametrize(
    ("arguments", "masked"),
    [
        (["--api-key", "abc"], ["--api-key", "*"]),
        (["--token=abc=def"], ["--token=*"]),
        (["--password", "letmein"], ["--password", "*"]),
        (["-H", "Authorization: Bearer abc def"], ["-H", "Authorization: Bearer *"]),
        (["--header", "X-API-Key: abc"], ["--header", "X-API-Key: *"]),
        (["--header=authorization: Basic abc"], ["--header=authorization: Basic *"]),
        (["-e", "GITHUB_TOKEN=abc", "image"], ["-e", "GITHUB_TOKEN=*", "image"]),
        (["--env=API_KEY=abc"], ["--env=API_KEY=*"]),
        (["-u", "me:abc"], ["-u", "me:*"]),
        (["postgres://me:abc@host/db"], ["*"]),
        (["x postgres://me:abc@host/db?password=def"], ["x *"]),
        (["Host=h;Password=abc"], ["Host=h;Password=*"]),
        (
            ['{"a": {"Authorization": "Bearer abc", "token": "def"}}'],
            ['{"a": {"Authorization": "Bearer *", "token": "*"}}'],
        ),
        (["--x=url=https://host/?token=abc"], ["--x=url=https://host/?token=*"]),
        (["-c", "TOKEN=abc run --api-key def --port 80"], ["-c", "TOKEN=* run --api-key * --port 80"]),
        (["https://host/mcp?api_key=abc&x=1"], ["https://host/mcp?api_key=*&x=1"]),
        (["ghp_" + "a1B2" * 8], ["*"]),
    ],
)
def test_r44_secrets_in_arguments_are_masked_by_their_place(arguments: list[str], masked: list[str]) -> None:
    assert masked_arguments(arguments, "*") == masked


@pytest.mark.parametrize(
    "arguments",
    [
        ["-y", "@modelcontextprotocol/server-filesystem@2025.1.14", "/home/me"],
        ["--verbose", "files", "--port=8080", "--log-level", "debug"],
        ["--token-type", "bearer", "--max-tokens", "4096", "--auth-url", "https://login.example.com"],
        ["--use-token", "true", "--key-file", "/etc/key.pem"],
        ["run", "-i", "--rm", "-e", "API_KEY", "image:1"],
        ["https://host/mcp?region=eu"],
        ["--"],
        ["", "=", ":", "-"],
    ],
)
def test_ordinary_arguments_are_shown(arguments: list[str]) -> None:
    assert masked_arguments(arguments, "*") == arguments
    assert list(argument_secrets(arguments)) == []


def test_ordinary_words_are_redacted_nowhere_else() -> None:
    arguments = ["--auth", "anonymous", "--session", "main", "--password", "correcthorse", "--use-token", "true"]
    assert set(argument_secrets(arguments)) == {"correcthorse"}


def test_a_key_may_be_a_secret_and_a_word_that_holds_one_is_about_it() -> None:
    assert [name for name in ("issueKey", "sort_key", "keyword") if names_secret(name)] == []
    assert all(map(may_name_secret, ("key", "STRIPE_KEY", "apiKey", "x-auth")))
    assert not any(map(may_name_secret, ("token_url", "auth-mode", "name", "pinned", "compatible")))
