"""The demo's OAuth-protected MCP server, and the authorization server that it trusts, on one port of loopback.

    python config/notes_server.py [PORT] [COMMAND...]

Each person has notes of their own: two tools, `add` and `list`. A visitor who logs in says a name and is believed, so
this is for trying things out and for nothing else. Tokens live a minute, refresh tokens are good once. With a COMMAND
it serves as long as that runs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import secrets
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import jwt
from aiohttp import web

Json = dict[str, Any]

TOKEN_SECONDS = 60
MOST = 1000
"""Clients, logins, grants and notes that are remembered, and characters of a note; the oldest give way."""
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Notes</title>
<body style="font: 1.1rem system-ui; margin: 4rem auto; max-width: 36rem">{}</body></html>"""
FORM = """<h1>Notes</h1><p><b>{client}</b> wants to read and write your notes.</p>
<form method="post"><p><label>Your name: <input name="name" required maxlength="50" autofocus></label></p>
<p><button name="answer" value="yes">Allow</button> <button name="answer" value="no">Refuse</button></p></form>"""
TOOLS = [
    {
        "name": "add",
        "description": "Keep a note.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
    {"name": "list", "description": "Your notes.", "inputSchema": {"type": "object"}},
]


def keep(memory: dict[str, Any], key: str, value: Any) -> str:
    while len(memory) >= MOST:
        del memory[next(iter(memory))]
    memory[key] = value
    return key


@dataclass
class Login:
    """One person's way through: what the client asked for, and who agreed."""

    client: str
    redirect: str = ""
    state: str = ""
    challenge: str = ""
    name: str | None = None
    refused: bool = False


@dataclass
class AuthorizationServer:
    """OAuth 2.1 with dynamic registration, PKCE, rotation, revocation (RFC 7009) and the device flow (RFC 8628)."""

    origin: str
    key: str = field(default_factory=lambda: secrets.token_hex(32))
    clients: dict[str, Json] = field(default_factory=dict)
    logins: dict[str, Login] = field(default_factory=dict)
    codes: dict[str, Login] = field(default_factory=dict)
    devices: dict[str, Login] = field(default_factory=dict)
    refresh_tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Client and name, by token."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/.well-known/oauth-authorization-server", self.metadata),
            web.post("/register", self.register),
            web.get("/authorize", self.authorize),
            web.get("/login/{id}", self.ask),
            web.post("/login/{id}", self.answer),
            web.post("/device", self.device),
            web.post("/token", self.token),
            web.post("/revoke", self.revoke),
        ]

    async def metadata(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.origin,
                "authorization_endpoint": f"{self.origin}/authorize",
                "token_endpoint": f"{self.origin}/token",
                "registration_endpoint": f"{self.origin}/register",
                "revocation_endpoint": f"{self.origin}/revoke",
                "device_authorization_endpoint": f"{self.origin}/device",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def register(self, request: web.Request) -> web.Response:
        client: Json = await request.json()
        id = keep(self.clients, secrets.token_urlsafe(12), client)
        return web.json_response({**client, "client_id": id, "token_endpoint_auth_method": "none"}, status=201)

    async def authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        client, redirect = asked.get("client_id", ""), asked.get("redirect_uri", "")
        # A visitor is never sent to an address that its client did not register.
        if redirect not in self.clients.get(client, {}).get("redirect_uris", []):
            raise web.HTTPBadRequest(text="unknown client, or another redirect than it registered")
        if asked.get("code_challenge_method") != "S256" or "code_challenge" not in asked:
            raise web.HTTPBadRequest(text="PKCE (S256) is wanted")
        login = Login(client, redirect, asked.get("state", ""), asked["code_challenge"])
        raise web.HTTPFound(f"/login/{keep(self.logins, secrets.token_urlsafe(12), login)}")

    def login(self, request: web.Request) -> Login:
        try:
            return self.logins[request.match_info["id"]]
        except KeyError:
            raise web.HTTPNotFound(text="this login is over, or never began") from None

    async def ask(self, request: web.Request) -> web.Response:
        client = self.clients.get(self.login(request).client, {}).get("client_name", "A program")
        return page(FORM.format(client=html.escape(str(client))))

    async def answer(self, request: web.Request) -> web.Response:
        login, form = self.login(request), await request.post()
        del self.logins[request.match_info["id"]]
        login.refused = form.get("answer") != "yes"
        login.name = None if login.refused else str(form.get("name", ""))[:50]
        if not login.redirect:
            return page("<p>Thank you. You can close this page.</p>")
        back = {"state": login.state, "iss": self.origin}
        back |= {"error": "access_denied"} if login.refused else {}
        back |= {} if login.refused else {"code": keep(self.codes, secrets.token_urlsafe(24), login)}
        raise web.HTTPFound(f"{login.redirect}?{urlencode(back)}")

    async def device(self, request: web.Request) -> web.Response:
        form = await request.post()
        login = Login(str(form.get("client_id", "")))
        if login.client not in self.clients:
            return refused("invalid_client")
        code = f"{secrets.token_hex(2)}-{secrets.token_hex(2)}".upper()
        url = f"{self.origin}/login/{keep(self.logins, code, login)}"
        return web.json_response(
            {
                "device_code": keep(self.devices, secrets.token_urlsafe(24), login),
                "user_code": code,
                "verification_uri": url,
                "expires_in": 600,
                "interval": 2,
            }
        )

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        match form.get("grant_type"):
            case "authorization_code":
                login = self.codes.pop(form.get("code", ""), None)
                digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
                proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
                if login is None or (login.client, login.redirect, login.challenge) != (
                    form.get("client_id"), form.get("redirect_uri"), proof,
                ):  # fmt: skip
                    return refused("invalid_grant")
                return self.granted(login.client, login.name or "", form)
            case "refresh_token":
                client, name = self.refresh_tokens.pop(form.get("refresh_token", ""), ("", ""))
                return self.granted(client, name, form) if client else refused("invalid_grant")
            case other if other == DEVICE_CODE:
                login = self.devices.get(form.get("device_code", ""))
                if login is None or login.refused:
                    return refused("expired_token" if login is None else "access_denied")
                if login.name is None:
                    return refused("authorization_pending")
                del self.devices[form["device_code"]]
                return self.granted(login.client, login.name, form)
        return refused("unsupported_grant_type")

    def granted(self, client: str, name: str, form: Json) -> web.Response:
        claims = {"sub": name, "aud": form.get("resource", ""), "exp": time.time() + TOKEN_SECONDS}
        return web.json_response(
            {
                "access_token": jwt.encode(claims, self.key, algorithm="HS256"),
                "token_type": "Bearer",
                "expires_in": TOKEN_SECONDS,
                "refresh_token": keep(self.refresh_tokens, secrets.token_urlsafe(24), (client, name)),
            }
        )

    async def revoke(self, request: web.Request) -> web.Response:
        self.refresh_tokens.pop(str((await request.post()).get("token", "")), None)
        return web.Response()


@dataclass
class NotesServer:
    """An MCP server of 2026-07-28 over Streamable HTTP: a resource that takes the tokens of its issuer alone."""

    origin: str
    key: str
    notes: dict[str, list[str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/.well-known/oauth-protected-resource/mcp", self.metadata), web.post("/mcp", self.serve)]

    async def metadata(self, _request: web.Request) -> web.Response:
        return web.json_response({"resource": self.url, "authorization_servers": [self.origin]})

    async def serve(self, request: web.Request) -> web.Response:
        try:
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            name = jwt.decode(token, self.key, algorithms=["HS256"], audience=self.url)["sub"]
        except jwt.PyJWTError:
            metadata = f"{self.origin}/.well-known/oauth-protected-resource/mcp"
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{metadata}"'})
        message: Json = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        result = self.result(message["method"], message.get("params", {}), name)
        unknown = {"error": {"code": -32601, "message": "Method not found"}}
        answer = unknown if result is None else {"result": {"resultType": "complete", **result}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **answer})

    def result(self, method: str, params: Json, name: str) -> Json | None:
        match method:
            case "server/discover":
                about = {"serverInfo": {"name": "notes", "version": "1.0"}, "capabilities": {"tools": {}}}
                return {"supportedVersions": ["2026-07-28"], **about, "ttlMs": 3_600_000, "cacheScope": "private"}
            case "tools/list":
                return {"tools": TOOLS, "ttlMs": 3_600_000, "cacheScope": "private"}
            case "tools/call":
                return {"content": [{"type": "text", "text": self.call(params, name)}]}
        return None

    def call(self, params: Json, name: str) -> str:
        notes = self.notes.setdefault(name, [])
        if params["name"] == "add":
            notes.append(str(params.get("arguments", {}).get("text", ""))[:MOST])
            del notes[:-MOST]
        return f"{name}'s notes: " + ("; ".join(notes) or "none")


def page(body: str) -> web.Response:
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
    return web.Response(text=PAGE.format(body), content_type="text/html", headers=headers)


def refused(error: str) -> web.Response:
    return web.json_response({"error": error}, status=400)


async def main(port: int, command: list[str]) -> int:
    origin = f"http://127.0.0.1:{port}"
    authorization = AuthorizationServer(origin)
    app = web.Application()
    app.add_routes([*authorization.routes(), *NotesServer(origin, authorization.key).routes()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        if not command:
            await asyncio.Event().wait()
        process = await asyncio.create_subprocess_exec(*command)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, process.terminate)
        while True:
            try:
                return await process.wait()
            except asyncio.CancelledError:  # Ctrl-C reaches the command too, which ends by itself
                continue
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(asyncio.run(main(int(arguments[0]) if arguments else 8002, arguments[1:])))
