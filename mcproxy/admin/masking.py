"""The configuration as text for operators, with secrets masked by key and by value."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import yaml

from mcproxy.settings import Settings
from mcproxy.settings.secret_values import looks_secret, masked_arguments, may_name_secret
from mcproxy.telemetry.logs import MIN_SECRET

MASK: Final = "••••••"

_SECRET_MAPS: Final = frozenset({"env", "headers"})
"""Mappings whose keys are shown and whose values may all be secret."""

_COMMANDS: Final = frozenset({"args", "headers_command"})
"""Lists of words of a command."""

_SHOWN: Final = frozenset({"key_header"})
"""Keys that only sound as if they held a secret."""

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s]*$")


def masked_settings(settings: Settings, secrets: Collection[str]) -> str:
    """The settings in force that are not defaults, as YAML."""
    values = sorted((value for value in secrets if len(value) >= MIN_SECRET), key=len, reverse=True)
    shown: dict[str, Any] = settings.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(_masked(shown, values), sort_keys=False, allow_unicode=True, width=100)


def _masked(value: Any, secrets: Collection[str]) -> Any:
    match value:
        case dict():
            return {key: _member(key, member, secrets) for key, member in value.items()}
        case list():
            return [_masked(member, secrets) for member in value]
        case str():
            for secret in secrets:
                value = value.replace(secret, MASK)
            return _masked_url(value) if _URL.match(value) else value
        case _:
            return value


def _masked_url(url: str) -> str:
    """A URL without user information, values of its query, fragment, and parts of its path that look secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MASK
    _, at, host = parts.netloc.rpartition("@")
    path = "/".join(MASK if looks_secret("", segment) else segment for segment in parts.path.split("/"))
    query = "&".join(_masked_field(field) for field in parts.query.split("&")) if parts.query else ""
    return urlunsplit((parts.scheme, MASK + at + host if at else host, path, query, MASK if parts.fragment else ""))


def _masked_field(field: str) -> str:
    name, equals, _ = field.partition("=")
    return f"{name}={MASK}" if equals else MASK


def _member(key: str, value: Any, secrets: Collection[str]) -> Any:
    if key == "command" and isinstance(value, str):
        return masked_arguments([_masked(value, secrets)], MASK)[0]
    if key in _COMMANDS:
        return masked_arguments([_masked(argument, secrets) for argument in value], MASK)
    if key in _SECRET_MAPS and isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    if key not in _SHOWN and may_name_secret(key) and isinstance(value, str):
        return MASK
    if key not in _SHOWN and may_name_secret(key) and isinstance(value, list):
        return [MASK if isinstance(member, str) else _masked(member, secrets) for member in value]
    return _masked(value, secrets)
