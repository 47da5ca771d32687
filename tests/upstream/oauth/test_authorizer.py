"""The tokens of one upstream's requests: got once, renewed before their end, and never asked for in vain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import TaskGroup

from mcproxy.access.audit.grant_records import GrantAction, GrantRecord
from mcproxy.settings.upstreams.oauth import OAuthClient, OAuthSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.link import LoginNeeded, Rejected
from mcproxy.upstream.oauth.authorizer import COOLDOWN, STORE_LOOKS, Authorizer
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey, GrantState
from mcproxy.upstream.oauth.leniency import MAX_RETRY_AFTER
from mcproxy.upstream.oauth.registration import MAX_SCOPES
from mcproxy.upstream.oauth.storage.store import MemoryStore, StoreFailed
from tests.fakes.authorization import Authorization, authorization, follow
from tests.timeouts import GUARD
from tests.upstream.oauth.test_grants import grant

pytestmark = pytest.mark.anyio

ITSELF = OAuthSettings(grant="client_credentials", client=OAuthClient(id="me", secret="s"))
PERSON = OAuthSettings()
REDIRECT = "http://127.0.0.1:1/callback"
WANTED = "Bearer"


@dataclass
class Running:
    """An authorizer, and the clock that it goes by."""

    server: Authorization
    flow: OAuthFlow
    store: MemoryStore
    tasks: TaskGroup
    now: float = 1_000_000.0
    metrics: Metrics = field(default_factory=Metrics)
    records: list[GrantRecord] = field(default_factory=list)
    it: Authorizer = field(init=False)

    def __post_init__(self) -> None:
        self.it = Authorizer(
            GrantKey("up"), self.flow, self.store, self.spawn, self.metrics, clock=lambda: self.now, chance=lambda: 0
        )

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.tasks.start_soon(job)

    async def log_in(self, *scopes: str) -> None:
        """As `mcproxy login` does, in another process."""
        found = await self.flow.discover(await self.flow.challenge(), scopes)
        login, url = await self.flow.begin_login(found, REDIRECT)
        await self.flow.finish_login(login, found.server, await follow(url))

    async def settled(self) -> None:
        while self.it.state in {GrantState.REQUESTING, GrantState.REFRESHING}:
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def running(settings: OAuthSettings, **server: Any) -> AsyncIterator[Running]:
    with anyio.fail_after(GUARD):
        async with authorization(**server) as at, anyio.create_task_group() as tasks:
            store = MemoryStore()
            here = Running(at, OAuthFlow("up", at.url, settings, store), store, tasks)
            here.flow = OAuthFlow("up", at.url, settings, store, here.records.append, clock=lambda: here.now)
            here.__post_init__()
            yield here
            tasks.cancel_scope.cancel()


async def sent(here: Running) -> str:
    token = await here.it.credential()
    assert token is not None
    return token.access


async def test_before_the_server_has_asked_nothing_is_sent_and_no_client_is_asked() -> None:
    async with running(ITSELF) as here:
        assert await here.it.credential() is None
        assert here.server.token_requests == []


async def test_the_gateways_own_token_comes_with_the_first_challenge() -> None:
    async with running(ITSELF) as here:
        assert await here.it.challenged(401, WANTED, 0)
        assert await sent(here) == "access-token-1"


async def test_r65_a_hundred_callers_at_the_moment_of_expiry_make_one_token_request() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.now += 100
        here.server.hold = anyio.Event()
        tokens: list[str] = []

        async def call() -> None:
            tokens.append(await sent(here))

        async with anyio.create_task_group() as callers:
            for _ in range(100):
                callers.start_soon(call)
            while len(here.server.token_requests) < 2:
                await anyio.lowlevel.checkpoint()
            here.server.hold.set()
        assert tokens == ["access-token-2"] * 100
        assert len(here.server.token_requests) == 2


async def test_r65_an_old_token_still_serves_while_a_new_one_is_fetched() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.now += 80
        here.server.hold = anyio.Event()
        assert await sent(here) == "access-token-1"
        assert here.it.state is GrantState.REFRESHING
        assert await sent(here) == "access-token-1"
        here.server.hold.set()
        await here.settled()
        assert await sent(here) == "access-token-2"
        assert await here.store.load(GrantKey("up")) == here.it.grant


async def test_r65_a_caller_that_is_cancelled_loses_no_grant() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.now += 100
        here.server.hold = anyio.Event()
        async with anyio.create_task_group() as callers:
            callers.start_soon(here.it.credential)
            while len(here.server.token_requests) < 2:
                await anyio.lowlevel.checkpoint()
            callers.cancel_scope.cancel()
        here.server.hold.set()
        await here.settled()
        stored = await here.store.load(GrantKey("up"))
        assert stored is not None
        assert stored.token.refresh == "refresh-token-2"


async def test_r65_while_the_authorization_server_is_out_a_valid_token_serves_and_requests_are_spaced() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.now += 80
        here.server.outage = 503
        for _ in range(20):
            assert await sent(here) == "access-token-1"
            await here.settled()
        assert len(here.server.token_requests) == 3, "the login, the first failure, and one at once after it"
        here.now += COOLDOWN
        here.server.outage = None
        assert await sent(here) == "access-token-1"
        await here.settled()
        assert await sent(here) == "access-token-2"


async def test_r65_a_minute_without_the_authorization_server_costs_no_grant_and_few_requests() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.now += 76
        here.server.outage = 503
        for second in range(60):
            if second < 100 - 76:
                assert await sent(here) == "access-token-1"
            else:
                with pytest.raises(Rejected, match="503"):
                    await here.it.credential()
            await here.settled()
            here.now += 1
        assert len(here.server.token_requests) <= 2 + 60 / COOLDOWN
        here.server.outage = None
        here.now += COOLDOWN
        assert await sent(here) == "access-token-2"
        assert here.it.awaits_login is None


async def test_r65_an_expired_token_in_an_outage_is_an_error_that_passes() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.now += 100
        here.server.outage = 503
        for _ in range(10):
            with pytest.raises(Rejected, match="503"):
                await here.it.credential()
        assert len(here.server.token_requests) == 3, "the login, the first failure, and one at once after it"
        here.now += COOLDOWN
        here.server.outage = None
        assert await sent(here) == "access-token-2"


async def test_r65_after_one_failure_the_next_call_tries_at_once() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.now += 100
        here.server.outage = 500
        with pytest.raises(Rejected, match="500"):
            await here.it.credential()
        here.server.outage = None
        assert await sent(here) == "access-token-2"


@pytest.mark.parametrize(("header", "wait"), [("30", 30.0), ("0", 0.0), ("86400", MAX_RETRY_AFTER), ("soon", 0.0)])
async def test_r65_no_token_is_requested_before_retry_after_is_over(header: str, wait: float) -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.now += 100
        here.server.outage, here.server.retry_after = 429, header
        with pytest.raises(Rejected, match="429"):
            await here.it.credential()
        here.server.outage = None
        if wait:
            here.now += wait - 0.5
            with pytest.raises(Rejected, match="429"):
                await here.it.credential()
            assert len(here.server.token_requests) == 2
            here.now += 0.5
        assert await sent(here) == "access-token-2"


async def test_r65_a_valid_token_is_sent_until_its_end_while_renewals_fail() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.now += 97
        here.server.outage = 503
        assert await sent(here) == "access-token-1"
        await here.settled()
        here.server.outage = None
        here.now += 2.9
        assert await sent(here) == "access-token-1", "it serves while the next is requested"
        here.now += COOLDOWN
        assert await sent(here) == "access-token-2"


async def test_r65_a_token_endpoint_that_hangs_holds_up_no_call_with_a_valid_token() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        here.server.hold = anyio.Event()
        for here.now in (1_000_097.0, 1_000_099.0):
            assert await sent(here) == "access-token-1"
            await here.server.asked(2)
        here.server.hold.set()


async def test_r65_a_refused_renewal_ends_no_valid_token() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.server.forget_refresh_tokens()
        here.now += 80
        for _ in range(5):
            assert await sent(here) == "access-token-1"
            await here.settled()
        assert here.it.reason == "invalid_grant"
        assert here.it.awaits_login is None
        here.now += 20
        for _ in range(5):
            with pytest.raises(LoginNeeded, match="invalid_grant"):
                await here.it.credential()
        assert here.it.grant is None
        assert len(here.server.token_requests) == 2
        await here.log_in()
        here.now += STORE_LOOKS
        assert await sent(here) == "access-token-2"


@pytest.mark.parametrize("settings", [PERSON, ITSELF])
async def test_a_token_that_the_server_refuses_after_a_refused_renewal_is_sent_no_more(settings: OAuthSettings) -> None:
    async with running(settings, life=100) as here:
        if settings is PERSON:
            await here.log_in()
        else:
            assert await here.it.challenged(401, WANTED, 0)
        await sent(here)
        here.server.refuses = "invalid_grant"
        here.now += 80
        await sent(here)
        await here.settled()
        asked = len(here.server.token_requests)
        with pytest.raises(Rejected, match="invalid_grant"):
            await here.it.challenged(401, WANTED, here.it.generation)
        for _ in range(5):
            with pytest.raises(Rejected, match="invalid_grant"):
                await here.it.credential()
        assert len(here.server.token_requests) == asked


async def test_a_login_that_was_taken_back_ends_with_the_refusal_of_its_renewal() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.now += 80
        here.server.hold = anyio.Event()
        assert await sent(here) == "access-token-1"
        await here.server.asked(2)
        here.server.forget_refresh_tokens()
        await here.store.delete(GrantKey("up"))
        here.server.hold.set()
        await here.settled()
        assert here.it.grant is None


async def test_r67_a_login_that_is_wanted_is_said_at_once_and_nothing_is_asked_again() -> None:
    async with running(PERSON) as here:
        with pytest.raises(LoginNeeded, match="mcproxy login up"):
            await here.it.challenged(401, WANTED, 0)
        for _ in range(10):
            with pytest.raises(LoginNeeded):
                await here.it.credential()
        assert here.server.resource_requests == []
        assert here.server.token_requests == []


async def test_operators_are_told_of_no_command_where_each_caller_logs_in_by_itself() -> None:
    async with running(OAuthSettings(per="principal")) as here:
        with pytest.raises(LoginNeeded, match="each caller logs in by itself"):
            await here.it.challenged(401, WANTED, 0)


async def test_a_login_in_another_process_is_taken_over() -> None:
    async with running(PERSON) as here:
        with pytest.raises(LoginNeeded):
            await here.it.challenged(401, WANTED, 0)
        await here.log_in()
        here.now += STORE_LOOKS
        assert await sent(here) == "access-token-1"
        await here.store.delete(GrantKey("up"))
        here.now += STORE_LOOKS
        with pytest.raises(LoginNeeded):
            await here.it.credential()


@pytest.mark.parametrize(("passed", "expected"), [(60, "access-token-2"), (100, "access-token-3")])
async def test_r65_a_refused_refresh_takes_what_another_process_stored(passed: float, expected: str) -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        first = await here.store.load(GrantKey("up"))
        assert first is not None
        assert await sent(here) == "access-token-1"
        here.now += 50
        await here.flow.refresh(first)  # as another process does, at the same time
        here.it._seen = here.store.version(GrantKey("up"))
        here.now += passed
        assert await sent(here) == expected
        assert here.it.state is GrantState.SERVING


async def test_r65_a_refused_refresh_takes_the_login_that_was_stored_meanwhile() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        first = await here.store.load(GrantKey("up"))
        assert first is not None
        await here.flow.refresh(first)
        assert await sent(here) == "access-token-2"
        here.server.forget_refresh_tokens()
        await here.store.delete(GrantKey("up"))
        here.now += 100
        await here.log_in()  # as another process does, after a logout: generations begin anew
        here.it._looked, here.it._seen = here.now, None
        assert await sent(here) == "access-token-3"
        assert here.it.state is GrantState.SERVING


async def test_a_logout_in_the_middle_of_a_refresh_ends_the_grant() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.now += 80
        here.server.hold = anyio.Event()
        assert await sent(here) == "access-token-1", "it serves while the next one is fetched"
        await here.server.asked(2)
        await here.store.delete(GrantKey("up"))  # as `mcproxy logout` does, in another process
        here.server.hold.set()
        await here.settled()
        assert await here.store.load(GrantKey("up")) is None
        here.now += STORE_LOOKS
        assert await here.it.credential() is None
        assert here.it.state is GrantState.WANTED


async def test_r67_a_refused_grant_asks_for_a_login_and_for_nothing_else() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        here.server.forget_refresh_tokens()
        here.now += 100
        for _ in range(10):
            with pytest.raises(LoginNeeded, match="invalid_grant"):
                await here.it.credential()
        assert len(here.server.token_requests) == 2


async def test_r67_a_token_without_a_successor_is_used_up_and_asks_for_a_login() -> None:
    async with running(PERSON, life=100, gives_refresh=False) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        with pytest.raises(LoginNeeded):
            await here.it.challenged(401, WANTED, here.it.generation)
        assert len(here.server.token_requests) == 1


async def test_a_refused_token_is_renewed_once_and_told_apart_from_its_successor() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        assert await sent(here) == "access-token-1"
        old = here.it.generation
        assert await here.it.challenged(401, WANTED, old)
        assert await here.it.challenged(401, WANTED, old), "a caller that was sent with the old one tries the new one"
        assert len(here.server.token_requests) == 2
        with pytest.raises(LoginNeeded, match="refuses the tokens"):
            await here.it.challenged(401, WANTED, here.it.generation)
        assert len(here.server.token_requests) == 2


async def test_a_token_that_was_accepted_is_renewed_again_when_it_is_refused_later() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        await sent(here)
        for _ in range(5):
            assert await here.it.challenged(401, WANTED, here.it.generation)
            here.it.accepted()


async def test_a_refusal_that_is_not_about_scopes_stays_the_servers_own() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        await sent(here)
        assert not await here.it.challenged(403, None, here.it.generation)
        assert not await here.it.challenged(403, 'Bearer error="invalid_token"', here.it.generation)


async def test_further_scopes_are_asked_for_by_name_and_the_token_serves_on() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        await sent(here)
        challenge = 'Bearer error="insufficient_scope", scope="read admin"'
        with pytest.raises(LoginNeeded, match="login up --scope admin"):
            await here.it.challenged(403, challenge, here.it.generation)
        assert await sent(here) == "access-token-1"


async def test_the_gateway_asks_for_further_scopes_itself_and_once() -> None:
    async with running(ITSELF) as here:
        await here.it.challenged(401, WANTED, 0)
        await sent(here)
        challenge = 'Bearer error="insufficient_scope", scope="admin"'
        here.server.gives_refresh = False
        assert await here.it.challenged(403, challenge, here.it.generation)
        assert "admin" in here.server.token_requests[-1]["scope"].split()
        asked = len(here.server.token_requests)
        with pytest.raises(Rejected, match="the scopes admin for this, which the gateway has"):
            await here.it.challenged(403, challenge, here.it.generation)
        assert len(here.server.token_requests) == asked


def wants(*scopes: str) -> str:
    """The challenge of a server that wants scopes."""
    return f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"'


async def stepped_up(here: Running, challenge: str) -> str:
    """Why a call that the server refuses with `challenge` fails where no login is asked for."""
    with pytest.raises(Rejected) as failed:
        await here.it.challenged(403, challenge, here.it.generation)
    assert not isinstance(failed.value, LoginNeeded), failed.value
    return str(failed.value)


async def test_a_scope_that_the_login_has_is_not_asked_for_again() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        await sent(here)
        with pytest.raises(LoginNeeded):
            await here.it.challenged(403, wants("read", "write"), here.it.generation)
        await here.log_in(*here.it.lacking)
        here.now += STORE_LOOKS
        await sent(here)
        for _ in range(3):
            why = await stepped_up(here, wants("read", "write"))
            assert "read write for this, which the gateway has: a further login would not help" in why
        assert here.it.awaits_login is None


async def test_a_scope_that_the_authorization_server_withheld_is_not_asked_for_again() -> None:
    async with running(PERSON, withholds={"write"}) as here:
        await here.log_in("write")
        await sent(here)
        assert "was asked for and did not grant: a further login" in await stepped_up(here, wants("write"))


async def test_a_scope_that_operators_do_not_allow_is_never_asked_for() -> None:
    async with running(OAuthSettings(scopes_allowed=("read", "offline_access", "more"))) as here:
        await here.log_in()
        await sent(here)
        assert "oauth.scopes_allowed does not permit" in await stepped_up(here, wants("read", "write"))
        with pytest.raises(LoginNeeded, match="further scopes for this: more: "):
            await here.it.challenged(403, wants("more", "write"), here.it.generation)


async def test_further_scopes_that_are_not_named_are_worth_one_login() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        await sent(here)
        for _ in range(3):
            with pytest.raises(LoginNeeded, match="further scopes for this: more"):
                await here.it.challenged(403, wants(), here.it.generation)
        await here.log_in()
        here.now += STORE_LOOKS
        await sent(here)
        for _ in range(3):
            assert "does not say which" in await stepped_up(here, wants())


@pytest.mark.parametrize("settings", [PERSON, ITSELF])
async def test_ever_further_scopes_are_asked_for_up_to_a_bound(settings: OAuthSettings) -> None:
    async with running(settings) as here:
        if settings is PERSON:
            await here.log_in()
        else:
            await here.it.challenged(401, WANTED, 0)
        await sent(here)
        for number in range(MAX_SCOPES - 2):  # beside those of the first token: read, offline_access
            with suppress(LoginNeeded):
                await here.it.challenged(403, wants(f"scope-{number}"), here.it.generation)
        asked = len(here.server.token_requests)
        for number in range(MAX_SCOPES, MAX_SCOPES + 10):
            assert "more than 256 scopes" in await stepped_up(here, wants(f"scope-{number}"))
        assert len(here.server.token_requests) == asked <= MAX_SCOPES
        assert len(here.it.lacking) < MAX_SCOPES


async def test_a_scope_that_the_authorization_server_refuses_costs_no_token_and_is_asked_for_once() -> None:
    async with running(ITSELF, life=100) as here:
        await here.it.challenged(401, WANTED, 0)
        assert await sent(here) == "access-token-1"
        here.server.refused_scopes = {"nonsense"}
        assert "invalid_scope" in await stepped_up(here, wants("nonsense"))
        asked = len(here.server.token_requests)
        for _ in range(3):
            assert "which its authorization server refuses" in await stepped_up(here, wants("nonsense"))
            assert await sent(here) == "access-token-1"
        assert len(here.server.token_requests) == asked
        here.now += 100
        assert await sent(here) == "access-token-2", "what it had before can be had again"


def count(here: Running, name: str, **labels: str) -> float | None:
    return here.metrics.registry.get_sample_value(name, {"upstream": "up", **labels})


async def test_each_outcome_of_a_token_request_is_counted() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        await sent(here)
        here.now += 100
        await sent(here)
        assert count(here, "mcproxy_oauth_token_requests_total", outcome="granted") == 1
        here.server.outage = 503
        here.now += 100
        with pytest.raises(Rejected):
            await here.it.credential()
        assert count(here, "mcproxy_oauth_token_requests_total", outcome="unavailable") == 1


async def test_a_grant_that_was_refused_is_not_used_again_when_another_one_in_the_store_changes() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        await sent(here)
        here.now += 100
        here.server.forget_refresh_tokens()
        with pytest.raises(LoginNeeded):
            await here.it.credential()
        asked = len(here.server.token_requests)
        for number in range(3):
            await here.store.save(msgspec.structs.replace(grant(), principal=f"other-{number}"))
            here.now += STORE_LOOKS
            with pytest.raises(LoginNeeded):
                await here.it.credential()
        assert len(here.server.token_requests) == asked


async def test_a_step_up_stays_awaited_through_refreshes_until_the_login() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        await sent(here)
        with pytest.raises(LoginNeeded):
            await here.it.challenged(403, 'Bearer error="insufficient_scope", scope="write"', here.it.generation)
        here.now += 100
        assert await sent(here) == "access-token-2"
        assert here.it.awaits_login == "the server wants further scopes for this: write"
        await here.log_in()
        here.now += STORE_LOOKS
        await sent(here)
        assert here.it.awaits_login is None
        assert here.it.lacking == ()


async def test_r1_a_bug_in_a_token_request_harms_this_upstream_alone() -> None:
    class Broken(MemoryStore):
        async def save(self, grant: Grant) -> None:
            raise ZeroDivisionError

    async with running(ITSELF) as here:
        here.store = Broken()
        here.__post_init__()
        with pytest.raises(Rejected, match="an internal error: ZeroDivisionError"):
            await here.it.challenged(401, WANTED, 0)
        assert here.it.state is GrantState.WANTED


async def test_r64_a_hundred_renewals_are_a_hundred_generations_of_one_grant() -> None:
    async with running(PERSON, life=100) as here:
        await here.log_in()
        await sent(here)
        for _ in range(100):
            here.now += 100
            await sent(here)
        assert here.it.generation == 101
        assert len({form.get("refresh_token") for form in here.server.token_requests[1:]}) == 100


async def test_what_other_processes_do_to_a_grant_is_recorded_once_and_a_restart_is_not() -> None:
    async with running(PERSON) as here:
        await here.log_in()
        here.records.clear()
        await sent(here)
        assert here.records == [], "the grant was there when the gateway started"
        elsewhere = OAuthFlow("up", here.server.url, PERSON, here.store)
        found = await elsewhere.discover(await elsewhere.challenge())
        login, url = await elsewhere.begin_login(found, REDIRECT)
        grant = await elsewhere.finish_login(login, found.server, await follow(url))
        for _ in range(3):
            here.now += STORE_LOOKS
            await sent(here)
        assert [each.action for each in here.records] == [GrantAction.TAKEN_OVER]
        await elsewhere.revoke(grant)
        here.now += STORE_LOOKS
        await here.it.look_at_store()
        assert [each.action for each in here.records] == [GrantAction.TAKEN_OVER, GrantAction.FORGOTTEN]


async def test_a_login_made_here_is_recorded_as_a_login_alone() -> None:
    async with running(PERSON) as here:
        await here.it.look_at_store()
        await here.log_in()
        here.now += STORE_LOOKS
        await sent(here)
        assert [each.action for each in here.records] == [GrantAction.LOGIN]
        grant = here.it.grant
        assert grant is not None
        await here.flow.revoke(grant)
        await here.it.look_at_store()
        assert [each.action for each in here.records] == [GrantAction.LOGIN, GrantAction.REVOCATION]


async def test_a_token_that_is_not_over_serves_while_the_store_cannot_be_read() -> None:
    class Unreadable(MemoryStore):
        fails = False

        async def load(self, key: GrantKey) -> Grant | None:
            if self.fails:
                raise StoreFailed("cannot read it")
            return await super().load(key)

    async with running(PERSON, life=100) as here:
        store = here.store = Unreadable()
        here.flow = OAuthFlow("up", here.server.url, PERSON, store, clock=lambda: here.now)
        here.__post_init__()
        await here.log_in()
        assert await sent(here) == "access-token-1"
        await store.save(msgspec.structs.replace(grant(), principal="other"))
        store.fails = True
        here.now += STORE_LOOKS
        assert await sent(here) == "access-token-1"
        here.now += 100
        with pytest.raises(Rejected, match="cannot read it"):
            await sent(here)
