"""Calls that wait for a login."""

from __future__ import annotations

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call, Complete, Failed, LoginNeed, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import Caller, Principal
from mcproxy.call.upstreams import LoginAwaited
from mcproxy.concurrency.clock import Sleep
from mcproxy.gateway.input.logins import MAX_MADE, QUESTION, LoginRequests
from mcproxy.protocol.eras import V2025_11_25
from mcproxy.protocol.jsonrpc import INTERNAL_ERROR, ErrorObject, first_level
from mcproxy.protocol.methods import row_of
from tests.fakes.reading import Clock
from tests.fakes.upstream import FakeClient, Sleeper, quiet
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

URL_MODE = first_level({"elicitation": {"url": {}}})


class Pages:
    def url(self, need: LoginNeed, caller: Caller) -> str | None:
        return f"http://127.0.0.1/connect/{need.upstream}"

    async def opened(self, need: LoginNeed, url: str) -> bool:
        return False


NEED = LoginNeed("up", None, "there is no valid login")
FAILED = Failed(ErrorObject(INTERNAL_ERROR, "no"), Party.UPSTREAM, Reason.LOGIN_NEEDED, NEED)
MADE = LoginAwaited("up", None, awaited=False)


async def again() -> Outcome:
    """Each login is followed by the wish for another."""
    return replace(FAILED, login=LoginNeed("up", None, "it wants further scopes"))


def a_call(client: FakeClient) -> Call:
    return Call(
        row_of("tools/call"), first_level({"name": "t"}), Caller(Principal("ann"), V2025_11_25, URL_MODE), client
    )


def always_wanted(clock: Clock, sleep: Sleep | None = None) -> LoginRequests:
    return LoginRequests(Pages(), lambda link: True, clock, sleep or Sleeper(), lambda: "id")


def check_told(outcome: Outcome | None) -> None:
    assert isinstance(outcome, Complete)
    assert outcome.is_error
    assert b"it wants further scopes" in bytes(outcome.result["content"])


async def test_a_login_that_did_not_help_ends_the_wait_with_what_is_wanted_now() -> None:
    logins, client = always_wanted(Clock()), FakeClient(answer={"action": "accept"})
    outcomes: list[Outcome] = []

    async def ask() -> None:
        outcomes.append(await logins.ask(a_call(client), NEED, FAILED, again, 3600))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await quiet()
            assert outcomes == [], "it waits"
            logins.on_event(MADE)
    check_told(*outcomes)
    assert len(client.asked) == 1, "one login for each call"


async def test_a_login_made_before_the_client_answers_is_not_waited_for_again() -> None:
    clock = Clock()
    logins = always_wanted(clock)

    class Quick(FakeClient):
        async def ask(self, request: InputRequest) -> Raw:
            clock.now += 1
            logins.on_event(MADE)
            return await super().ask(request)

    with anyio.fail_after(GUARD):
        check_told(await logins.ask(a_call(Quick(answer={"action": "accept"})), NEED, FAILED, again, 3600))


@pytest.mark.parametrize(("made_at", "waits"), [(999.0, True), (1000.0, True), (1001.0, False)])
async def test_a_retry_waits_for_no_login_that_was_made_since_it_was_asked_for(made_at: float, waits: bool) -> None:
    clock = Clock(made_at)
    logins = always_wanted(clock)
    logins.on_event(MADE)
    outcomes: list[Outcome | None] = []

    async def retry() -> None:
        answers = first_level({QUESTION: {"action": "accept"}})
        outcomes.append(await logins.retried(a_call(FakeClient()), NEED, answers, 1000.0, again))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(retry)
            await quiet()
            assert (outcomes == []) is waits
            logins.on_event(MADE)
    check_told(*outcomes)


def test_r78_only_so_many_logins_are_remembered() -> None:
    logins = always_wanted(Clock())
    for number in range(MAX_MADE + 10):
        logins.on_event(LoginAwaited(f"up{number}", None, awaited=False))
    assert len(logins._last_made) == MAX_MADE


@pytest.mark.parametrize("is_earlier", [True, False])
async def test_r67_a_retry_after_a_login_that_failed_is_asked_again_at_once(is_earlier: bool) -> None:
    clock = Clock(1000.0)
    logins, outcomes = always_wanted(clock), list[Outcome | None]()
    failed = LoginAwaited("up", None, awaited=True, failure="access_denied")

    async def retry() -> None:
        answers = first_level({QUESTION: {"action": "accept"}})
        outcomes.append(await logins.retried(a_call(FakeClient()), NEED, answers, 1000.0, again))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            clock.now += 1
            if is_earlier:
                logins.on_event(failed)
            tasks.start_soon(retry)
            await quiet()
            logins.on_event(failed)
    assert outcomes == [None]
    asked = logins.request(a_call(FakeClient()), NEED)
    assert asked is not None
    assert b"The last attempt failed: access_denied." in bytes(asked.params["message"])
    logins.on_event(MADE)
    asked = logins.request(a_call(FakeClient()), NEED)
    assert asked is not None
    assert b"failed" not in bytes(asked.params["message"])


async def test_r67_a_retry_after_a_new_question_waits_although_a_login_failed_before() -> None:
    clock = Clock(1000.0)
    logins, outcomes = always_wanted(clock), list[Outcome | None]()
    logins.on_event(LoginAwaited("up", None, awaited=True, failure="access_denied"))

    async def retry() -> None:
        answers = first_level({QUESTION: {"action": "accept"}})
        outcomes.append(await logins.retried(a_call(FakeClient()), NEED, answers, 1001.0, again))

    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(retry)
            await quiet()
            assert outcomes == []
            logins.on_event(MADE)
    check_told(*outcomes)
