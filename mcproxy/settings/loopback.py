"""Host names and addresses of this very machine, and URLs that no other program can listen to. Looks nothing up."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from mcproxy.egress.addresses import is_loopback as is_loopback


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError("should be an http or https URL of a host")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("should be https: others must not read or change its requests and answers")
    return url


SafeUrl = Annotated[str, AfterValidator(_check_url)]
"""The URL of a host without credentials: https, or http on loopback."""
