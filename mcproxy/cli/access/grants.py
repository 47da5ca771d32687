"""`mcproxy login`, `logout` and `grants`: the gateway's own logins at upstreams that want OAuth.

A login is made in this process and stored; a gateway that runs takes it over within a second.
"""

from __future__ import annotations

import asyncio
import html
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import anyio
import anyio.to_thread
import typer
from aiohttp import web

from mcproxy.cli.output import print_err, print_json, print_out, print_table
from mcproxy.cli.runtime import ExitCode
from mcproxy.concurrency.clock import Sleep
from mcproxy.sealing import Sealer
from mcproxy.service.state import grant_store, secret_keys
from mcproxy.settings import Settings, UpstreamSettings
from mcproxy.upstream.oauth import registration
from mcproxy.upstream.oauth.endpoints import EndpointFailed
from mcproxy.upstream.oauth.flow import MAX_NARROWED, Discovered, OAuthFlow
from mcproxy.upstream.oauth.grants import Grant, GrantKey
from mcproxy.upstream.oauth.leniency import Note, unnoted
from mcproxy.upstream.oauth.login import INVALID_SCOPE, LoginFailed
from mcproxy.upstream.oauth.metadata import InvalidMetadata
from mcproxy.upstream.oauth.registration import CannotRegister
from mcproxy.upstream.oauth.storage.store import GrantStore, StoreFailed
from mcproxy.upstream.oauth.tokens import TokenRefused, TokenUnavailable

LOGIN_TIMEOUT: Final = 600.0
"""Seconds that a person has to log in."""
CALLBACK: Final = "/callback"
PER_PRINCIPAL: Final = (
    "each caller logs in by itself, with the link that its client shows (`oauth` per principal); "
    "`oauth: {per: gateway}` has one login for all"
)
COLUMNS: Final = ("upstream", "principal", "issuer", "scopes", "expires", "renewed by itself")

OAUTH_FAILURES: Final = (
    CannotRegister,
    EndpointFailed,
    InvalidMetadata,
    LoginFailed,
    StoreFailed,
    TokenRefused,
    TokenUnavailable,
)

_PAGE_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
}
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>mcproxy</title>
<body style="font: 1.1rem system-ui; margin: 4rem auto; max-width: 36rem"><p>{}</p></body></html>"""


Redirected = Mapping[str, str]
Open = Callable[[str], object]
"""Opens a URL; returns False where there is no browser, as `webbrowser.open` does."""


async def login(
    settings: Settings,
    name: str,
    *,
    scopes: Sequence[str] = (),
    port: int = 0,
    browser: bool = True,
    device: bool = False,
    open_url: Open = webbrowser.open,
    sleep: Sleep = anyio.sleep,
) -> ExitCode:
    """Logs the gateway in to an upstream with `oauth`; `scopes` are asked for beside those that it knows of.

    With `device`, by a code that a person enters on any device (RFC 8628).
    """
    spec = upstream_with_oauth(settings, name)
    if spec.oauth is not None and spec.oauth.per == "principal":
        print_err(f"{name}: {PER_PRINCIPAL}")
        return ExitCode.INPUT
    printed: set[str] = set()

    def print_deviation(kind: str, words: str) -> None:
        if kind not in printed:
            printed.add(kind)
            print_err(f"{name}: the server {words}")

    try:
        async with _store(settings) as store:
            flow = _flow(spec, store, print_deviation)
            held = await store.load(GrantKey(name))
            earlier = (*(() if held is None else held.scopes), *scopes)
            found = await flow.discover(await flow.challenge(), earlier)
            document_url = registration.document_url(settings.proxy.public_url)
            if flow.settings.grant != "authorization_code":
                grant = await flow.request_token(found)
            elif device:
                grant = await _log_in_by_code(flow, found, document_url, sleep)
            else:
                grant = await _log_in_by_redirect(flow, found, document_url, port, open_url if browser else None)
    except OAUTH_FAILURES as error:
        print_err(f"{name}: {error}")
        return ExitCode.FAILED
    except TimeoutError:
        print_err(f"{name}: nobody logged in within {LOGIN_TIMEOUT / 60:g} minutes")
        return ExitCode.FAILED
    print_out(f"logged in to {name} at {grant.issuer}")
    return ExitCode.OK


async def _log_in_by_redirect(
    flow: OAuthFlow, found: Discovered, document_url: str | None, port: int, open_url: Open | None
) -> Grant:
    """Raises TimeoutError, or one of OAUTH_FAILURES."""
    async with _redirects(port) as (uri, redirects):
        for _ in range(MAX_NARROWED):
            begun, url = await flow.begin_login(found, uri, document_url)
            _print_apart(f"Log in to {flow.upstream} here:", url)
            redirected = await _redirected(redirects, url, open_url)
            try:
                return await flow.finish_login(begun, found.server, redirected)
            except (LoginFailed, TokenRefused) as refusal:
                less = flow.narrower(found, refusal) if refusal.code == INVALID_SCOPE else None
                if less is None:
                    raise
                print_err(f"{flow.upstream}: {refusal}; once more, for fewer scopes")
                found = less
        raise LoginFailed(f"issuer {found.server.issuer} refuses whatever scopes it is asked for: see oauth.scopes")


async def _log_in_by_code(flow: OAuthFlow, found: Discovered, document_url: str | None, sleep: Sleep) -> Grant:
    """Raises one of OAUTH_FAILURES."""
    begun = await flow.begin_device_login(found, document_url)
    _print_apart(f"Log in to {flow.upstream}: open this on any device", begun.verification_uri)
    _print_apart(f"and enter the code {begun.user_code}")
    if begun.verification_uri_complete is not None:
        _print_apart("or open this, and compare the code:", begun.verification_uri_complete)
    return await flow.finish_device_login(begun, found.server, sleep)


async def logout(settings: Settings, name: str, principal: str = "") -> ExitCode:
    """Revokes a grant and forgets it: the gateway's own, or that of a principal. None is NOT_FOUND."""
    spec = upstream_with_oauth(settings, name)
    try:
        async with _store(settings) as store:
            grant = await store.load(GrantKey(name, principal))
            if grant is None:
                print_err(f"{name}: {_missing(name, principal, await store.all())}")
                return ExitCode.NOT_FOUND
            try:
                await _flow(spec, store).revoke(grant)
            except (EndpointFailed, InvalidMetadata) as error:
                print_err(f"{name}: forgotten here, but {grant.issuer} could not be told: {error}")
                return ExitCode.OK
    except StoreFailed as error:
        print_err(str(error))
        return ExitCode.FAILED
    print_out(f"logged out of {name}")
    return ExitCode.OK


def _missing(name: str, principal: str, grants: Sequence[Grant]) -> str:
    """Which login there is none of, and how to name one that there is."""
    missing = f"{principal!r} has no login" if principal else "the gateway has no login of its own"
    if any(grant.upstream == name and grant.principal for grant in grants):
        return f"{missing}; `mcproxy grants` shows those of callers, and --principal names one"
    return f"{missing} to take back"


async def list_grants(settings: Settings, *, as_json: bool) -> ExitCode:
    """Prints the stored grants; none are NOT_FOUND."""
    try:
        async with _store(settings) as store:
            grants = await store.all()
    except StoreFailed as error:
        print_err(str(error))
        return ExitCode.FAILED
    if as_json:
        print_json([_described(grant) for grant in grants])
    else:
        print_table(COLUMNS, [tuple(str(value) for value in _described(grant).values()) for grant in grants])
    if not grants:
        print_err("no logins: `mcproxy login NAME` makes one, at a server with `oauth`")
        return ExitCode.NOT_FOUND
    return ExitCode.OK


def _described(grant: Grant) -> dict[str, object]:
    expires = grant.token.expires_at
    return {
        "upstream": grant.upstream,
        "principal": grant.principal,
        "issuer": grant.issuer,
        "scopes": " ".join(grant.token.scopes or grant.scopes),
        "expires": "" if expires is None else datetime.fromtimestamp(expires, UTC).isoformat(timespec="seconds"),
        "renewed by itself": "yes" if grant.token.refresh else "no",
    }


def upstream_with_oauth(settings: Settings, name: str) -> UpstreamSettings:
    """The upstream of that name. Raises typer.BadParameter where there is none with `oauth`."""
    spec = next((spec for spec in settings.upstreams if spec.name == name), None)
    if spec is None:
        names = ", ".join(spec.name for spec in settings.upstreams if spec.oauth is not None) or "none"
        raise typer.BadParameter(f"no server is called {name!r}; those with oauth: {names}", param_hint="NAME")
    if spec.oauth is None:
        raise typer.BadParameter(f"server {name!r} has no `oauth`: add `oauth: {{}}` to it", param_hint="NAME")
    return spec


@asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[GrantStore]:
    """Where grants are kept: by this machine, or by the replicas. Raises StoreFailed."""
    sealer = Sealer(*secret_keys(settings))
    if settings.cluster.redis is None:
        yield grant_store(settings, sealer)
        return
    # The composition root alone knows replicas, and imports all that a gateway is made of.
    from mcproxy.app import shared_grants

    async with shared_grants(settings, sealer) as store:
        yield store


def _flow(spec: UpstreamSettings, store: GrantStore, note: Note = unnoted) -> OAuthFlow:
    assert spec.url is not None, "the configuration allows `oauth` with a url alone"
    assert spec.oauth is not None, "`upstream_with_oauth` saw to it"
    return OAuthFlow(spec.name, spec.url, spec.oauth, store, egress=spec.leaving, note=note)


@asynccontextmanager
async def _redirects(port: int) -> AsyncIterator[tuple[str, asyncio.Queue[Redirected]]]:
    """A redirect URI on loopback (RFC 8252, section 7.3), and what browsers bring there."""
    brought: asyncio.Queue[Redirected] = asyncio.Queue(8)

    async def take(request: web.Request) -> web.Response:
        query = dict(parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True))
        if not brought.full():
            brought.put_nowait(query)
        failed = "error" in query
        words = "That did not work: look at the terminal." if failed else "Done: you can close this page."
        return web.Response(text=_PAGE.format(html.escape(words)), content_type="text/html", headers=_PAGE_HEADERS)

    app = web.Application()
    app.router.add_get(CALLBACK, take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        taken = runner.addresses[0][1]
        yield f"http://127.0.0.1:{taken}{CALLBACK}", brought
    finally:
        await runner.cleanup()


async def _redirected(brought: asyncio.Queue[Redirected], url: str, open_url: Open | None) -> Redirected:
    """The code in the redirect: received here, or pasted by a person whose browser is elsewhere.

    Raises TimeoutError.
    """
    with anyio.fail_after(LOGIN_TIMEOUT):
        if open_url is not None and await anyio.to_thread.run_sync(open_url, url) is not False:
            return await brought.get()
        print_err("If the browser is on another machine, paste here the address that it ends at:")
        found: list[Redirected] = []
        async with anyio.create_task_group() as tasks:

            async def by_browser() -> None:
                found.append(await brought.get())
                tasks.cancel_scope.cancel()

            async def by_hand() -> None:
                line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
                query = dict(parse_qsl(urlsplit(line.strip()).query, keep_blank_values=True))
                if query:
                    found.append(query)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(by_browser)
            tasks.start_soon(by_hand)
        return found[0]


def _print_apart(*lines: str) -> None:
    """Prints lines to stderr with an empty one after each."""
    for line in lines:
        print_err(line)
        print_err("")
