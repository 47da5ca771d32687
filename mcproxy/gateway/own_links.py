"""Links that one caller has to itself: ends those that are over, and says which calls concern them alone (R14, R39).

A session's links end with the session. Links of a principal, or made with credentials that callers brought, end after
an idle time. Connects nothing: a call, or the fetcher of its lists, makes a link.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import anyio

from mcproxy.call.calls import Call, Complete, Outcome
from mcproxy.call.clients import Listener
from mcproxy.call.upstreams import Connected, Disconnected, Retired, Upstream, UpstreamEvent
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.gateway.component import LINK_EVENTS, Component, Reconfiguration
from mcproxy.gateway.credential_leases import CredentialLeases
from mcproxy.gateway.listings.fetcher import ListFetcher
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.gateway.listings.listeners import Listeners
from mcproxy.gateway.listings.state import Catalogue
from mcproxy.settings import Settings

SWEEPS: Final = 4
"""Sweeps for idle leases within the idle time (`limits.session_idle`)."""


class OwnLinks(Component):
    """Ends the links of sessions, principals and credentials when these are over."""

    goes_by = frozenset({"access", "endpoints", "proxy", "upstreams"})
    heeds = LINK_EVENTS

    def __init__(
        self,
        catalogue: Catalogue,
        upstreams: Mapping[str, Upstream],
        listeners: Listeners,
        fetcher: ListFetcher,
        settings: Settings,
        sleep: Sleep,
        now: Clock,
    ) -> None:
        self._catalogue = catalogue
        self._upstreams = upstreams
        self._listeners = listeners
        self._fetcher = fetcher
        self._sleep = sleep
        self._now = now
        limits = settings.proxy.limits
        self._leases = CredentialLeases(limits.session_idle, limits.max_credentials_per_principal)
        self._principals = CredentialLeases(limits.session_idle, 1)
        self._authorities = CredentialLeases(limits.session_idle, limits.max_credentials_per_principal)
        """Leases on links made with tokens that callers' own were exchanged for."""
        self.has_principals = _has_principals(settings)
        """Whether any upstream has a link for each principal."""

    def reconfigure(self, change: Reconfiguration) -> None:
        limits = change.settings.proxy.limits
        self._leases.reconfigure(limits.session_idle, limits.max_credentials_per_principal)
        self._principals.reconfigure(limits.session_idle, 1)
        self._authorities.reconfigure(limits.session_idle, limits.max_credentials_per_principal)
        self.has_principals = _has_principals(change.settings)

    def join(self, listener: Listener) -> None:
        brought = listener.caller.credentials
        if brought is not None:
            self._leases.keep(brought.key, listener.caller.principal.account, self._now())
            if brought.inbound_token is not None:
                self._authorities.keep(brought.inbound_token.authority, listener.caller.principal.account, self._now())

    def on_event(self, event: UpstreamEvent) -> None:
        """Ends a link of a session that is over: what was under way when it ended may have made one since (R14)."""
        match event:
            case Connected(owner=str(owner)) | Disconnected(owner=str(owner)):
                of_session = LinkKey(event.upstream, owner) in self._catalogue.own_links(owner)
                if of_session and self._listeners.of(owner) is None:
                    self._upstreams[event.upstream].release(owner)
            case Retired(owner=str(owner)):
                self._authorities.end(owner)
            case _:
                pass

    def leave(self, listener: Listener) -> None:
        """Ends the links of a session when its last listener leaves."""
        session = listener.caller.session
        if session is not None and self._listeners.of(session) is None:
            for link in self._catalogue.own_links(session):
                self._upstreams[link.upstream].release(session)

    @asynccontextmanager
    async def used(self, call: Call) -> AsyncIterator[None]:
        """Holds the caller's leases while a call lasts.

        If the call brought credentials for the first time, their links are made, and their lists known, before it
        begins. Raises McpError where the principal has too many sets of credentials in use.
        """
        principal, brought = call.caller.principal, call.caller.credentials
        with ExitStack() as stack:
            leases, now = self._principals, self._now()
            if self.has_principals and stack.enter_context(leases.used(principal.key, principal.name, now)):
                self._fetcher.connect_for_principal(call.caller)
            token = None if brought is None else brought.inbound_token
            if token is not None and stack.enter_context(
                self._authorities.used(token.authority, principal.account, now)
            ):
                self._fetcher.connect_for_principal(call.caller)
            if brought is not None and stack.enter_context(self._leases.used(brought.key, principal.account, now)):
                await self._fetcher.connect_with_credentials(call.caller)
            yield

    async def roots_changed(self, call: Call) -> Outcome:
        """Passes `notifications/roots/list_changed` to the session's own links (R60).

        Links that several sessions share, those of a principal too, declare no session's roots.
        """

        async def tell(link: LinkKey) -> None:
            await self._upstreams[link.upstream](call)

        async with anyio.create_task_group() as tasks:
            for link in self._catalogue.links(call.caller):
                if link.owner is not None and link.owner == call.caller.session and self._catalogue.known.is_up(link):
                    tasks.start_soon(tell, link)
        return Complete({})

    async def run(self) -> None:
        """Ends links that were idle for too long, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._sweep, self._leases, self._catalogue.credential_links)
            tasks.start_soon(self._sweep, self._principals, self._catalogue.principal_links)
            tasks.start_soon(self._sweep, self._authorities, self._catalogue.principal_links)

    async def _sweep(self, leases: CredentialLeases, links: Callable[[str], list[LinkKey]]) -> None:
        while True:
            await leases.begun()
            await self._sleep(leases.idle / SWEEPS)
            in_use = [key for listener in self._listeners for key in listener.caller.owners]
            for key in leases.lapsed(in_use, self._now()):
                for link in links(key):
                    self._upstreams[link.upstream].release(key)


def _has_principals(settings: Settings) -> bool:
    return any(spec.connection == "principal" for spec in settings.upstreams)
