"""Calls a webhook again until it accepts, a number of times: exponential backoff with jitter, or `Retry-After`.

Decides by the failure alone (`WebhookFailed.again`). Starts no task: cancelling the caller ends it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from mcproxy.access.outgoing.webhooks import WebhookFailed
from mcproxy.concurrency.backoff import delay
from mcproxy.concurrency.clock import Sleep
from mcproxy.protocol.jsonrpc import Params

log = structlog.get_logger()

MAX_RETRY_AFTER: Final = 300.0
"""The most seconds that a service's `Retry-After` may delay the next attempt."""


async def repeated(
    tell: Callable[[], Awaitable[Params | None]],
    attempts: int,
    note: Callable[[str], None],
    sleep: Sleep,
    chance: Callable[[], float] = random.random,
) -> Params | None:
    """The first answer of `tell` that is no failure. Raises WebhookFailed where there was none, or can be none.

    `note` is told how each attempt ended: `accepted`, `repeated` or `given_up`.
    """
    failures = 0
    while True:
        try:
            answer = await tell()
        except WebhookFailed as failed:
            failures += 1
            if not failed.again or failures >= attempts:
                note("given_up")
                raise
            note("repeated")
            wait = max(delay(failures, chance), min(failed.retry_after, MAX_RETRY_AFTER))
            log.warning("a webhook failed, and is told again", why=str(failed), attempt=failures, again_in=wait)
        else:
            note("accepted")
            return answer
        await sleep(wait)
