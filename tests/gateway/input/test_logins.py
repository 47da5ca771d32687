"""Calls that wait for a login."""

from __future__ import annotations

import anyio
import pytest

from mcproxy.call.calls import Call, Complete, Failed, LoginNeed, Outcome
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import LoginAwaited
from mcproxy.gateway.input.logins import LoginRequests
from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, first_level
from mcproxy.protocol.methods import row_of
from tests.fakes.upstream import FakeClient, Sleeper, quiet
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

URL_MODE = first_level({"elicitation": {"url": {}}})


class Pages:
    def url(self, need: LoginNeed, caller: Caller) -> str | None:
        return f"http://127.0.0.1/connect/{need.upstream}"

    async def opened(self, need: LoginNeed, url: str) -> bool:
        return False


async def test_a_login_that_did_not_help_ends_the_wait_with_what_is_wanted_now() -> None:
    # A login is wanted all the time: once one is made, the server wants another at once.
    logins = LoginRequests(Pages(), lambda link: True, Sleeper(), lambda: "id")
    client = FakeClient(answer={"action": "accept"})
    call = Call(
        row_of("tools/call"), first_level({"name": "t"}), Caller(Principal("ann"), V2025_11_25, URL_MODE), client
    )
    need = LoginNeed("up", None, "the server wants a login")
    failed = Failed(ErrorObject(INTERNAL_ERROR, "no"), Party.UPSTREAM, Reason.LOGIN_NEEDED, need)
    outcomes: list[Outcome] = []

    async def again() -> Outcome:
        return Failed(failed.error, failed.party, failed.reason, LoginNeed("up", None, "it wants further scopes"))

    async def ask() -> None:
        outcomes.append(await logins.ask(call, need, failed, again, 3600))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await quiet()
            assert outcomes == [], "it waits"
            logins.on_event(LoginAwaited("up", None, awaited=False))
    (outcome,) = outcomes
    assert isinstance(outcome, Complete)
    assert outcome.is_error
    assert b"it wants further scopes" in bytes(outcome.result["content"])
    assert len(client.asked) == 1, "one login for each call"
