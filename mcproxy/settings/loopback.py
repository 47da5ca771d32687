"""Which host names and addresses mean this very machine. Looks nothing up."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(256)
def is_loopback(host: str) -> bool:
    """Whether a host's name or address is loopback; an IPv6 address may stand in brackets (RFC 6761, section 6.3)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
