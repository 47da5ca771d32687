"""An authorization server on loopback that lets everybody in at once: metadata, keys, registration, codes and tokens.

Its keys are made once for all tests. What it counts, breaks and holds back is for a test to say.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlencode

import anyio
import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

CODE = "the-code"


@dataclass(frozen=True, eq=False)
class Pair:
    """A key that signs, as one algorithm has it, and what is published of it."""

    kid: str
    algorithm: str
    private: Any
    jwk: dict[str, Any]

    def sign(self, claims: Mapping[str, Any], **header: Any) -> str:
        """Signs anything, as no sane issuer would."""
        payload = json.dumps(dict(claims)).encode()
        return jwt.PyJWS().encode(payload, self.private, self.algorithm, {"kid": self.kid, **header})


@cache
def pair(kid: str = "one", algorithm: str = "RS256") -> Pair:
    """The same for the same arguments."""
    private: PrivateKeyTypes
    match algorithm:
        case "ES256" | "ES384":
            private = ec.generate_private_key(ec.SECP256R1() if algorithm == "ES256" else ec.SECP384R1())
            jwk = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
        case "EdDSA":
            private = ed25519.Ed25519PrivateKey.generate()
            jwk = OKPAlgorithm.to_jwk(private.public_key(), as_dict=True)
        case _:
            private = rsa.generate_private_key(65537, 2048)
            jwk = RSAAlgorithm.to_jwk(private.public_key(), as_dict=True)
    return Pair(kid, algorithm, private, {**jwk, "kid": kid, "use": "sig"})


@dataclass
class FakeIssuer:
    url: str = ""
    pairs: list[Pair] = field(default_factory=lambda: [pair()])
    down: bool = False
    """Whether it answers nothing but errors."""
    redirect: str | None = None
    """Where the keys are said to be instead."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What its metadata says beside the truth."""
    fetched: int = 0
    """How often its keys were given out, or asked for."""
    registered: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)
    """The parameters of requests for codes and for tokens."""
    gate: anyio.Event | None = None
    """What giving out keys waits for."""
    arrived: anyio.Event = field(default_factory=anyio.Event)
    """Whether anybody asked for keys."""

    def claims(self, audience: str | list[str], **changes: Any) -> dict[str, Any]:
        """Of a good token; a claim of None is left out."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": "ann", "aud": audience, "iat": now, "exp": now + 600, **changes}
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, audience: str | list[str], **changes: Any) -> str:
        return self.pairs[0].sign(self.claims(audience, **changes))

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/.well-known/oauth-authorization-server", self._metadata),
                web.get("/jwks", self._jwks),
                web.post("/register", self._register),
                web.get("/authorize", self._authorize),
                web.post("/token", self._token),
            ]
        )
        return app

    async def _metadata(self, request: web.Request) -> web.Response:
        if self.down:
            raise web.HTTPServiceUnavailable
        return web.json_response(
            {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/jwks",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
                **self.metadata,
            }
        )

    async def _jwks(self, request: web.Request) -> web.Response:
        self.fetched += 1
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.down:
            raise web.HTTPServiceUnavailable
        if self.redirect is not None:
            raise web.HTTPFound(self.redirect)
        return web.json_response({"keys": [pair.jwk for pair in self.pairs]})

    async def _register(self, request: web.Request) -> web.Response:
        self.registered.append(await request.json())
        return web.json_response({**self.registered[-1], "client_id": "the-client"}, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        back = {"code": CODE, "state": request.query["state"], "iss": self.url}
        raise web.HTTPFound(f"{request.query['redirect_uri']}?{urlencode(back)}")

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        wanted, given = self.asked[-1]["code_challenge"], form["code_verifier"]
        self.asked.append(form)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(given.encode()).digest()).rstrip(b"=").decode()
        if (form["code"], challenge) != (CODE, wanted):
            return web.json_response({"error": "invalid_grant"}, status=400)
        token = self.token(form["resource"], scope=self.asked[-2].get("scope"))
        return web.json_response({"access_token": token, "token_type": "Bearer", "expires_in": 600})


@asynccontextmanager
async def issuing(issuer: FakeIssuer | None = None) -> AsyncIterator[FakeIssuer]:
    issuer = issuer or FakeIssuer()
    runner = web.AppRunner(issuer.app(), access_log=None, shutdown_timeout=0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield issuer
    finally:
        await runner.cleanup()


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    """A token of any header at all."""
    parts = [json.dumps(dict(part)).encode() for part in (header, claims)] + [signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
