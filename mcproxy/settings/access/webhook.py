"""Settings of a webhook: a service of the operator's that is told something, and whose answer counts."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from mcproxy.settings.loopback import is_loopback
from mcproxy.settings.section import Bytes, Positive, Seconds, Section


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise ValueError("should be an http or https URL of a host")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise ValueError("should be https: what it is told and answers must not be read or changed on the way")
    return url


class WebhookSettings(Section):
    """A service that is sent signed requests (Standard Webhooks)."""

    url: Annotated[str, AfterValidator(_check_url)]
    """Where requests are posted: https, or http on loopback. Redirects are not followed."""
    secret: Annotated[str, Field(min_length=16)]
    """Key of the signature: HMAC-SHA256 over `webhook-id`, `webhook-timestamp` and the body, joined by dots."""
    timeout: Seconds = 2
    """Time for an answer."""
    max_bytes: Bytes = 1024 * 1024
    """Bytes of a request or an answer; larger ones count as failed."""
    max_concurrent: Positive = 64
    """Requests at once; further ones wait, and their time runs."""
    public: bool = False
    """Connect to public addresses alone."""
