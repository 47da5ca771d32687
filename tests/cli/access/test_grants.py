"""The twin of `mcproxy.cli.access.grants`: logins at a real authorization server, as a person makes them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import anyio
import msgspec
import pytest

from mcproxy.cli.access.grants import list_grants, login, logout
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import load_configuration
from mcproxy.sealing import Sealer
from mcproxy.service.state import grant_store, secret_keys
from mcproxy.settings import Settings
from tests.fakes.authorization import Authorization, authorization, follow
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def settings(folder: Path, server: Authorization, **proxy: str) -> Settings:
    config = folder / "mcproxy.json"
    config.write_text(json.dumps({"mcpServers": {"web": {"url": server.url, "oauth": {}}}, "proxy": proxy}))
    return load_configuration(config).settings


async def nothing(seconds: float) -> None:
    pass


class Browser:
    """Follows a login's link, and brings what its redirect says to the address that waits for it."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def __call__(self, url: str) -> None:
        self.opened.append(url)
        anyio.run(self._follow, url)

    async def _follow(self, url: str) -> None:
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            assert "Done" in await response.text()


async def test_a_login_by_browser_is_kept_until_it_is_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(GUARD):
        async with authorization() as server:
            configured = settings(tmp_path, server)
            assert await login(configured, "web", open_url=Browser()) is ExitCode.OK
            assert f"logged in to web at {server.origin}" in capsys.readouterr().out
            assert await list_grants(configured, as_json=True) is ExitCode.OK
            [grant] = json.loads(capsys.readouterr().out)
            assert (grant["upstream"], grant["issuer"], grant["renewed by itself"]) == ("web", server.origin, "yes")
            assert await logout(configured, "web") is ExitCode.OK
            assert server.revoked == ["refresh-token-1"]
            capsys.readouterr()
            assert await logout(configured, "web") is ExitCode.NOT_FOUND
            assert "web: the gateway has no login of its own to take back" in capsys.readouterr().err
            assert await list_grants(configured, as_json=False) is ExitCode.NOT_FOUND
            assert "no logins: `mcproxy login NAME`" in capsys.readouterr().err


async def test_a_login_of_a_caller_is_taken_back_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(GUARD):
        async with authorization() as server:
            configured = settings(tmp_path, server)
            assert await login(configured, "web", open_url=Browser()) is ExitCode.OK
            store = grant_store(configured, Sealer(*secret_keys(configured)))
            [grant] = await store.all()
            await store.delete(grant.key)
            await store.save(msgspec.structs.replace(grant, principal="ann"))
            assert await logout(configured, "web") is ExitCode.NOT_FOUND
            assert "--principal names one" in capsys.readouterr().err
            assert await logout(configured, "web", "bob") is ExitCode.NOT_FOUND
            assert "'bob' has no login; `mcproxy grants` shows" in capsys.readouterr().err
            assert server.revoked == []
            assert await logout(configured, "web", "ann") is ExitCode.OK
            assert (server.revoked, await store.all()) == (["refresh-token-1"], [])


async def test_no_login_is_made_for_the_gateway_where_each_caller_has_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with authorization() as server:
        config = tmp_path / "mcproxy.json"
        config.write_text(json.dumps({"mcpServers": {"web": {"url": server.url, "oauth": {"per": "principal"}}}}))
        assert await login(load_configuration(config).settings, "web", open_url=Browser()) is ExitCode.INPUT
    assert "web: each caller logs in by itself" in capsys.readouterr().err


async def test_where_there_is_no_browser_the_address_that_it_ended_at_may_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pasted = io.StringIO()
    monkeypatch.setattr("sys.stdin", pasted)

    def no_browser(url: str) -> bool:
        back = anyio.run(follow, url)
        pasted.write(f"http://127.0.0.1:1/callback?{urlencode(back)}\n")
        pasted.seek(0)
        return False

    with anyio.fail_after(GUARD):
        async with authorization() as server:
            assert await login(settings(tmp_path, server), "web", open_url=no_browser) is ExitCode.OK
    assert "paste here the address that it ends at" in capsys.readouterr().err


async def test_a_login_by_code_shows_the_code_and_where_to_enter_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(GUARD):
        async with authorization(device_answers=["authorization_pending"]) as server:
            assert await login(settings(tmp_path, server), "web", device=True, sleep=nothing) is ExitCode.OK
    shown = capsys.readouterr().err
    assert "WDJB-MJHT" in shown
    assert f"{server.origin}/activate" in shown
    assert "device-code" not in shown


@pytest.mark.parametrize(("error", "says"), [("access_denied", "denied"), ("expired_token", "expired")])
async def test_a_login_by_code_that_comes_to_nothing_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str, says: str
) -> None:
    async with authorization(device_answers=[error]) as server:
        assert await login(settings(tmp_path, server), "web", device=True, sleep=nothing) is ExitCode.FAILED
    assert says in capsys.readouterr().err


async def test_the_gateways_own_document_is_named_where_it_has_a_public_url(tmp_path: Path) -> None:
    with anyio.fail_after(GUARD):
        async with authorization(takes_documents=True) as server:
            configured = settings(tmp_path, server, public_url="https://gateway.example")
            opened = Browser()
            assert await login(configured, "web", open_url=opened) is ExitCode.OK
    assert urlencode({"client_id": "https://gateway.example/oauth/client.json"}) in opened.opened[0]
    assert server.registrations == []
