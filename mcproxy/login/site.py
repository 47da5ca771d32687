"""The address of the login pages, and the links to them for callers (implements `gateway.input.logins.LoginPages`).

The pages are below `proxy.public_url`, if that is https or on loopback; without one, at the gateway's own address, if
that is on loopback. Over stdio they have a listener of their own there, and a browser is opened if the machine has one.
"""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from mcproxy.call.calls import LoginNeed
from mcproxy.call.identity import Caller, principal_of
from mcproxy.downstream.front.operators import missing_role
from mcproxy.downstream.front.origin import admits_host, admits_origin
from mcproxy.http import server as http
from mcproxy.login.links import ConnectLinks
from mcproxy.settings import Settings
from mcproxy.settings.loopback import is_loopback
from mcproxy.upstream.oauth.login import may_be_opened
from mcproxy.upstream.oauth.logins import FindLogins

REOPEN_AFTER: Final = 120.0
"""Seconds in which no second browser window is opened for the same login."""
MAX_OPENED: Final = 100
"""Logins whose windows are remembered for that."""
LOOPBACK: Final = "127.0.0.1"
FINAL_FLUSH: Final = 0.5
"""Seconds for browsers to read the last page."""
_BOUNDS: Final = http.Bounds(max_body=64 * 1024, idle=60, write_timeout=30, connections=100, head_timeout=30)


class GatewaySite:
    """Implements `routes.LoginSite` too. `settings` are those in force; `open_url` opens a browser."""

    def __init__(
        self,
        settings: Settings,
        logins: FindLogins,
        links: ConnectLinks,
        open_url: Callable[[str], bool] = webbrowser.open,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._links = links
        self._open_url = open_url
        self._clock = clock
        self._opened: dict[tuple[str, str], float] = {}
        """When a browser was opened for an upstream and principal."""
        self.logins = logins
        self.listening_url: str | None = None
        """The URL at which this process serves the pages; None before it does."""
        self.is_personal = False

    @property
    def base_url(self) -> str | None:
        """The URL of the pages for visitors; None if no address is known, or none may be told."""
        if self.is_personal:
            return self.listening_url
        public = self.settings.proxy.public_url
        if public is not None:
            # authorization, Communication Security: redirect URIs "MUST be either `localhost` or use HTTPS".
            return public if may_be_opened(public) else None
        own = self.listening_url
        return own if own is not None and is_loopback(urlsplit(own).hostname or "") else None

    def url(self, need: LoginNeed, caller: Caller) -> str | None:
        """The link for `caller` to log in for itself; for all callers, if it is an operator."""
        base, logins = self.base_url, self.logins(need.upstream)
        if base is None or logins is None or not logins.is_for_people:
            return None
        if need.owner is None and not self.is_personal and missing_role(self.settings, caller.principal) is not None:
            return None
        principal = "" if need.owner is None else principal_of(need.owner)
        if principal is None:
            return None
        return base + self._links.path(need.upstream, principal, logins.issuer(principal))

    def operators_url(self, upstream: str) -> str | None:
        """The link for an operator to log in for all callers, if one login serves them."""
        base, logins = self.base_url, self.logins(upstream)
        if base is None or logins is None or logins.is_per_principal or not logins.is_for_people:
            return None
        return base + self._links.path(upstream, "", logins.issuer(""))

    async def opened(self, need: LoginNeed, url: str) -> bool:
        """Opens a browser at such a link on this machine, unless one was opened a short while ago.

        Returns whether one is open.
        """
        if not self.is_personal or not has_display():
            return False
        key, now = (need.upstream, need.owner or ""), self._clock()
        if now - self._opened.get(key, -REOPEN_AFTER) < REOPEN_AFTER:
            return True
        if len(self._opened) >= MAX_OPENED:
            self._opened.clear()
        self._opened[key] = now
        try:
            return await anyio.to_thread.run_sync(self._open_url, url)
        except OSError:
            return False


def has_display(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> bool:
    """Whether a browser window can be opened: elsewhere, a browser for terminals would take the terminal."""
    return platform in {"darwin", "win32"} or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


@asynccontextmanager
async def serving_alone(routes: list[http.Route]) -> AsyncIterator[str]:
    """Serves only the pages, on a free port of loopback, while entered; yields the URL. Raises OSError."""
    router = http.PathRouter(routes)

    async def handle(request: http.Request) -> http.Answered:
        host, origin = request.fields.get("host", ""), request.fields.get("origin")
        if not admits_host(host, ()) or (origin is not None and not admits_origin(origin, host, ())):
            return http.Response(403)
        try:
            handler, path = router.find(request)
        except (http.NotFound, http.MethodNotAllowed):
            return http.Response(404)
        return await handler(request, path)

    server = http.Server(handle, lambda status, _sentence: http.Response(status), lambda: _BOUNDS)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        port = await server.listen(LOOPBACK, 0, None)
        try:
            yield f"http://{LOOPBACK}:{port}"
        finally:
            with anyio.CancelScope(shield=True):
                await server.close(FINAL_FLUSH)
            tasks.cancel_scope.cancel()
