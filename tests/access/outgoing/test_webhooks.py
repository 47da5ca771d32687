"""The twin of `mcproxy.access.outgoing.webhooks`, in front of a real server on loopback."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from pydantic import ValidationError

from mcproxy.access.outgoing.webhooks import (
    SignedWebhook,
    WebhookFailed,
    may_be_repeated,
    retry_after,
    signature_headers,
)
from mcproxy.protocol.jsonrpc import raw
from mcproxy.settings.access.webhook import WebhookSettings
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SECRET = "a secret of sixteen characters or more"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(answer: Answer, **settings: object) -> AsyncIterator[SignedWebhook]:
    app = web.Application()
    app.router.add_post("/hook", answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    options = {"url": f"http://127.0.0.1:{port}/hook", "secret": SECRET, "timeout": GUARD, **settings}
    webhook = SignedWebhook(WebhookSettings.model_validate(options), clock=lambda: 1234.5)
    try:
        with anyio.fail_after(GUARD):
            yield webhook
    finally:
        await webhook.aclose()
        await runner.cleanup()


async def test_a_request_is_signed_so_that_its_service_can_tell_who_sent_what_and_when() -> None:
    seen: list[tuple[dict[str, str], bytes]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((dict(request.headers), await request.read()))
        return web.json_response({"decision": "allow"})

    async with served(answer) as webhook:
        assert await webhook({"a": raw(1)}) == {"decision": raw("allow")}
        await webhook({"a": raw(2)})
    (headers, body), (other, _) = seen
    assert json.loads(body) == {"a": 1}
    assert headers["webhook-timestamp"] == "1234"
    signed = f"{headers['webhook-id']}.1234.".encode() + body
    digest = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    assert other["webhook-id"] != headers["webhook-id"]


def test_another_body_time_id_or_secret_has_another_signature() -> None:
    one = signature_headers(SECRET, b"{}", 1.0, "1")["webhook-signature"]
    others = [
        signature_headers(SECRET, b"[]", 1.0, "1"),
        signature_headers(SECRET, b"{}", 2.0, "1"),
        signature_headers(SECRET, b"{}", 1.0, "2"),
        signature_headers(SECRET + "x", b"{}", 1.0, "1"),
    ]
    assert one not in [other["webhook-signature"] for other in others]


@pytest.mark.parametrize("status", [202, 204])
async def test_a_service_may_have_nothing_to_say(status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    async with served(answer) as webhook:
        assert await webhook({}) is None


async def redirect(request: web.Request) -> web.Response:
    raise web.HTTPFound("http://127.0.0.1:1/")


async def refuse(request: web.Request) -> web.Response:
    return web.json_response({"decision": "allow"}, status=500)


async def babble(request: web.Request) -> web.Response:
    return web.Response(text="[1]")


async def flood(request: web.Request) -> web.Response:
    return web.json_response({"a": "x" * 5000})


async def be_silent(request: web.Request) -> web.Response:
    await anyio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (redirect, "it answered HTTP 302"),
        (refuse, "it answered HTTP 500"),
        (babble, "its answer is no JSON object"),
        (flood, "its answer has more than 1000 bytes"),
        (be_silent, r"no answer in 0.1 s \(timeout\)"),
    ],
)
async def test_what_is_no_answer_is_a_failure_with_its_reason(answer: Answer, why: str) -> None:
    timeout = 0.1 if answer is be_silent else GUARD
    async with served(answer, timeout=timeout, max_bytes=1000) as webhook:
        with pytest.raises(WebhookFailed, match=why):
            await webhook({})


async def test_a_request_that_is_too_large_is_not_sent() -> None:
    async with served(flood, max_bytes=10) as webhook:
        with pytest.raises(WebhookFailed, match="the request would have more than 10 bytes"):
            await webhook({"a": raw("x" * 10)})


async def test_a_service_that_is_away_or_at_an_address_that_is_not_public_is_a_failure() -> None:
    settings = WebhookSettings(url="http://127.0.0.1:1/", secret=SECRET)
    for each in (settings, WebhookSettings(url="https://localhost:1/", secret=SECRET, public=True)):
        webhook = SignedWebhook(each)
        with pytest.raises(WebhookFailed):
            await webhook({})
        await webhook.aclose()


@pytest.mark.parametrize("url", ["http://ops.example/x", "ftp://a/", "https://user@a/", "nowhere", "https://"])
def test_a_url_over_which_answers_could_be_forged_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        WebhookSettings(url=url, secret=SECRET)


async def test_a_repeat_names_the_event_by_the_same_id_and_its_failure_says_when_to_try_again() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers["webhook-id"])
        return web.Response(status=503, headers={"Retry-After": "7"})

    async with served(answer) as webhook:
        for _ in range(2):
            with pytest.raises(WebhookFailed) as raised:
                await webhook({}, "msg_1")
            assert (raised.value.again, raised.value.retry_after) == (True, 7)
    assert seen == ["msg_1", "msg_1"]


@pytest.mark.parametrize(
    ("status", "again"),
    [(201, False), (302, True), (400, False), (401, False), (408, True), (410, False), (429, True), (500, True)],
)
def test_what_was_accepted_or_is_at_fault_is_not_repeated(status: int, again: bool) -> None:
    assert may_be_repeated(status) == again


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("", 0),
        ("120", 120),
        ("-1", 0),
        ("1.5", 0),
        ("soon", 0),
        ("\u0661", 0),
        ("Thu, 01 Jan 1970 00:20:44 GMT", 10),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("Thu, 01 Jan 99999999 00:00:01 GMT", 0),
    ],
)
def test_how_long_a_service_asks_to_wait_is_read_in_either_form(value: str, seconds: float) -> None:
    assert retry_after(value, 1234.0) == seconds
