"""A server that wants OAuth and its authorization server, in one: counts what it is asked, and fails when told to."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import anyio
import jwt
from aiohttp import web

Json = dict[str, Any]

RESULTS: Final[dict[str, Json]] = {
    "server/discover": {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "guarded", "version": "1"},
        "ttlMs": 1000,
        "cacheScope": "private",
    },
    "tools/list": {"tools": [{"name": "work", "inputSchema": {"type": "object"}}], "ttlMs": 0, "cacheScope": "private"},
    "tools/call": {"content": [], "structuredContent": {"value": "done"}},
}
"""What the resource answers, by method: a server of 2026-07-28 with one tool."""


@dataclass
class Authorization:
    """Tokens are numbered; each refresh token is good once. `url` is the resource's."""

    origin: str = ""
    life: float | None = 3600
    rotates: bool = True
    gives_refresh: bool = True
    outage: int | None = None
    """The status that the token endpoint answers with, while it is set."""
    retry_after: str | None = None
    """`Retry-After` of those answers."""
    refuses: str | None = None
    """The error of the token endpoint's refusals, while it is set."""
    token_requests: list[dict[str, str]] = field(default_factory=list)
    registrations: list[Json] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    """Access tokens that the resource takes."""
    refused_scopes: set[str] = field(default_factory=set)
    """Scopes that it refuses to give (invalid_scope)."""
    withholds: set[str] = field(default_factory=set)
    """Scopes that it takes out of what it grants."""
    needed_scopes: str = ""
    """What the resource wants beyond the scopes of a token, while it is set."""
    resource_requests: list[str | None] = field(default_factory=list)
    """The Authorization header of each request to the resource."""
    served: list[str] = field(default_factory=list)
    """The methods that the resource carried out."""
    is_discovered_openly: bool = False
    """Whether `server/discover` needs no token."""
    quotes_token: bool = False
    """Whether a tool's error holds what the request carried."""
    subject: str | None = None
    """Who logs in, as identity tokens name them; None for none."""
    prefix: str = ""
    """What its tokens begin with."""
    names_issuer: bool = True
    """Whether it publishes the resource's metadata, as servers of 2025-03-26 do not."""
    named_issuer: str | None = None
    """The authorization server that the resource names; None for itself."""
    metadata: Json = field(default_factory=dict)
    """What its metadata says instead of the truth."""
    delay: float = 0
    """Seconds that a call takes; for measurements."""
    together: int = 0
    """Calls that the resource holds back until so many are there at once."""
    redeems_first: bool = False
    """Whether a token request that is held back has been carried out before."""
    refused_subjects: set[str] = field(default_factory=set)
    """Tokens that it exchanges for none."""
    quotes_form: bool = False
    """Whether the refusal of a refresh holds what was asked with."""
    takes_documents: bool = False
    """Whether it takes Client ID Metadata Documents."""
    device_answers: list[str | None] = field(default_factory=list)
    """The errors that polling for a device login is answered with, one after the other; then, and for None, a token."""
    device_requests: list[dict[str, str]] = field(default_factory=list)
    device: Json = field(default_factory=dict)
    """What the device authorization endpoint answers beside, or instead of, what it should."""
    hold: anyio.Event | None = None
    """Token requests wait for it, where there is one."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _refresh_tokens: set[str] = field(default_factory=set)
    _scopes: str = ""
    _news: anyio.Event = field(default_factory=anyio.Event)
    _inside: int = 0
    """Calls that are held back."""
    _all_inside: anyio.Event = field(default_factory=anyio.Event)

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def app(self) -> web.Application:
        app = web.Application()
        get, post = app.router.add_get, app.router.add_post
        get("/.well-known/oauth-protected-resource/mcp", self._resource_metadata)
        get("/.well-known/oauth-authorization-server", self._server_metadata)
        post("/register", self._register)
        get("/authorize", self._authorize)
        post("/token", self._token)
        post("/revoke", self._revoke)
        post("/device", self._device)
        post("/mcp", self._resource)
        return app

    async def _resource_metadata(self, _request: web.Request) -> web.Response:
        if not self.names_issuer:
            return web.Response(status=404)
        return web.json_response(
            {
                "resource": self.url,
                "authorization_servers": [self.named_issuer or self.origin],
                "scopes_supported": ["read"],
            }
        )

    async def _server_metadata(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.origin,
                "authorization_endpoint": f"{self.origin}/authorize",
                "token_endpoint": f"{self.origin}/token",
                "registration_endpoint": f"{self.origin}/register",
                "revocation_endpoint": f"{self.origin}/revoke",
                "device_authorization_endpoint": f"{self.origin}/device",
                "code_challenge_methods_supported": ["S256"],
                "scopes_supported": ["read", "write", "offline_access"],
                "authorization_response_iss_parameter_supported": True,
                "client_id_metadata_document_supported": self.takes_documents,
                **self.metadata,
            }
        )

    async def _register(self, request: web.Request) -> web.Response:
        self.registrations.append(await request.json())
        return web.json_response({"client_id": f"client-{len(self.registrations)}"}, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        self._scopes = asked.get("scope", "")
        back = {"code": "code", "state": asked["state"], "iss": self.metadata.get("issuer", self.origin)}
        if self.refused_scopes.intersection(self._scopes.split()):
            back["error"] = "invalid_scope"
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.Response:
        form = dict(parse_qsl(await request.text()))
        self.token_requests.append(form)
        self._news.set()
        if self.hold is not None and not self.redeems_first:
            await self.hold.wait()
            if request.transport is None or request.transport.is_closing():
                return web.Response(status=503)  # who asked has gone before anything was done
        if self.outage is not None:
            headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
            return web.Response(status=self.outage, text="busy", headers=headers)
        if self.refuses is not None:
            return web.json_response({"error": self.refuses}, status=400)
        if self.refused_scopes.intersection(form.get("scope", "").split()):
            return web.json_response({"error": "invalid_scope"}, status=400)
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self._refresh_tokens:
                quoted = {"error_description": f"unknown: {form}"} if self.quotes_form else {}
                return web.json_response({"error": "invalid_grant", **quoted}, status=400)
            if self.rotates:
                self._refresh_tokens.discard(form["refresh_token"])
        if form.get("subject_token") in self.refused_subjects:
            return web.json_response({"error": "invalid_request"}, status=400)
        if form["grant_type"].endswith("device_code") and self.device_answers:
            error = self.device_answers.pop(0)
            if error is not None:
                return web.json_response({"error": error}, status=400)
        granted = self.granted(form.get("scope"))
        if form.get("requested_token_type", "").endswith(":id-jag"):
            granted["token_type"] = "N_A"  # RFC 8693, section 2.2.1: no token that requests carry
        if self.hold is not None:
            await self.hold.wait()
        return web.json_response(granted)

    async def asked(self, count: int) -> None:
        """Returns once there were so many token requests."""
        while len(self.token_requests) < count:
            self._news = anyio.Event()
            await self._news.wait()

    def let_go(self) -> None:
        """Answers the calls that it holds back."""
        self._all_inside.set()

    async def _device(self, request: web.Request) -> web.Response:
        self.device_requests.append(dict(parse_qsl(await request.text())))
        begun = {
            "device_code": "device-code-1",
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.origin}/activate",
            "verification_uri_complete": f"{self.origin}/activate?code=WDJB-MJHT",
            "expires_in": 600,
            "interval": 5,
        }
        return web.json_response({**begun, **self.device})

    def forget_refresh_tokens(self) -> None:
        """Refuses every refresh token that was given."""
        self._refresh_tokens.clear()

    def granted(self, scope: str | None = None) -> Json:
        """A new token, as an answer has it."""
        number = next(self._numbers)
        access = f"{self.prefix}access-token-{number}"
        self.valid.add(access)
        given = " ".join(each for each in (scope or self._scopes).split() if each not in self.withholds)
        answer: Json = {"access_token": access, "token_type": "Bearer", "scope": given}
        if self.subject is not None:
            answer["id_token"] = jwt.encode({"sub": self.subject}, "0" * 32, algorithm="HS256")
        if self.life is not None:
            answer["expires_in"] = self.life
        if self.gives_refresh:
            refresh = f"{self.prefix}refresh-token-{number}"
            self._refresh_tokens.add(refresh)
            answer["refresh_token"] = refresh
        return answer

    async def _revoke(self, request: web.Request) -> web.Response:
        self.revoked.append(dict(parse_qsl(await request.text()))["token"])
        return web.Response()

    async def _resource(self, request: web.Request) -> web.Response:
        header = request.headers.get("Authorization")
        self.resource_requests.append(header)
        metadata = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
        is_open = self.is_discovered_openly and request.headers.get("Mcp-Method") == "server/discover"
        if not is_open and (header is None or header.removeprefix("Bearer ") not in self.valid):
            return web.Response(status=401, headers={"WWW-Authenticate": f"Bearer {metadata}"})
        if self.needed_scopes:
            challenge = f'Bearer error="insufficient_scope", scope="{self.needed_scopes}", {metadata}'
            return web.Response(status=403, headers={"WWW-Authenticate": challenge})
        message = await request.json()
        self.served.append(message["method"])
        if self.delay and message["method"] == "tools/call":
            await anyio.sleep(self.delay)
        if self.together and message["method"] == "tools/call":
            self._inside += 1
            if self._inside == self.together:
                self._all_inside.set()
            await self._all_inside.wait()
        if self.quotes_token and message["method"] == "tools/call":
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": {"code": 1, "message": header}})
        result = {"resultType": "complete", **RESULTS[message["method"]]}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})


@asynccontextmanager
async def authorization(**settings: Any) -> AsyncIterator[Authorization]:
    """Serves on loopback until left."""
    async with serving(Authorization(**settings)) as it:
        yield it


@asynccontextmanager
async def serving(it: Authorization) -> AsyncIterator[Authorization]:
    """Serves it on loopback until left."""
    runner = web.AppRunner(it.app(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        it.origin = f"http://{host}:{port}"
        yield it
    finally:
        await runner.cleanup()


async def follow(url: str) -> dict[str, str]:
    """Opens a login's link as a browser does, and returns what its redirect brings back."""
    async with aiohttp.ClientSession() as http, http.get(url, allow_redirects=False) as response:
        return dict(parse_qsl(urlsplit(response.headers["Location"]).query))
