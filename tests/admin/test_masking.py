"""What an operator sees of the configuration."""

from __future__ import annotations

import pytest
import yaml

from mcproxy.admin.masking import MASK, masked_settings
from mcproxy.settings import Settings

SECRET = "sentinel-0123456789"


def shown(**settings: object) -> str:
    return masked_settings(Settings.model_validate(settings), {SECRET, "x"})


def test_r44_a_secret_is_masked_by_its_key_and_by_its_value() -> None:
    upstream = {
        "name": "x-ray",
        "prefix": "x",
        "command": "run",
        "args": ["--token", SECRET, f"https://user:{SECRET}@host/"],
        "env": {"HARMLESS": "but who knows"},
        "headers": {"Authorization": "Bearer unknown"},
    }
    text = shown(proxy={"secret": "a key that nobody knows"}, upstreams=[upstream])
    assert SECRET not in text
    assert "who knows" not in text
    assert "unknown" not in text
    assert "nobody" not in text
    assert "nobody" not in shown(proxy={"secret": ["a key that nobody knows", "a key that nobody knew"]})
    [told] = yaml.safe_load(text)["upstreams"]
    assert told["args"] == ["--token", MASK, f"https://{MASK}@host/"]
    assert told["name"] == "x-ray"
    assert told["env"] == {"HARMLESS": MASK}


def test_what_is_the_default_is_not_shown() -> None:
    assert yaml.safe_load(shown(proxy={"port": 9, "host": "127.0.0.1"})) == {"proxy": {"port": 9}}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:hunter2@host/mcp", f"https://{MASK}@host/mcp"),
        ("https://hunter2@host:8443/mcp", f"https://{MASK}@host:8443/mcp"),
        ("https://host/mcp?api_key=hunter2&region=eu", f"https://host/mcp?api_key={MASK}&region={MASK}"),
        ("https://host/mcp?hunter2", f"https://host/mcp?{MASK}"),
        ("https://host/s/9f8a7b6c5d4e3f2a1b0c/mcp", f"https://host/s/{MASK}/mcp"),
        ("https://host/mcp#hunter2", f"https://host/mcp#{MASK}"),
        ("https://[::1]:1/mcp", "https://[::1]:1/mcp"),
        ("https://[::1/mcp", MASK),
        ("https://host/v2.1/mcp", "https://host/v2.1/mcp"),
    ],
)
def test_r44_of_a_url_what_may_be_secret_is_masked(url: str, expected: str) -> None:
    [upstream] = yaml.safe_load(shown(upstreams=[{"name": "up", "prefix": "up", "url": url}]))["upstreams"]
    assert upstream["url"] == expected


def test_r44_whatever_names_a_secret_hides_its_value_in_a_command() -> None:
    args = ["--password", "letmein", "-H", "Authorization: Bearer abc", "-e", "MY_TOKEN=abc", "--port", "80"]
    spec = {"name": "u", "prefix": "u", "command": "run --api-key abc", "args": args}
    [upstream] = yaml.safe_load(shown(upstreams=[spec]))["upstreams"]
    assert upstream["command"] == f"run --api-key {MASK}"
    hidden = ["--password", MASK, "-H", f"Authorization: Bearer {MASK}", "-e", f"MY_TOKEN={MASK}", "--port", "80"]
    assert upstream["args"] == hidden
    headers = {"name": "w", "prefix": "w", "url": "https://h", "headers_command": ["get", "--token", "abc"]}
    [upstream] = yaml.safe_load(shown(upstreams=[headers]))["upstreams"]
    assert upstream["headers_command"] == ["get", "--token", MASK]


def test_r44_an_argument_that_looks_secret_is_masked() -> None:
    args = ["--api-key", "hunter2hunter2", "--db=postgres://u:hunter2@h/db", "ghp_" + "a1B2" * 8, "--verbose", "files"]
    [upstream] = yaml.safe_load(shown(upstreams=[{"name": "u", "prefix": "u", "command": "x", "args": args}]))[
        "upstreams"
    ]
    assert upstream["args"] == ["--api-key", MASK, f"--db={MASK}", MASK, "--verbose", "files"]
