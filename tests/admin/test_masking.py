"""What an operator sees of the configuration."""

from __future__ import annotations

import yaml

from mcproxy.admin.masking import MASK, masked
from mcproxy.settings import Settings

SECRET = "sentinel-0123456789"


def shown(**settings: object) -> str:
    return masked(Settings.model_validate(settings), {SECRET, "x"})


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
    [told] = yaml.safe_load(text)["upstreams"]
    assert told["args"] == ["--token", MASK, f"https://user:{MASK}@host/"]
    assert told["name"] == "x-ray"
    assert told["env"] == {"HARMLESS": MASK}


def test_what_is_the_default_is_not_shown() -> None:
    assert yaml.safe_load(shown(proxy={"port": 9, "host": "127.0.0.1"})) == {"proxy": {"port": 9}}
