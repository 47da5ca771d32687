"""Who signs in at an issuer, by what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from aiohttp import web

from mcproxy.access.identity import Identity
from mcproxy.login.sign_in import SignIn
from mcproxy.settings.access.authentication import Authentication
from mcproxy.upstream.oauth.login import LoginFailed
from mcproxy.upstream.oauth.storage.store import MemoryStore
from tests.fakes.authorization import follow
from tests.fakes.issuer import FakeIssuer, issuing, pair
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

URL = "http://127.0.0.1:1"
CLIENT = "the-client"
"""The id by which the fake registers everybody."""


@dataclass
class Giving(FakeIssuer):
    """An issuer that gives `tokens` for the code, whoever made them."""

    tokens: dict[str, str] = field(default_factory=dict)

    async def _token(self, request: web.Request) -> web.Response:
        return web.json_response({"token_type": "Bearer", "access_token": "opaque", **self.tokens})


async def signed_in(at: FakeIssuer, *others: Mapping[str, Any]) -> str:
    """Who signed in at an issuer of the gateway's callers, beside `others`."""
    settings = Authentication.model_validate({"oauth": {"issuers": [{"issuer": at.url}, *others]}})
    async with anyio.create_task_group() as tasks:
        sign_in = SignIn(Identity(settings, tasks.start_soon), MemoryStore())
        started = await sign_in.begin(settings.oauth.issuers[0], URL, f"{URL}/oauth/callback", None)
        found = await sign_in.finish(started, await follow(started.url))
    return found.name


async def test_an_identity_token_names_who_signed_in_where_the_access_token_is_opaque() -> None:
    it = Giving()
    with anyio.fail_after(GUARD):
        async with issuing(it):
            it.tokens["id_token"] = it.token(CLIENT)
            assert await signed_in(it) == "oidc:ann"


@pytest.mark.parametrize("member", ["access_token", "id_token"])
async def test_an_issuer_names_nobody_by_a_token_of_another(member: str) -> None:
    it, other = Giving(), FakeIssuer(pairs=[pair("other")])
    with anyio.fail_after(GUARD):
        async with issuing(it), issuing(other):
            it.tokens[member] = other.token(CLIENT if member == "id_token" else URL)
            with pytest.RaisesGroup(pytest.RaisesExc(LoginFailed, match="a token that it did not make itself")):
                await signed_in(it, {"issuer": other.url, "prefix": "staff:"})
