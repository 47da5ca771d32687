"""The twin of `mcproxy.access.outgoing.repeating`: time passes as the test says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mcproxy.access.outgoing.repeating import MAX_RETRY_AFTER, repeated
from mcproxy.access.outgoing.webhooks import WebhookFailed
from mcproxy.protocol.jsonrpc import Params, raw

pytestmark = pytest.mark.anyio

AGAIN = WebhookFailed("it is away", again=True)
ANSWER = {"decision": raw("allow")}


@dataclass
class Service:
    """Fails as often as there are failures, then accepts; `slept` are the pauses between."""

    failures: list[WebhookFailed]
    told: int = 0
    slept: list[float] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    async def tell(self) -> Params | None:
        self.told += 1
        if self.told <= len(self.failures):
            raise self.failures[self.told - 1]
        return ANSWER

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def answer(self, chance: float = 1.0) -> Params | None:
        return await repeated(self.tell, 10, self.noted.append, self.sleep, lambda: chance)


async def test_a_service_is_told_again_until_it_accepts_with_longer_pauses() -> None:
    service = Service([AGAIN] * 4)
    assert await service.answer() == ANSWER
    assert service.told == 5
    assert service.slept == [1, 2, 4, 8]
    assert service.noted == ["repeated"] * 4 + ["accepted"]


async def test_half_of_each_pause_is_chance() -> None:
    service = Service([AGAIN] * 2)
    await service.answer(chance=0.0)
    assert service.slept == [0.5, 1]


async def test_after_so_many_attempts_it_is_given_up() -> None:
    service = Service([AGAIN] * 20)
    with pytest.raises(WebhookFailed, match="it is away"):
        await service.answer()
    assert service.told == 10
    assert service.slept == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert service.noted == ["repeated"] * 9 + ["given_up"]


async def test_what_would_fail_again_is_not_repeated() -> None:
    service = Service([WebhookFailed("it answered HTTP 400")])
    with pytest.raises(WebhookFailed):
        await service.answer()
    assert (service.slept, service.noted) == ([], ["given_up"])


@pytest.mark.parametrize(("asked", "pause"), [(0.1, 1), (30, 30), (1e9, MAX_RETRY_AFTER)])
async def test_a_service_may_ask_for_a_longer_pause_within_bounds(asked: float, pause: float) -> None:
    service = Service([WebhookFailed("busy", again=True, retry_after=asked)])
    await service.answer()
    assert service.slept == [pause]
