"""The interface of the gateway's long-lived parts: settings, upstream events, listeners, and a task of their own.

`gateway.gateway` has the one list of them, in the order in which they are told. A part overrides what concerns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcproxy.call.clients import Listener
from mcproxy.call.upstreams import Upstream, UpstreamEvent
from mcproxy.settings import Settings


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The settings to go by from now on, and the upstreams that they enable, by name."""

    settings: Settings
    upstreams: Mapping[str, Upstream]
    kept: frozenset[str] = frozenset()
    """Those that are the same objects as before a reload: their links go on."""


class Component:
    """A part of the gateway that does nothing in each of these cases."""

    def reconfigure(self, change: Reconfiguration) -> None:
        """Puts other settings and upstreams in force. Never blocks."""

    def on_event(self, event: UpstreamEvent) -> None:
        """Takes note of what happened upstream. Never blocks."""

    def join(self, listener: Listener) -> None:
        """As `Audience.join`."""

    def leave(self, listener: Listener) -> None:
        """As `Audience.leave`."""

    async def run(self) -> None:
        """Does what takes time, until cancelled; returns at once where nothing does."""
