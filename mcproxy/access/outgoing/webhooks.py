"""Requests to a service of the operator's, signed so that it knows who sends them (Standard Webhooks 1.0).

Follows no redirect, reads a bounded answer, and accepts as an answer only a JSON object with status 200.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

import anyio

from mcproxy.egress.client import NotAnswered, OutgoingClient
from mcproxy.protocol.jsonrpc import InvalidMessage, Params, json_of, parse_object
from mcproxy.settings.access.webhook import WebhookSettings

NOTHING_TO_SAY: Final = frozenset({202, 204})
"""Statuses of a service that takes note and decides nothing."""


class WebhookFailed(Exception):
    """The service was not reached, or gave no answer that counts. The text says why, for operators.

    `again` says whether another attempt may fare better, `retry_after` how many seconds the service asks to wait.
    """

    def __init__(self, why: str, *, again: bool = False, retry_after: float = 0) -> None:
        super().__init__(why)
        self.again = again
        self.retry_after = retry_after


class SignedWebhook:
    """One service; `clock` gives Unix time in seconds."""

    def __init__(self, settings: WebhookSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings: Final = settings
        self._clock = clock
        self._http = OutgoingClient(settings.leaving, public=settings.public, kept=settings.max_concurrent)
        self._slots = anyio.Semaphore(settings.max_concurrent)
        self._requests = 0
        """The number of requests in flight."""
        self._is_retired = False

    async def __call__(self, payload: Params, id: str | None = None) -> Params | None:
        """The service's answer; None if it has nothing to say. `id` names the event; by default a new one.

        Raises WebhookFailed.
        """
        body = json_of(payload)
        if len(body) > self.settings.max_bytes:
            raise WebhookFailed(f"the request would have more than {self.settings.max_bytes} bytes (max_bytes)")
        self._requests += 1
        try:
            with anyio.fail_after(self.settings.timeout):
                async with self._slots:
                    return await self._post(body, id)
        except TimeoutError as error:
            raise WebhookFailed(f"no answer in {self.settings.timeout:g} s (timeout)", again=True) from error
        except (NotAnswered, ValueError) as error:
            raise WebhookFailed(str(error), again=True) from error
        finally:
            self._requests -= 1
            await self._close_if_unused()

    async def retire(self) -> None:
        """Keeps no connection beyond the requests in flight: calls from before a reload may still use it."""
        self._is_retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._is_retired and not self._requests:
            with anyio.CancelScope(shield=True):
                await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections; a later request opens new ones."""
        await self._http.aclose()

    async def _post(self, body: bytes, id: str | None) -> Params | None:
        now = self._clock()
        own = {"Accept": "application/json", "Content-Type": "application/json"}
        headers = own | signature_headers(self.settings.secret, body, now, id)
        async with self._http.request("POST", self.settings.url, headers, body) as response:
            if response.status in NOTHING_TO_SAY:
                return None
            if response.status != 200:
                wait = retry_after(response.head.fields.get("retry-after", ""), now)
                again = may_be_repeated(response.status)
                raise WebhookFailed(f"it answered HTTP {response.status}", again=again, retry_after=wait)
            answer = await response.read(self.settings.max_bytes)
            if answer is None:
                raise WebhookFailed(f"its answer has more than {self.settings.max_bytes} bytes (max_bytes)")
        try:
            return parse_object(answer)
        except InvalidMessage as error:
            raise WebhookFailed("its answer is no JSON object") from error


def may_be_repeated(status: int) -> bool:
    """Whether a request answered so may succeed another time: not if it was accepted, or is itself at fault.

    408 and 429 are the service's own state (RFC 9110, section 15.5.9; RFC 6585, section 4).
    """
    return status in {408, 429} or not (200 <= status < 300 or 400 <= status < 500)


def retry_after(value: str, now: float) -> float:
    """Seconds from `now`, a Unix time, that a `Retry-After` asks to wait (RFC 9110, section 10.2.3); else none."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return 0


def signature_headers(secret: str, body: bytes, now: float, id: str | None = None) -> dict[str, str]:
    """The headers that sign a request: its id, its Unix time in seconds, and both with the body under the secret."""
    id, timestamp = id or f"msg_{secrets.token_urlsafe(18)}", str(int(now))
    digest = hmac.new(secret.encode(), f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    signed = base64.b64encode(digest).decode()
    return {"webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{signed}"}
