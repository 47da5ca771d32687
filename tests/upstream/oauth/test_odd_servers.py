"""Odd authorization servers of the field: each logs in by `mcproxy login`, and then a call goes through.

One odd server is one small class over `Authorization`. What it expects of the gateway it checks by itself, and refuses
otherwise; what the gateway should do stands in the table below.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
import anyio
import pytest
from aiohttp import web

from mcproxy.cli.access.grants import login
from mcproxy.cli.runtime import ExitCode
from mcproxy.configuration.loading import load_configuration
from mcproxy.sealing import Sealer
from mcproxy.service.state import grant_store, secret_keys
from mcproxy.settings import Proxy
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.supervisor import Supervisor
from tests.cli.access.test_grants import Browser
from tests.fakes.authorization import Authorization, Json, serving
from tests.timeouts import GUARD
from tests.upstream.support import tool, value

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


class Redirecting(Authorization):
    """Redirects every OAuth URL within its origin, once, with 308."""

    def app(self) -> web.Application:
        app = super().app()

        @web.middleware
        async def redirect(request: web.Request, handler: Any) -> web.StreamResponse:
            moved = request.path.startswith("/.well-known/oauth-auth") or request.path in {"/token", "/register"}
            if moved and "again" not in request.query:
                return web.Response(status=308, headers={"Location": f"{request.path}?again=1"})
            response: web.StreamResponse = await handler(request)
            return response

        app.middlewares.append(redirect)
        return app


@dataclass
class Answering(Authorization):
    """Changes its token answers: `changes` replace members (None removes), `status` and `as_form` the rest."""

    changes: Json | None = None
    status: int = 200
    as_form: bool = False
    bom: bool = False

    async def _token(self, request: web.Request) -> web.Response:
        plain = await super()._token(request)
        assert isinstance(plain.body, bytes)
        answer = {**json.loads(plain.body), **(self.changes or {})}
        answer = {name: given for name, given in answer.items() if given != "(none)"}
        if self.as_form:
            return web.Response(text=urlencode(answer), content_type="application/x-www-form-urlencoded")
        text = ("\ufeff" if self.bom else "") + json.dumps(answer)
        return web.Response(text=text, status=self.status, content_type="application/json")


class SlackLike(Authorization):
    """Nests a person's token, separates scopes by commas, and calls the type of the token `user`."""

    async def _token(self, request: web.Request) -> web.Response:
        plain = await super()._token(request)
        assert isinstance(plain.body, bytes)
        given = json.loads(plain.body)
        user = {"access_token": given.pop("access_token"), "token_type": "user"}
        return web.json_response({"ok": True, **given, "authed_user": user, "scope": "read,write"})


@dataclass
class Refusing(Authorization):
    """Refuses each code with status 200."""

    refusal: Json | None = None

    async def _token(self, request: web.Request) -> web.Response:
        return web.json_response(self.refusal)


@dataclass
class WellKnown(Authorization):
    """Answers some well-known URLs with something else: `others` by their path; `metadata_at` moves its own."""

    others: dict[str, tuple[int, str]] | None = None
    metadata_at: str = "/.well-known/oauth-authorization-server"

    def app(self) -> web.Application:
        app = super().app()

        @web.middleware
        async def other(request: web.Request, handler: Any) -> web.StreamResponse:
            if request.path in (self.others or {}):
                status, text = (self.others or {})[request.path]
                return web.Response(status=status, text=text, content_type="text/html")
            if request.path == self.metadata_at:
                return await self._server_metadata(request)
            response: web.StreamResponse = await handler(request)
            return response

        app.middlewares.append(other)
        return app


class Tenant(WellKnown):
    """Has an issuer with a path."""

    async def _resource_metadata(self, _request: web.Request) -> web.Response:
        return web.json_response({"resource": self.url, "authorization_servers": [f"{self.origin}/tenant"]})

    async def _server_metadata(self, request: web.Request) -> web.Response:
        self.metadata = {"issuer": f"{self.origin}/tenant"}
        return await super()._server_metadata(request)


class SlashNamed(Authorization):
    """Names its issuer with a slash at the end, and itself without one, as Google."""

    async def _resource_metadata(self, _request: web.Request) -> web.Response:
        return web.json_response({"resource": self.url, "authorization_servers": f"{self.origin}/"})


class FigmaLike(Authorization):
    """Registers one name only, with method none and a secret, which it wants in the body."""

    async def _register(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self.registrations.append(wanted)
        if wanted["client_name"] != "Claude Code":
            return web.Response(status=403, text="Forbidden")
        given = {"client_id": "c", "client_secret": "its-own-secret", "token_endpoint_auth_method": "none"}
        return web.json_response({**given, "client_secret_expires_at": "0"})

    async def _token(self, request: web.Request) -> web.Response:
        if dict(parse_qsl(await request.text())).get("client_secret") != "its-own-secret":
            return web.json_response({"error": "invalid_client"}, status=401)
        return await super()._token(request)


@dataclass
class CognitoLike(Authorization):
    """Lists a scope that it refuses, and does not say that it has PKCE."""

    words: str = "invalid_scope"
    """Its words about the scope."""

    async def _resource_metadata(self, _request: web.Request) -> web.Response:
        listed = ["openid", "email", "phone"]
        return web.json_response(
            {"resource": self.url, "authorization_servers": [self.origin], "scopes_supported": listed}
        )

    async def _server_metadata(self, request: web.Request) -> web.Response:
        self.metadata = {"code_challenge_methods_supported": None}
        return await super()._server_metadata(request)

    async def _authorize(self, request: web.Request) -> web.Response:
        assert "code_challenge" in request.query
        if "phone" in request.query.get("scope", "").split():
            back = {"error": "invalid_request", "error_description": self.words, "state": request.query["state"]}
            raise web.HTTPFound(f"{request.query['redirect_uri']}?{urlencode({**back, 'iss': self.origin})}")
        return await super()._authorize(request)


@dataclass
class NamingCognito(CognitoLike):
    """Names the scope, and wants all the others."""

    words: str = "invalid_scope: the scope 'phone' is not allowed for this client"

    async def _token(self, request: web.Request) -> web.Response:
        assert self._scopes == "openid email offline_access"
        return await super()._token(request)


@dataclass
class EntraLike(Authorization):
    """Compares `resource` letter by letter at both endpoints: with a value, or it must be missing."""

    takes: str | None = None

    async def _server_metadata(self, request: web.Request) -> web.Response:
        self.metadata = {"code_challenge_methods_supported": None}
        return await super()._server_metadata(request)

    async def _authorize(self, request: web.Request) -> web.Response:
        if request.query.get("resource") != self.takes:
            back = {"error": "invalid_target", "error_description": "AADSTS9010010: the resource does not match"}
            query = urlencode({**back, "state": request.query["state"], "iss": self.origin})
            raise web.HTTPFound(f"{request.query['redirect_uri']}?{query}")
        return await super()._authorize(request)

    async def _token(self, request: web.Request) -> web.Response:
        if dict(parse_qsl(await request.text())).get("resource") != self.takes:
            return web.json_response({"error": "invalid_target"}, status=400)
        plain = await super()._token(request)
        assert isinstance(plain.body, bytes)
        return web.json_response({**json.loads(plain.body), "expires_in": "5250"})


class Ancient(Authorization):
    """A server of 2025-03-26: no metadata anywhere, web pages in their place."""

    def app(self) -> web.Application:
        app = super().app()

        @web.middleware
        async def page(request: web.Request, handler: Any) -> web.StreamResponse:
            if request.path.startswith("/.well-known/"):
                return web.Response(text="<html>welcome</html>", content_type="text/html")
            response: web.StreamResponse = await handler(request)
            return response

        app.middlewares.append(page)
        return app


@dataclass
class Challenging(Authorization):
    """Names its metadata in the challenge in an odd way."""

    named: str = ""

    async def _resource(self, request: web.Request) -> web.Response:
        response = await super()._resource(request)
        if response.status == 401:
            response.headers["WWW-Authenticate"] = f'Bearer resource_metadata="{self.named}"'
        return response


@dataclass
class Provider(Authorization):
    """A provider without registration, whose issuer has `path`, and whose metadata stands at `place`."""

    path: str = ""
    named_path: str | None = None
    """The path with which the server names its issuer, if another."""
    place: str = "/.well-known/oauth-authorization-server"
    says_pkce: bool = True
    takes_resource: bool = True
    refused: str = ""
    """A scope that it refuses, and the server lists."""
    token_changes: Json | None = None
    answers_form: bool = False

    def app(self) -> web.Application:
        app = super().app()
        app.middlewares.append(self._only_there)
        return app

    @web.middleware
    async def _only_there(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path == self.place:
            return await self._server_metadata(request)
        if request.path.endswith(("/oauth-authorization-server", "/openid-configuration")):
            return web.Response(status=404)
        response: web.StreamResponse = await handler(request)
        return response

    async def _resource_metadata(self, _request: web.Request) -> web.Response:
        named = self.path if self.named_path is None else self.named_path
        document = {"resource": self.url, "authorization_servers": [f"{self.origin}{named}"]}
        return web.json_response({**document, "scopes_supported": ["openid", "email", *self.refused.split()]})

    async def _server_metadata(self, request: web.Request) -> web.Response:
        methods = ["S256"] if self.says_pkce else None
        self.metadata = {
            "issuer": f"{self.origin}{self.path}",
            "registration_endpoint": None,
            "code_challenge_methods_supported": methods,
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
        }
        return await super()._server_metadata(request)

    async def _authorize(self, request: web.Request) -> web.Response:
        asked = request.query
        assert asked["client_id"] == "the-id"
        assert asked["code_challenge_method"] == "S256"
        if ("resource" in asked) is not self.takes_resource or self.refused in asked.get("scope", "").split():
            return web.Response(status=400, text="AADSTS9010010")
        return await super()._authorize(request)

    async def _token(self, request: web.Request) -> web.Response:
        form = dict(parse_qsl(await request.text()))
        if "Authorization" not in request.headers and form.get("client_secret") != "the-secret":
            return web.json_response({"error": "incorrect_client_credentials"})
        if ("resource" in form) is not self.takes_resource:
            return web.json_response({"error": "invalid_target"}, status=400)
        plain = await super()._token(request)
        assert isinstance(plain.body, bytes)
        answer = {**json.loads(plain.body), **(self.token_changes or {})}
        return web.Response(text=urlencode(answer)) if self.answers_form else web.json_response(answer)


PAGE = Path(__file__).parents[3] / "docs/how-to/log-in-with-providers.md"
RECIPE = re.compile(r"^## (.+?)$.*?^```yaml$(.*?)^```$", re.MULTILINE | re.DOTALL)
STANDINS: dict[str, Authorization] = {
    "Entra ID": Provider(
        path="/tenant/v2.0",
        place="/tenant/v2.0/.well-known/openid-configuration",
        says_pkce=False,
        takes_resource=False,
        token_changes={"expires_in": "5250"},
    ),
    "Cognito": Provider(
        path="/eu_Pool", place="/eu_Pool/.well-known/openid-configuration", says_pkce=False, refused="phone"
    ),
    "Okta": Provider(path="/oauth2/default", place="/.well-known/oauth-authorization-server/oauth2/default"),
    "Auth0": Provider(path="/", named_path="", place="/.well-known/openid-configuration"),
    "Keycloak": Provider(path="/realms/one", place="/realms/one/.well-known/openid-configuration"),
    "Google": Provider(named_path="/"),
    "GitHub": Provider(
        path="/login/oauth", place="/.well-known/oauth-authorization-server/login/oauth", answers_form=True
    ),
    "Slack": Provider(token_changes={"ok": True, "token_type": "user", "scope": "search:read.public,openid"}),
    "Figma": FigmaLike(),
}


@pytest.mark.parametrize("provider", STANDINS)
async def test_a_recipe_logs_in_to_a_stand_in_of_its_provider(
    provider: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = dict(RECIPE.findall(PAGE.read_text()))
    assert recipes.keys() == STANDINS.keys()
    monkeypatch.setenv("TRACKER_CLIENT_ID", "the-id")
    monkeypatch.setenv("TRACKER_CLIENT_SECRET", "the-secret")
    with anyio.fail_after(GUARD):
        async with serving(STANDINS[provider]) as server:
            config = tmp_path / "mcproxy.yaml"
            config.write_text(re.sub(r"url: \S+", f"url: {server.url}", recipes[provider]))
            await logged_in_and_called(config, server, "", capsys)


HTML = (200, "<html>not found</html>")
PRM = "/.well-known/oauth-protected-resource/mcp"
AS = "/.well-known/oauth-authorization-server"
OIDC = "/.well-known/openid-configuration"
PKCE: Json = {"pkce": "assumed"}

CASES: dict[str, tuple[Authorization, Json, str]] = {
    "well-behaved": (Authorization(), {}, ""),
    "redirects within its origin": (Redirecting(), {}, ""),
    "token_type user": (Answering(changes={"token_type": "user"}), {}, ""),
    "token_type null": (Answering(changes={"token_type": None}), {}, ""),
    "no token_type": (Answering(changes={"token_type": "(none)"}), {}, ""),
    "token_type DPoP": (Answering(changes={"token_type": "DPoP"}), {}, "tokens of type 'dpop', not bearer"),
    "token_type mac": (Answering(changes={"token_type": "mac"}), {}, "tokens of type 'mac', not bearer"),
    "expires_in a text": (Answering(changes={"expires_in": "5250"}), {}, ""),
    "scope a list": (Answering(changes={"scope": ["read"]}), {}, ""),
    "201": (Answering(status=201), {}, ""),
    "a form": (Answering(as_form=True), {}, ""),
    "a byte order mark": (Answering(bom=True), {}, ""),
    "as Slack": (SlackLike(), {}, ""),
    "refused with 200, as GitHub": (Refusing(refusal={"error": "bad_verification_code"}), {}, "bad_verification_code"),
    "refused with 200, as Slack": (Refusing(refusal={"ok": False, "error": "invalid_code"}), {}, "invalid_code"),
    "a web page before the root": (WellKnown(others={PRM: HTML}), {}, ""),
    "{} before the root": (WellKnown(others={PRM: (200, "{}")}), {}, ""),
    "500 before the root": (WellKnown(others={PRM: (500, "")}), {}, ""),
    "418 before the root": (WellKnown(others={PRM: (418, "")}), {}, ""),
    "the OpenID place alone": (WellKnown(others={AS: HTML}, metadata_at=OIDC), {}, ""),
    "a tenant at the root": (Tenant(), {}, ""),
    "nowhere": (
        WellKnown(others={AS: HTML, OIDC: (404, "")}),
        {},
        "it is a web page; .*openid-configuration answered HTTP 404",
    ),
    "another issuer": (
        Authorization(metadata={"issuer": "https://other.example"}),
        {},
        "of issuer 'https://other.example', not of http://.*oauth.issuer",
    ),
    "an issuer with and without a slash": (SlashNamed(), {}, ""),
    "as Figma": (FigmaLike(), {}, "HTTP 403: Forbidden.*oauth.client.id.*oauth.client.name"),
    "as Figma, with the name": (FigmaLike(), {"client": {"name": "Claude Code"}}, ""),
    "as Cognito": (CognitoLike(), PKCE, ""),
    "as Cognito, naming the scope": (NamingCognito(), PKCE, ""),
    "as Cognito, without the setting": (CognitoLike(), {}, "oauth.pkce: assumed"),
    "as Entra, without resource": (EntraLike(), {**PKCE, "resource": "omit"}, ""),
    "as Entra, with another resource": (EntraLike(takes="api://tracker"), {**PKCE, "resource": "api://tracker"}, ""),
    "as Entra, without the setting": (EntraLike(), PKCE, "oauth.resource"),
    "plain PKCE alone": (
        Authorization(metadata={"code_challenge_methods_supported": ["plain"]}),
        PKCE,
        "does not say that it supports PKCE",
    ),
    "2025-03-26": (Ancient(), {}, ""),
    "a relative resource_metadata": (Challenging(named=PRM), {}, ""),
    "a resource_metadata over http": (Challenging(named="http://public.example/m"), {}, ""),
    "a resource_metadata that nobody answers": (Challenging(named="http://127.0.0.1:9/m"), {}, ""),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_odd_server_is_logged_in_to_and_called_or_the_error_says_what_to_set(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, oauth, error = CASES[name]
    with anyio.fail_after(GUARD):
        async with serving(server):
            server.metadata = {key: given for key, given in server.metadata.items() if given is not None}
            config = tmp_path / "mcproxy.json"
            config.write_text(json.dumps({"mcpServers": {"web": {"url": server.url, "oauth": oauth}}}))
            await logged_in_and_called(config, server, error, capsys)


async def logged_in_and_called(
    config: Path, server: Authorization, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs in to the only server of a configuration and calls its tool; with `error`, the login says that instead."""
    settings = load_configuration(config).settings
    [spec] = settings.upstreams
    code = await login(settings, spec.name, open_url=Finding())
    said = capsys.readouterr().err
    if error:
        assert code is ExitCode.FAILED
        assert_says(said, error)
        return
    assert code is ExitCode.OK, said
    if isinstance(
        server, Answering | SlackLike | Redirecting | SlashNamed | FigmaLike | CognitoLike | Ancient | Challenging
    ):
        assert ": the server " in said, "the deviation is shown"
    elif type(server) is Authorization:
        assert ": the server " not in said
    store = grant_store(settings, Sealer(*secret_keys(settings)))
    upstream = Supervisor(spec, Proxy(), lambda event: None, Metrics(), grants=store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upstream.run)
        assert value(await upstream(tool("any"))) == "done"
        tasks.cancel_scope.cancel()
    assert server.served[-1] == "tools/call"


class Finding(Browser):
    """A browser that says nothing of pages that tell of a failure."""

    async def _follow(self, url: str) -> None:
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            await response.text()


def assert_says(said: str, pattern: str) -> None:
    assert re.search(pattern, " ".join(said.split())), said
