"""The routes of the status page: pages, the live feed, and forms that act or try an entry out.

Each page works without scripts; scripts refresh it and show the feed. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Final
from urllib.parse import quote

import anyio
from aiohttp import web
from msgspec.structs import asdict

from mcproxy.access.audit.usage import COLUMNS
from mcproxy.admin.actions import Actions, NoSuchUpstream
from mcproxy.admin.live_feed import Feed
from mcproxy.admin.measures.audit_usage import WINDOWS, UsageReader
from mcproxy.admin.pages import Pages, decided
from mcproxy.admin.trying import attempt, can_be_tried, filled
from mcproxy.call.identity import Principal

Admit = Callable[[web.Request], Awaitable[Principal]]
"""Authenticates an operator. Raises web.HTTPException for anyone else."""

STATIC: Final = {
    "icon.svg": "image/svg+xml",
    "live.js": "text/javascript",
    "renew.js": "text/javascript",
    "style.css": "text/css",
}

KEEP_ALIVE: Final = 15.0
"""Seconds between comments on an idle feed."""

DEFAULT_WINDOW: Final = "7d"
"""The time that usage is shown for unless an operator chooses another."""

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class StatusPage:
    """Handlers of the status page. `admit` authenticates the operator of each request."""

    pages: Pages
    feed: Feed
    admit: Admit
    actions: Actions
    usage: UsageReader
    login_url: Callable[[str], str | None] = lambda _name: None
    """The link by which an operator logs in to an upstream for all callers; None where there is none."""
    admitted_for: float = 1.0
    """Seconds after which the live feed asks again whether its reader may still watch."""

    def routes(self) -> list[web.RouteDef]:
        """All paths below `/ui`, and `/`, which leads there. Each but the static files asks for an operator first."""
        return [
            web.get("/", self._home),
            web.get("/ui", self._fleet),
            web.get("/ui/", self._home),
            web.get("/ui/servers/{name}", self._upstream),
            web.post("/ui/servers/{name}/restart", self._restart),
            web.post("/ui/servers/{name}/retry", self._retry),
            web.get("/ui/servers/{name}/login", self._login),
            web.post("/ui/servers/{name}/forget-login", self._forget_login),
            web.get("/ui/catalogue", self._catalogue),
            web.get("/ui/catalogue/{noun}", self._entry),
            web.post("/ui/catalogue/{noun}", self._try),
            web.get("/ui/live", self._live),
            web.get("/ui/live/events", self._events),
            web.get("/ui/approvals", self._approvals),
            web.post("/ui/approvals", self._decide),
            web.get("/ui/usage", self._usage),
            web.get("/ui/sessions", self._sessions),
            web.get("/ui/configuration", self._configuration),
            web.get("/ui/static/{file}", self._static),
        ]

    async def _home(self, request: web.Request) -> web.Response:
        raise web.HTTPSeeOther("/ui")

    async def _fleet(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return html_response(self.pages.fleet())

    async def _upstream(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return self._found(self.pages.upstream(request.match_info["name"]))

    async def _restart(self, request: web.Request) -> web.Response:
        return await self._act(request, self.actions.restart)

    async def _retry(self, request: web.Request) -> web.Response:
        return await self._act(request, self.actions.retry)

    async def _login(self, request: web.Request) -> web.Response:
        """Leads to the page where an operator logs in for all callers; it asks for proof and consent itself."""
        await self.admit(request)
        url = self.login_url(request.match_info["name"])
        if url is None:
            return self._found(None)
        raise web.HTTPSeeOther(url)

    async def _forget_login(self, request: web.Request) -> web.Response:
        principal = await self.admit(request)
        await self._form(request)
        name = request.match_info["name"]
        try:
            await self.actions.forget_login(name, principal.name)
        except NoSuchUpstream:
            return self._found(None)
        raise web.HTTPSeeOther(f"/ui/servers/{quote(name, safe='')}")

    async def _act(self, request: web.Request, act: Callable[[str, str], None]) -> web.Response:
        principal = await self.admit(request)
        await self._form(request)
        name = request.match_info["name"]
        try:
            act(name, principal.name)
        except NoSuchUpstream:
            return self._found(None)
        raise web.HTTPSeeOther(f"/ui/servers/{quote(name, safe='')}")

    async def _form(self, request: web.Request) -> dict[str, str]:
        """The fields of a form of ours. Raises web.HTTPForbidden: a page of another origin cannot read the token."""
        form = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        if form.get("token") != self.pages.token:
            raise web.HTTPForbidden(text="the form is from another site, or from before a restart: reload the page\n")
        return form

    async def _catalogue(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return html_response(self.pages.catalogue(request.query.get("q", "")[:200], request.query.get("kind", "")))

    async def _entry(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return self._found(self.pages.entry(request.match_info["noun"], request.query.get("key", "")))

    async def _try(self, request: web.Request) -> web.Response:
        principal = await self.admit(request)
        form = await self._form(request)
        noun, key = request.match_info["noun"], request.query.get("key", "")
        item = self.pages.find(noun, key)
        if item is None or not can_be_tried(item.kind):
            return self._found(None)
        answer = await attempt(self.pages.gateway.handler, item, principal, form)
        return self._found(self.pages.entry(noun, key, filled=filled(form), answer=answer))

    async def _approvals(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return html_response(self.pages.approvals())

    async def _decide(self, request: web.Request) -> web.Response:
        principal = await self.admit(request)
        form = await self._form(request)
        decision = form.get("decision")
        if decision not in {"allow", "deny"}:
            raise web.HTTPBadRequest(text="decision must be allow or deny\n")
        failed = self.pages.gateway.decide(form.get("id", ""), principal, approve=decision == "allow")
        return html_response(self.pages.approvals(decided(failed)))

    async def _live(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return html_response(self.pages.live())

    async def _events(self, request: web.Request) -> web.StreamResponse:
        await self.admit(request)
        if self.feed.is_full:
            raise web.HTTPServiceUnavailable(
                text="too many pages watch already: close one, or raise admin.max_watchers\n"
            )
        headers = {**HEADERS, "Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        admitted_at = anyio.current_time()
        with self.feed.watched() as entries:
            while True:
                line: str | None = ":\n\n"
                with anyio.move_on_after(KEEP_ALIVE):
                    entry = await anext(entries, None)
                    line = None if entry is None else f"data: {json.dumps(asdict(entry))}\n\n"
                if line is None:
                    break
                if anyio.current_time() - admitted_at > self.admitted_for:
                    # The key may have been revoked, or have expired, since the stream began.
                    try:
                        await self.admit(request)
                    except web.HTTPException:
                        break
                    admitted_at = anyio.current_time()
                await response.write(line.encode())
        return response

    async def _usage(self, request: web.Request) -> web.Response:
        await self.admit(request)
        query = request.query
        asked = [query.get("by", "principal"), query.get("and", "tool" if "by" not in query else "")]
        by = tuple(dict.fromkeys(column for column in asked if column in COLUMNS)) or ("principal",)
        window = query.get("since", DEFAULT_WINDOW)
        if window not in WINDOWS:
            window = DEFAULT_WINDOW
        return html_response(self.pages.usage(await self.usage.read(by, window), by, window))

    async def _sessions(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return html_response(self.pages.sessions())

    async def _configuration(self, request: web.Request) -> web.Response:
        await self.admit(request)
        return html_response(self.pages.configuration())

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["file"]
        if name not in STATIC:
            raise web.HTTPNotFound
        body = resources.files("mcproxy.admin").joinpath("static", name).read_bytes()
        return web.Response(body=body, content_type=STATIC[name], charset="utf-8", headers=HEADERS)

    def _found(self, page: str | None) -> web.Response:
        return html_response(self.pages.missing(), status=404) if page is None else html_response(page)


def html_response(page: str, status: int = 200) -> web.Response:
    """A page, with the headers that all have."""
    return web.Response(text=page, status=status, content_type="text/html", headers=HEADERS)
