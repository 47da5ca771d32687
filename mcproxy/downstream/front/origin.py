"""Checks of the Host and Origin headers, and CORS headers, so that foreign web pages cannot use the gateway.

A page must not reach a gateway on its visitor's machine, by DNS rebinding or otherwise (basic/transports, Security
Warning; requirements R42 and R57). Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from mcproxy.settings.loopback import is_loopback

ANY: Final = "*"

_METHODS: Final = "GET, POST, DELETE, OPTIONS"
_ALLOWED: Final = ", ".join(
    (
        "Content-Type",
        "Accept",
        "Authorization",
        "X-API-Key",
        "Mcp-Session-Id",
        "MCP-Protocol-Version",
        "Mcp-Method",
        "Mcp-Name",
        "Last-Event-ID",
    )
)
_EXPOSED: Final = "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate"
_MAX_AGE: Final = "7200"
MAX_LENGTH: Final = 512
"""Characters of a Host or an Origin: a host name has 253 at most (RFC 1034, section 3.1).

Both are remembered, here and in heads of responses, before it is known who sends them.
"""
MAX_REQUESTED: Final = 4096
"""Characters of the headers that a preflight asks for; of a longer list none is allowed but those that always are."""


def admits_host(host: str, allowed: Collection[str], bound: Collection[str] = ()) -> bool:
    """Whether a Host header names this gateway. `bound` are the listener's host names and the local address."""
    name = _hostname(host) if len(host) <= MAX_LENGTH else None
    return name is not None and (
        ANY in allowed or is_loopback(name) or name in bound or host in allowed or name in allowed
    )


def admits_origin(origin: str, host: str, allowed: Collection[str]) -> bool:
    """Whether pages of an origin may use the gateway: listed ones, loopback, and its own (`host`, checked before)."""
    if len(origin) > MAX_LENGTH:
        return False
    if ANY in allowed or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if parts.scheme not in {"http", "https"}:
        return False
    return parts.netloc == host or (parts.hostname is not None and is_loopback(parts.hostname))


def cors_headers(origin: str) -> dict[str, str]:
    """Header fields of every response to an admitted origin."""
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin", "Access-Control-Expose-Headers": _EXPOSED}


def preflight_headers(requested: str | None) -> dict[str, str]:
    """Header fields of the response to a preflight; requested headers `Mcp-Param-*` are allowed."""
    if requested is None or len(requested) > MAX_REQUESTED:
        requested = ""
    names = [name.strip() for name in requested.split(",")]
    parameters = [name for name in names if name.lower().startswith("mcp-param-")]
    return {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": ", ".join((_ALLOWED, *parameters)),
        "Access-Control-Max-Age": _MAX_AGE,
    }


@lru_cache(256)
def _hostname(host: str) -> str | None:
    if "@" in host:
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
