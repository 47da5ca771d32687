"""A link to a server that wants OAuth: which token its requests carry, and what becomes of those that are refused."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from mcproxy.call.calls import Call
from mcproxy.call.errors import Reason
from mcproxy.call.identity import Caller, ForwardedCredentials, InboundToken, Principal
from mcproxy.call.upstreams import LinkFailure, LinkState, LoginAwaited, Retired, UpstreamEvent
from mcproxy.protocol.eras import LATEST
from mcproxy.settings import Proxy, UpstreamSettings
from mcproxy.settings.upstreams.oauth import OAuthClient, OAuthSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.oauth.flow import OAuthFlow
from mcproxy.upstream.oauth.login import LoginFailed
from mcproxy.upstream.oauth.storage.store import MemoryStore
from mcproxy.upstream.supervisor import Supervisor
from tests.fakes.authorization import Authorization, authorization, follow
from tests.timeouts import GUARD
from tests.upstream.support import QUICK, failure, tool, value

pytestmark = pytest.mark.anyio

ITSELF = OAuthSettings(grant="client_credentials", client=OAuthClient(id="me", secret="s"))


@asynccontextmanager
async def linked(
    server: Authorization,
    store: MemoryStore,
    oauth: OAuthSettings | None = None,
    time: Time | None = None,
    events: list[UpstreamEvent] | None = None,
    **more: Any,
) -> AsyncIterator[Supervisor]:
    """The upstream at `server`; by `time`, if there is one, its tokens and those of callers expire."""
    timing: Any = {} if time is None else {"clock": time, "sleep": time.sleep}
    heard = [] if events is None else events
    spec = UpstreamSettings(name="web", prefix="web", type="http", url=server.url, oauth=oauth, timeouts=QUICK, **more)
    upstream = Supervisor(spec, Proxy(), heard.append, Metrics(), grants=store, **timing)
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(upstream.run)
            yield upstream
            tasks.cancel_scope.cancel()


async def log_in(server: Authorization, store: MemoryStore, principal: str = "") -> None:
    flow = OAuthFlow("web", server.url, OAuthSettings(), store)
    found = await flow.discover(await flow.challenge())
    login, url = await flow.begin_login(found, "http://127.0.0.1:1/callback")
    await flow.finish_login(login, found.server, await follow(url), principal)


async def test_the_gateway_gets_its_token_and_calls_with_it() -> None:
    async with authorization() as server, linked(server, MemoryStore(), ITSELF) as upstream:
        assert value(await upstream(tool("any"))) == "done"
    assert server.served == ["server/discover", "tools/call"]
    assert server.resource_requests == [None, "Bearer access-token-1", "Bearer access-token-1"]


async def test_r4_a_call_whose_token_was_refused_is_sent_again_and_runs_once() -> None:
    async with authorization() as server, linked(server, MemoryStore(), ITSELF) as upstream:
        await upstream(tool("any"))
        server.valid.clear()
        assert value(await upstream(tool("any"))) == "done"
    assert server.served.count("tools/call") == 2
    assert server.resource_requests[-2:] == ["Bearer access-token-1", "Bearer access-token-2"]


async def test_r64_a_new_token_changes_no_link() -> None:
    async with authorization() as server, linked(server, MemoryStore(), ITSELF) as upstream:
        for _ in range(10):
            assert value(await upstream(tool("any"))) == "done"
            server.valid.clear()
        assert upstream.status.reconnects == 0
    assert server.served.count("server/discover") == 1


async def test_r67_a_call_that_needs_a_login_says_how_to_log_in_and_goes_on_afterwards() -> None:
    store = MemoryStore()
    async with authorization() as server, linked(server, store, OAuthSettings()) as upstream:
        message = failure(await upstream(tool("any"))).error.message
        assert "run `mcproxy login web`" in message
        asked = len(server.resource_requests)
        for _ in range(5):
            assert "mcproxy login web" in failure(await upstream(tool("any"))).error.message
        assert len(server.resource_requests) == asked, "nothing goes upstream while a login is wanted"
        await log_in(server, store)
        while upstream.status.identity is None:
            await upstream(tool("any"))
        assert value(await upstream(tool("any"))) == "done"


async def test_r67_a_login_that_ran_out_takes_no_link_down_and_so_no_tool_away() -> None:
    store = MemoryStore()
    async with authorization() as server:
        await log_in(server, store)
        async with linked(server, store, OAuthSettings()) as upstream:
            assert value(await upstream(tool("any"))) == "done"
            server.valid.clear()
            server.forget_refresh_tokens()
            asked = len(server.resource_requests)
            for _ in range(5):
                assert "mcproxy login web" in failure(await upstream(tool("any"))).error.message
            assert upstream.status.state is LinkState.READY
            assert upstream.status.reconnects == 0
        assert len(server.resource_requests) == asked + 1, "one request told that the login ran out"


def made_by(name: str) -> Call:
    call = tool("any")
    return replace(call, caller=replace(call.caller, principal=Principal(name)))


async def test_r64_a_hundred_tokens_of_one_principal_change_no_link_of_its_own() -> None:
    store = MemoryStore()
    own = OAuthSettings(per="principal")
    async with authorization() as server:
        await log_in(server, store, "ann")
        async with linked(server, store, own, connection="principal") as upstream:
            for number in range(1, 101):
                assert value(await upstream(made_by("ann"))) == "done"
                # Without a token comes the link that all share, whenever it tries again.
                assert [token for token in server.resource_requests if token][-1] == f"Bearer access-token-{number}"
                server.valid.clear()
            assert failure(await upstream(made_by("bob"))).reason is Reason.LOGIN_NEEDED
    assert server.served.count("server/discover") == 1
    assert len({form["refresh_token"] for form in server.token_requests if "refresh_token" in form}) == 99


async def test_r39_the_link_that_all_share_never_has_anybodys_login() -> None:
    store = MemoryStore()
    async with authorization() as server:
        await log_in(server, store)
        await log_in(server, store, "ann")
        async with linked(server, store, OAuthSettings(per="principal"), connection="principal") as upstream:
            assert value(await upstream(made_by("ann"))) == "done"
            with anyio.fail_after(GUARD):
                while upstream.status.failure is None:  # the shared link tries at its own pace
                    await anyio.lowlevel.checkpoint()
            assert upstream.status.failure is LinkFailure.LOGIN


async def test_another_login_of_a_principal_ends_the_connection_of_the_one_before() -> None:
    store = MemoryStore()
    async with authorization() as server:
        await log_in(server, store, "ann")
        async with linked(server, store, OAuthSettings(per="principal"), connection="principal") as upstream:
            assert value(await upstream(made_by("ann"))) == "done"
            await log_in(server, store, "ann")
            assert upstream.logins is not None
            await upstream.logins.tokens("ann").look_at_store()
            assert value(await upstream(made_by("ann"))) == "done"
    assert server.served.count("server/discover") == 2


async def test_r44_a_token_that_the_server_quotes_reaches_no_client() -> None:
    async with authorization(quotes_token=True) as server, linked(server, MemoryStore(), ITSELF) as upstream:
        message = failure(await upstream(tool("any"))).error.message
    assert "access-token" not in message
    assert "[redacted]" in message


async def test_a_server_that_wants_oauth_and_has_none_says_what_to_add() -> None:
    async with authorization() as server, linked(server, MemoryStore()) as upstream:
        message = failure(await upstream(tool("any"))).error.message
    assert "this server wants OAuth: add `oauth: {}` to it, then run `mcproxy login web`" in message


async def test_further_scopes_are_named_in_the_error_of_the_one_call() -> None:
    store = MemoryStore()
    async with authorization() as server:
        await log_in(server, store)
        async with linked(server, store, OAuthSettings()) as upstream:
            assert value(await upstream(tool("any"))) == "done"
            server.needed_scopes = "write"
            assert "mcproxy login web --scope write" in failure(await upstream(tool("any"))).error.message
            server.needed_scopes = ""
            assert value(await upstream(tool("any"))) == "done"


def called_by(name: str, inbound_token: str | None, grants: str = "all", expires: float = math.inf) -> Call:
    """A call of a principal that authenticated with a token, or by other means."""
    token = None if inbound_token is None else InboundToken(f"authority:{name} {grants}", expires, inbound_token)
    brought = None if token is None else ForwardedCredentials(f"of {name}", {}, token)
    return replace(tool("any"), caller=Caller(Principal(name), LATEST, credentials=brought))


def exchanging(server: Authorization, **more: Any) -> OAuthSettings:
    client = OAuthClient(id="me", secret="s")
    return OAuthSettings(grant="token_exchange", issuer=server.origin, client=client, per="principal", **more)


async def test_a_callers_token_is_exchanged_once_for_one_of_its_own_and_goes_to_no_upstream() -> None:
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        for _ in range(3):
            for name in ("ann", "bob"):
                assert value(await upstream(called_by(name, f"inbound-token-of-{name}"))) == "done"
    exchanges = [form for form in server.token_requests if "subject_token" in form]
    assert [form["subject_token"] for form in exchanges] == ["inbound-token-of-ann", "inbound-token-of-bob"]
    assert {form["resource"] for form in exchanges} == {server.url}
    assert {form["subject_token_type"] for form in exchanges} == {"urn:ietf:params:oauth:token-type:access_token"}
    assert "inbound-token" not in str(server.resource_requests)
    assert len(set(server.resource_requests) - {None}) == 2, "each caller has a token of its own"


async def test_r64_another_token_of_the_same_caller_changes_no_link() -> None:
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        for number in range(5):
            assert value(await upstream(called_by("ann", f"inbound-token-{number}"))) == "done"
            server.valid.clear()
    exchanges = [form["subject_token"] for form in server.token_requests if "subject_token" in form]
    assert exchanges == [f"inbound-token-{number}" for number in range(5)]
    assert server.served.count("server/discover") == 1


def exchanged(server: Authorization) -> list[str]:
    """The tokens that were exchanged, in order."""
    return [form["subject_token"] for form in server.token_requests if "subject_token" in form]


@pytest.mark.parametrize("order", [("better", "lesser"), ("lesser", "better")])
async def test_r39_a_token_is_never_served_with_what_another_of_its_caller_was_exchanged_for(
    order: tuple[str, str],
) -> None:
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        for grants in (*order, *order):
            assert value(await upstream(called_by("ann", f"token-{grants}", grants))) == "done"
            called = server.resource_requests[-1]
            assert called == f"Bearer access-token-{order.index(grants) + 1}"
        assert exchanged(server) == [f"token-{grants}" for grants in order]
        assert [status.principal for status in upstream.logins.statuses()] == ["ann", "ann"]  # type: ignore[union-attr]


async def test_r39_a_token_that_cannot_be_exchanged_gains_nothing_by_a_better_one() -> None:
    async with (
        authorization(refused_subjects={"lesser"}) as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        for _ in range(2):
            assert value(await upstream(called_by("ann", "better", "better"))) == "done"
            assert failure(await upstream(called_by("ann", "lesser", "lesser"))).reason is Reason.UNAVAILABLE
            assert failure(await upstream(called_by("ann", None))).reason is Reason.UNAVAILABLE
        assert server.served.count("tools/call") == 2


async def test_exchanges_of_two_tokens_of_one_caller_at_once_are_two() -> None:
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        server.hold = anyio.Event()
        async with anyio.create_task_group() as calls:
            for _ in range(3):
                for grants in ("better", "lesser"):
                    calls.start_soon(upstream, called_by("ann", grants, grants))
            await server.asked(2)
            server.hold.set()
        assert sorted(exchanged(server)) == ["better", "lesser"]


class Time:
    """A clock that only tests move on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._moved = anyio.Event()

    def __call__(self) -> float:
        return self.now

    def go_on(self, now: float) -> None:
        self.now = now
        self._moved.set()
        self._moved = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await self._moved.wait()


async def ended(events: list[UpstreamEvent], *owners: str) -> None:
    """Returns once the links of these owners have ended."""
    while not {Retired("web", owner) for owner in owners} <= set(filter(_is_end, events)):
        await anyio.lowlevel.checkpoint()


def _is_end(event: UpstreamEvent) -> bool:
    return isinstance(event, Retired)


async def test_what_a_token_was_exchanged_for_ends_with_the_token() -> None:
    time, events = Time(), list[UpstreamEvent]()
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), time, events, connection="principal") as upstream,
    ):
        assert value(await upstream(called_by("ann", "better", "better", expires=2000))) == "done"
        assert value(await upstream(called_by("ann", "lesser", "lesser", expires=3000))) == "done"
        time.go_on(2000)
        await ended(events, "authority:ann better")
        assert Retired("web", "authority:ann lesser") not in events
        assert upstream.logins is not None
        assert upstream.logins.remembered == 1
        assert value(await upstream(called_by("ann", "lesser", "lesser", expires=3000))) == "done"
        assert server.resource_requests[-1] == "Bearer access-token-2"
        assert exchanged(server) == ["better", "lesser"]


async def test_a_renewed_token_of_the_same_authority_keeps_the_link_and_what_it_was_exchanged_for() -> None:
    time, events = Time(), list[UpstreamEvent]()
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), time, events, connection="principal") as upstream,
    ):
        for number, expires in ((1, 2000), (2, 3000), (1, 2000)):
            assert value(await upstream(called_by("ann", f"token-{number}", expires=expires))) == "done"
        time.go_on(2000)
        assert value(await upstream(called_by("ann", "token-2", expires=3000))) == "done"
        assert (server.served.count("server/discover"), exchanged(server)) == (1, ["token-1"])
        time.go_on(3000)
        await ended(events, "authority:ann all")


async def test_a_call_that_runs_when_its_token_expires_ends_well_and_nothing_follows_it() -> None:
    time, events, done = Time(), list[UpstreamEvent](), list[Any]()
    async with (
        authorization(together=2) as server,
        linked(server, MemoryStore(), exchanging(server), time, events, connection="principal") as upstream,
        anyio.create_task_group() as calls,
    ):

        async def call(grants: str) -> None:
            done.append(value(await upstream(called_by("ann", grants, grants, expires=2000))))

        calls.start_soon(call, "better")
        while "tools/call" not in server.served:
            await anyio.lowlevel.checkpoint()
        time.go_on(2000)
        await ended(events, "authority:ann better")
        assert failure(await upstream(called_by("ann", "better", "better", expires=2000))).reason is Reason.UNAVAILABLE
        assert done == []
        server.let_go()
    assert done == ["done"]
    assert exchanged(server) == ["better"]


async def test_r66_calls_at_once_of_one_caller_are_one_exchange() -> None:
    done: list[Any] = []
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):

        async def call() -> None:
            done.append(value(await upstream(called_by("ann", "inbound-token"))))

        async with anyio.create_task_group() as calls:
            for _ in range(20):
                calls.start_soon(call)
    assert done == ["done"] * 20
    assert len([form for form in server.token_requests if "subject_token" in form]) == 1


async def test_what_is_got_in_exchange_is_stored_nowhere_and_forgotten_with_the_link() -> None:
    store = MemoryStore()
    async with (
        authorization() as server,
        linked(server, store, exchanging(server), connection="principal") as upstream,
    ):
        await upstream(called_by("ann", "inbound-token"))
        assert await store.all() == []
        upstream.release("authority:ann all")
        await upstream(called_by("ann", "inbound-token"))
    assert len([form for form in server.token_requests if "subject_token" in form]) == 2


async def test_a_refused_exchange_is_not_asked_for_again_until_another_token_comes() -> None:
    async with (
        authorization(refused_subjects={"old-inbound-token"}) as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        for _ in range(3):
            message = failure(await upstream(called_by("ann", "old-inbound-token"))).error.message
            assert "invalid_request" in message
            assert "inbound-token" not in message
        refused = [form for form in server.token_requests if form.get("subject_token") == "old-inbound-token"]
        assert len(refused) == 1
        assert value(await upstream(called_by("ann", "new-inbound-token"))) == "done"


async def test_a_caller_without_a_token_is_told_what_it_lacks() -> None:
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        message = failure(await upstream(called_by("ann", None))).error.message
    assert "the caller authenticated with no token that could be exchanged" in message
    assert [form for form in server.token_requests if "subject_token" in form] == []


async def test_r66_ten_calls_at_once_are_inside_of_the_server_together() -> None:
    async with (
        authorization(together=10) as server,
        linked(server, MemoryStore(), ITSELF) as upstream,
        anyio.create_task_group() as calls,
    ):
        for _ in range(10):
            calls.start_soon(upstream, tool("any"))
    assert server.served.count("tools/call") == 10, "each was held back until all were there"
    assert len(server.token_requests) == 1


async def test_r66_while_a_token_is_got_for_one_caller_the_others_go_on() -> None:
    async with (
        authorization() as server,
        linked(server, MemoryStore(), exchanging(server), connection="principal") as upstream,
    ):
        assert value(await upstream(called_by("ann", "inbound-token-of-ann"))) == "done"
        before = len(server.token_requests)
        server.hold = anyio.Event()
        async with anyio.create_task_group() as calls:
            calls.start_soon(upstream, called_by("bob", "inbound-token-of-bob"))
            await server.asked(before + 1)
            assert value(await upstream(called_by("ann", "inbound-token-of-ann"))) == "done"
            server.hold.set()


async def test_r65_a_hundred_calls_at_the_moment_of_expiry_make_one_token_request() -> None:
    done: list[Any] = []
    async with authorization() as server, linked(server, MemoryStore(), ITSELF) as upstream:
        await upstream(tool("any"))
        server.valid.clear()

        async def call() -> None:
            done.append(value(await upstream(tool("any"))))

        async with anyio.create_task_group() as calls:
            for _ in range(100):
                calls.start_soon(call)
    assert done == ["done"] * 100
    assert len(server.token_requests) == 2
    assert server.served.count("tools/call") == 101, "each ran once"


async def test_no_token_is_remembered_of_callers_that_get_no_link() -> None:
    settings: Any = {"connection": "principal", "max_connections": 1}
    async with authorization() as server, linked(server, MemoryStore(), exchanging(server), **settings) as upstream:
        assert value(await upstream(called_by("ann", "inbound-token-of-ann"))) == "done"
        for number in range(5):
            assert "max_connections" in failure(await upstream(called_by(f"user-{number}", "token"))).error.message
        assert upstream.logins is not None
        assert [status.principal for status in upstream.logins.statuses()] == ["ann"]
        for name in ("ann", "user-1"):
            upstream.logins.bring(InboundToken(f"authority:{name} all", math.inf, "token"))
        assert upstream.logins.remembered == 1


async def test_scopes_that_the_authorization_server_refuses_spoil_one_login_and_no_later_one() -> None:
    store = MemoryStore()
    async with authorization() as server:
        await log_in(server, store)
        async with linked(server, store, OAuthSettings()) as upstream:
            assert value(await upstream(tool("any"))) == "done"
            server.refused_scopes, server.needed_scopes = {"nonsense"}, "nonsense"
            assert "--scope nonsense" in failure(await upstream(tool("any"))).error.message
            logins = upstream.logins
            assert logins is not None
            started = await logins.begin("", await logins.discover(""), "http://127.0.0.1:1/callback")
            with pytest.raises(LoginFailed, match="invalid_scope"):
                await logins.finish(started, await follow(started.url))
            refused = failure(await upstream(tool("any")))
            assert refused.reason is Reason.UNAVAILABLE
            assert "nonsense for this, which its authorization server refuses" in refused.error.message
            started = await logins.begin("", await logins.discover(""), "http://127.0.0.1:1/callback")
            await logins.finish(started, await follow(started.url))


async def test_r67_an_attempt_to_log_in_that_failed_is_told_while_a_login_is_awaited() -> None:
    store, events = MemoryStore(), list[UpstreamEvent]()
    async with authorization() as server, linked(server, store, OAuthSettings(), events=events) as upstream:
        failure(await upstream(tool("any")))
        logins = upstream.logins
        assert logins is not None
        started = await logins.begin("", await logins.discover(""), "http://127.0.0.1:1/callback")
        denied = {"state": started.login.state, "iss": started.found.server.issuer, "error": "access_denied"}
        with pytest.raises(LoginFailed):
            await logins.finish(started, denied)
    told = [event for event in events if isinstance(event, LoginAwaited)]
    assert [(event.awaited, "access_denied" in event.failure) for event in told] == [(True, False), (True, True)]
