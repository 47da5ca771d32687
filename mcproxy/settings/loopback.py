"""Host names and addresses of this very machine, and URLs that no other program can listen to. Looks nothing up."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a host's name or address is loopback; an IPv6 address may stand in brackets (RFC 6761, section 6.3)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError("should be an http or https URL of a host")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("should be https: others must not read or change its requests and answers")
    return url


SafeUrl = Annotated[str, AfterValidator(_check_url)]
"""The URL of a host without credentials: https, or http on loopback."""
