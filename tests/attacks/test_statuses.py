"""HTTP statuses that no server should answer a call with: the call has an answer or an error that names the upstream.

A body with the request's id is the answer, whatever the status (R76). Anything else fails this call alone: it is
neither sent again nor left waiting, and the next call is answered.
"""

from __future__ import annotations

import json
import random
from typing import Final

import pytest

from mcproxy.call.calls import Failed, Outcome
from mcproxy.call.errors import Reason
from mcproxy.protocol.eras import Era
from mcproxy.settings import UpstreamSettings, UpstreamTimeouts
from tests.fuzz import hostile
from tests.fuzz.answers import plainly
from tests.fuzz.hostile import Json
from tests.timeouts import GUARD
from tests.upstream.support import Running, failure, running, tool

pytestmark = pytest.mark.anyio

ERAS: Final = {Era.HANDSHAKE: "legacy", Era.STATELESS: "modern"}
FINAL: Final = (
    *(200, 201, 202, 203, 205, 206, 207, 226, 299, 300, 301, 302, 303, 307, 308, 400, 401, 402, 403, 404, 405, 406),
    *(408, 409, 410, 411, 413, 415, 417, 418, 421, 422, 425, 426, 428, 429, 431, 451, 499, 500, 501, 502, 503, 504),
    *(505, 511, 520, 599, 600, 999),
)
WITHOUT_BODY: Final = (204, 304)
INTERIM: Final = (100, 101, 102, 103, 199)
JUNK: Final = {
    "nothing": b"",
    "a page": b"<html><body>Bad Gateway</body></html>",
    "an error without id": b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}',
    "an error of another request": b'{"jsonrpc":"2.0","id":"other","error":{"code":-32000,"message":"no"}}',
    "no message": b'{"error":"invalid_token"}',
    "half a message": b'{"jsonrpc":"2.0","id":ID,"resul',
}


def spec(url: str, era: Era, timeout: float = GUARD) -> UpstreamSettings:
    timeouts = UpstreamTimeouts(connect=GUARD, idle=timeout, total=timeout)
    return UpstreamSettings(name="web", prefix="web", url=url, era=ERAS[era], timeouts=timeouts)  # type: ignore[arg-type]  # one of the three


def told(status: int, body: bytes, **more: object) -> Json:
    fields: Json = {"fields": []} if more.get("framing") == "events" else {}
    return {**plainly(""), "status": status, "body": body.hex(), **fields, **more}


def said(outcome: Outcome) -> str:
    """The text of a result."""
    assert not isinstance(outcome, Failed), outcome
    content = json.loads(bytes(outcome.result["content"]))
    return str(content[0]["text"])


@pytest.mark.parametrize("era", Era)
async def test_r76_a_body_with_the_requests_id_is_the_answer_whatever_the_status(era: Era) -> None:
    result = b'{"jsonrpc":"2.0","id":ID,"result":{"resultType":"complete","content":[{"type":"text","text":"done"}]}}'
    refusal = b'{"jsonrpc":"2.0","id":ID,"error":{"code":-31999,"message":"no, and this is why"}}'
    async with hostile.serving(era, random.Random(1)) as url, running(spec(url, era)) as it:
        for status in FINAL:
            for framing in ("length", "events", "end"):
                assert said(await it.upstream(tool("say", told(status, result, framing=framing)))) == "done", status
                failed = failure(await it.upstream(tool("say", told(status, refusal, framing=framing))))
                assert (failed.error.code, failed.error.message) == (-31999, "no, and this is why"), status


async def answered(it: Running, said_so: Json) -> Outcome:
    """Of a call that is made again where it was not answered in time: the machine may stand still for longer."""
    while isinstance(outcome := await it.upstream(tool("say", said_so)), Failed) and outcome.reason is Reason.TIMEOUT:
        continue
    return outcome


@pytest.mark.parametrize("kind", JUNK)
@pytest.mark.parametrize("era", Era)
async def test_a_status_with_anything_else_is_an_error_that_names_the_upstream(era: Era, kind: str) -> None:
    async with hostile.serving(era, random.Random(1)) as url, running(spec(url, era, timeout=1.5)) as it:
        for status in (*FINAL, *WITHOUT_BODY, *INTERIM):
            outcome = await it.upstream(tool("say", told(status, JUNK[kind])))
            assert isinstance(outcome, Failed), (status, outcome)
            # An error without the id of a request is of this one: SDKs answer so what they could not read.
            is_own = b'"message":"no"' in JUNK[kind] and outcome.error.message == "no"
            assert is_own or "'web'" in outcome.error.message, (status, outcome.error)
            assert said(await answered(it, plainly("well"))) == "well", status
