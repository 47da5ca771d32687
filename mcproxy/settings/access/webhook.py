"""Settings of a webhook: an operator's service that is sent requests, and whose answers count."""

from typing import Annotated

from pydantic import Field

from mcproxy.settings.egress import Leaving
from mcproxy.settings.loopback import SafeUrl
from mcproxy.settings.section import Bytes, Positive, Seconds


class WebhookSettings(Leaving):
    """A service that is sent signed requests (Standard Webhooks)."""

    url: SafeUrl
    """URL to post requests to: https, or http on loopback. Redirects are not followed."""
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
