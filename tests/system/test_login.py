"""Logging in to a server from a client, as a person does: the link that the client shows, and the pages behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from mcproxy.access.keys import key_digest
from tests.fakes.authorization import Authorization, authorization
from tests.fakes.browser import Browser, Page, browser, link_in
from tests.fakes.clients.raw import over_http, over_stdio
from tests.fakes.issuer import issuing
from tests.system.running import Clients, Gateway, Json, command, configuration, need_npm, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def guarded(
    folder: Path, *, within: float = GUARD, is_discovered_openly: bool = False, **more: Any
) -> AsyncIterator[tuple[Authorization, Gateway, Browser]]:
    """A server that wants OAuth behind a gateway that says no more than `oauth: {}`; and a person's browser."""
    with anyio.fail_after(within):
        async with authorization(is_discovered_openly=is_discovered_openly) as server:
            settings: Json = configuration({"web": {"url": server.url, "oauth": {}}}) | more
            async with serving(folder, write(folder, settings)) as running, browser() as person:
                yield server, running, person


async def until_listed(client: Client, *names: str) -> None:
    """Returns once the client sees these tools and no others: the list follows a login."""
    while True:
        if tuple(tool.name for tool in (await client.list_tools()).tools) == names:
            return
        await anyio.sleep(0.02)


class Answering:
    """A client that is asked to open a link: `opens` logs in before it answers, as a quick person does."""

    def __init__(self, person: Browser) -> None:
        self.person = person
        self.asked: list[types.ElicitRequestURLParams] = []
        self.done: list[str] = []

    async def __call__(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestURLParams)
        self.asked.append(params)
        self.done.append((await self.person.log_in(params.url)).title)
        return types.ElicitResult(action="accept")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_opens_links_is_asked_and_its_call_runs_once(mode: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, running, person):
        answering = Answering(person)
        async with Client(f"{running.url}/mcp", mode=mode, elicitation_callback=answering) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["web__login"]
            result = await client.call_tool("web__work", {})
    assert result.structured_content == {"value": "done"}
    assert server.served.count("tools/call") == 1
    assert answering.done == ["Logged in to web · mcproxy"]


@pytest.mark.parametrize("tool", ["web__work", "web__login"])
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_r67_a_server_that_only_lists_after_a_login_is_logged_in_to_by_a_call(
    mode: str, tool: str, tmp_path: Path
) -> None:
    async with guarded(tmp_path, is_discovered_openly=True) as (_server, running, person):
        answering = Answering(person)
        async with Client(f"{running.url}/mcp", mode=mode, elicitation_callback=answering) as client:
            await until_listed(client, "web__login")
            result = await client.call_tool(tool, {})
            assert not result.is_error
            if tool == "web__login":
                assert "use its tools" in str(result.content)
            else:
                assert result.structured_content == {"value": "done"}
            await until_listed(client, "web__work")
    assert answering.done == ["Logged in to web · mcproxy"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_server_that_moves_to_another_issuer_is_logged_in_to_there(mode: str, tmp_path: Path) -> None:
    async with authorization(prefix="other-") as other, guarded(tmp_path) as (server, running, person):
        answering = Answering(person)
        async with Client(f"{running.url}/mcp", mode=mode, elicitation_callback=answering) as client:
            await client.call_tool("web__work", {})
            server.named_issuer, server.valid = other.origin, other.valid
            server.forget_refresh_tokens()
            assert (await client.call_tool("web__work", {})).structured_content == {"value": "done"}
    assert len(answering.asked) == 2
    assert [form["grant_type"] for form in other.token_requests] == ["authorization_code"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_opens_none_gets_the_link_and_a_tool_and_its_call_runs_once(
    mode: str, tmp_path: Path
) -> None:
    async with guarded(tmp_path) as (server, running, person), Client(f"{running.url}/mcp", mode=mode) as client:
        refused = await client.call_tool("web__work", {})
        assert refused.is_error
        told = await client.call_tool("web__login", {})
        assert not told.is_error
        [text] = [block.text for block in told.content if isinstance(block, types.TextContent)]
        done = await person.log_in(link_in(text))
        assert done.status == 200
        await until_listed(client, "web__work")
        result = await client.call_tool("web__work", {})
        again = await client.call_tool("web__login", {})
    assert result.structured_content == {"value": "done"}
    assert server.served.count("tools/call") == 1
    assert not again.is_error


KEYS = {"ann": "key-of-ann-0123456789", "bob": "key-of-bob-0123456789"}
AUTHENTICATED: Json = {
    "access": {"authentication": {"keys": {name: [{"sha256": key_digest(key).hex()}] for name, key in KEYS.items()}}}
}


@asynccontextmanager
async def as_principal(running: Gateway, name: str, **more: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {KEYS[name]}"}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(f"{running.url}/mcp", http_client=http), **more) as client,
    ):
        yield client


async def link_of(client: Client, tool: str = "web__login") -> str:
    """The link that a client which opens none is told."""
    told = await client.call_tool(tool, {})
    [text] = [block.text for block in told.content if isinstance(block, types.TextContent)]
    return link_in(text)


async def shown_key(person: Browser, link: str, name: str) -> Page:
    return await person.submit(await person.open(link), "key", key=KEYS[name])


async def test_each_principal_logs_in_for_itself_and_sees_and_uses_its_own_login_alone(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, **AUTHENTICATED) as (server, running, person),
        as_principal(running, "ann") as ann,
        as_principal(running, "bob") as bob,
    ):
        consent = await shown_key(person, await link_of(ann), "ann")
        assert server.origin in consent.text
        assert "<strong>ann</strong> alone" in consent.text
        assert (await person.consent(consent)).status == 200
        await until_listed(ann, "web__work")
        assert not (await ann.call_tool("web__work", {})).is_error
        assert [tool.name for tool in (await bob.list_tools()).tools] == ["web__login"]
        assert (await bob.call_tool("web__work", {})).is_error
        person.forget_cookies()
        await person.consent(await shown_key(person, await link_of(bob), "bob"))
        await until_listed(bob, "web__work")
        assert not (await bob.call_tool("web__work", {})).is_error
    assert len({header for header in server.resource_requests if header is not None}) == 2
    assert server.served.count("tools/call") == 2


async def test_the_link_of_one_principal_is_refused_to_another_and_nothing_is_stored(tmp_path: Path) -> None:
    async with guarded(tmp_path, **AUTHENTICATED) as (server, running, person), as_principal(running, "ann") as ann:
        link = await link_of(ann)
        asked = await person.open(link)
        assert asked.status == 200
        assert server.origin not in asked.text, "a stranger learns nothing of the login"
        assert (await person.submit(asked, "key", key="no key at all")).status == 403
        stranger = await person.submit(asked, "key", key=KEYS["bob"])
        assert stranger.status == 403
        assert "for another user" in stranger.text
        forced = await person.post(link, {**asked.form("key"), "step": "consent", "issuer": server.origin})
        assert forced.status == 403
        assert [tool.name for tool in (await ann.list_tools()).tools] == ["web__login"]
    assert server.token_requests == server.registrations == []
    assert not any((tmp_path / "state").rglob("grants"))


async def test_a_login_page_holds_off_forged_forms_replays_other_browsers_and_frames(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, running, person), browser() as other:
        async with Client(f"{running.url}/mcp") as client:
            link = await link_of(client)
        consent = await person.open(link)
        assert "frame-ancestors 'none'" in consent.headers["Content-Security-Policy"]
        assert "script" not in consent.headers["Content-Security-Policy"]
        assert consent.headers["X-Frame-Options"] == "DENY"
        assert consent.headers["Cache-Control"] == "no-store"
        form = consent.form("consent")
        assert (await person.post(link, {**form, "token": "guessed"})).status == 403
        assert (await other.post(link, form)).status == 403, "the form is good with its cookie alone"
        foreign = await person.post(link, form, origin="https://evil.example")
        assert foreign.status == 403
        assert server.registrations == []
        leaving = await person.post(link, form)
        redirect = (await person.open(leaving.onward, follow=False)).headers["Location"]
        assert (await other.open(redirect)).status == 403, "no cookie"
        assert server.token_requests == []
        assert (await person.open(redirect.replace("state=", "state=x"))).status == 403
        assert (await person.open(redirect)).status == 200
        assert (await person.open(redirect)).status == 403, "each state is good once"
        assert len(server.token_requests) == 1
        sealed = link.rpartition("/")[2]
        assert (await person.open(link.replace(sealed, sealed[:-4] + "AAAA"))).status == 403


async def test_a_scope_that_is_refused_is_left_out_in_the_same_visit(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, running, person):
        server.refused_scopes = {"read"}
        async with Client(f"{running.url}/mcp") as client:
            link = await link_of(client)
        leaving = await person.post(link, (await person.open(link)).form("consent"))
        again = await person.open(leaving.onward)
        assert again.onward.startswith(f"{server.origin}/authorize?")
        assert (await person.open(again.onward)).title == "Logged in to web · mcproxy"
    assert len(server.registrations) == 1


async def test_a_principal_signs_in_at_the_issuer_of_the_gateways_callers(tmp_path: Path) -> None:
    async with issuing() as issuer:
        more: Json = {"access": {"authentication": {"oauth": {"issuers": [{"issuer": issuer.url}]}}}}
        async with guarded(tmp_path, **more) as (server, running, person):
            headers = {"Authorization": f"Bearer {issuer.token(running.url)}"}
            async with create_mcp_http_client(headers=headers) as http:
                transport = streamable_http_client(f"{running.url}/mcp", http_client=http)
                async with Client(transport) as ann:
                    page = await person.open(await link_of(ann))
                    leaving = await person.submit(page, "sign-in")
                    consent = await person.open(leaving.onward)
                    assert "<strong>oidc:ann</strong> alone" in consent.text
                    assert (await person.consent(consent)).status == 200
                    await until_listed(ann, "web__work")
                    assert not (await ann.call_tool("web__work", {})).is_error
    assert server.served.count("tools/call") == 1


async def test_a_client_that_cannot_be_asked_gets_the_error_with_the_link_and_hears_of_the_login(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (server, running, person), over_http(f"{running.url}/mcp") as client:
        await client.initialize("2025-11-25", {"elicitation": {"form": {}, "url": {}}})
        refused = (await client.call("web__work"))["error"]
        assert refused["code"] == -32042
        [elicitation] = refused["data"]["elicitations"]
        assert (await person.log_in(elicitation["url"])).status == 200
        [complete] = await client.hears("notifications/elicitation/complete")
        assert complete["elicitationId"] == elicitation["elicitationId"]
        await client.hears("notifications/tools/list_changed")
        result = (await client.call("web__work"))["result"]
    assert result["structuredContent"] == {"value": "done"}
    assert server.served.count("tools/call") == 1


async def test_a_client_that_declines_is_told_and_its_call_does_not_run(tmp_path: Path) -> None:
    answers = {"elicitation/create": {"action": "decline"}}
    async with guarded(tmp_path) as (server, running, _), over_http(f"{running.url}/mcp", answers=answers) as client:
        await client.initialize("2025-11-25", {"elicitation": {"url": {}}})
        result = (await client.call("web__work"))["result"]
    assert result["isError"]
    assert "declined" in result["content"][0]["text"]
    assert "tools/call" not in server.served


async def test_a_login_that_ran_out_leaves_the_tools_listed_and_asks_the_server_nothing_more(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, running, person), Client(f"{running.url}/mcp") as client:
        await person.log_in(await link_of(client))
        await until_listed(client, "web__work")
        server.valid.clear()
        server.forget_refresh_tokens()
        assert (await client.call_tool("web__work", {})).is_error
        await until_listed(client, "web__work", "web__login")
        asked = len(server.resource_requests), len(server.token_requests)
        for _ in range(20):
            assert (await client.call_tool("web__work", {})).is_error
            await client.list_tools()
        assert (len(server.resource_requests), len(server.token_requests)) == asked
        await person.log_in(await link_of(client))
        await until_listed(client, "web__work")
        assert not (await client.call_tool("web__work", {})).is_error


async def test_over_stdio_the_login_pages_are_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DISPLAY", raising=False)
    with anyio.fail_after(GUARD):
        async with authorization() as server, browser() as person:
            file = write(tmp_path, configuration({"web": {"url": server.url, "oauth": {}}}))
            async with over_stdio([*command(file), "--stdio"]) as client:
                await client.initialize("2025-06-18", {})
                refused = (await client.call("web__work"))["result"]
                assert refused["isError"]
                link = link_in(refused["content"][0]["text"])
                assert link.startswith("http://127.0.0.1:")
                assert (await person.log_in(link)).status == 200
                result = (await client.call("web__work"))["result"]
    assert result["structuredContent"] == {"value": "done"}
    assert server.served.count("tools/call") == 1


@pytest.mark.parametrize("sdk", ["python1", "typescript1", "typescript2"])
async def test_the_sdks_clients_of_the_older_generation_wait_in_their_call(sdk: str, tmp_path: Path) -> None:
    if sdk.startswith("typescript"):
        need_npm()
    clients = Clients()
    script: Json = {
        "transport": {"kind": "http", "url": ""},
        "answers": {"elicitation/create": {"action": "accept"}},
        "steps": [{"do": "tools/call", "params": {"name": "web__work", "arguments": {}}}],
    }
    try:
        async with guarded(tmp_path) as (server, running, person), Client(f"{running.url}/mcp") as other:
            script["transport"]["url"] = f"{running.url}/mcp"
            link, transcripts = await link_of(other), list[str]()

            async def play() -> None:
                transcripts.append(await clients.play(sdk, script, within=GUARD))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(play)
                await running.log.says(lambda entry: entry.get("event") == "a login is asked for")
                assert (await person.log_in(link)).status == 200
    finally:
        await clients.aclose()
    assert '"value": "done"' in transcripts[0] or '"value":"done"' in transcripts[0]
    assert server.served.count("tools/call") == 1
