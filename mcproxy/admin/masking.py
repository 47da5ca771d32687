"""The configuration as text for operators, with secrets masked by key and by value."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final

import yaml

from mcproxy.settings import Settings
from mcproxy.telemetry.logs import MIN_SECRET

MASK: Final = "••••••"

_SECRET_MAPS: Final = frozenset({"env", "headers"})
"""Mappings whose keys are shown and whose values may all be secret."""

_SECRET_KEY: Final = re.compile(r"secret|token|password|hash|key$|credential", re.IGNORECASE)


def masked(settings: Settings, secrets: Collection[str]) -> str:
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
            return value
        case _:
            return value


def _member(key: str, value: Any, secrets: Collection[str]) -> Any:
    if key in _SECRET_MAPS and isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    if _SECRET_KEY.search(key) and isinstance(value, str):
        return MASK
    return _masked(value, secrets)
