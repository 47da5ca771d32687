"""`Component`: a part of the gateway that lives between calls, and what it is told: settings, events, listeners.

`gateway.gateway` has the one list of them, in the order in which they are told. A component overrides the methods that
concern it, and declares the sections of the settings and the types of events that it is told of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, get_args

import msgspec

from mcproxy.call.clients import Listener
from mcproxy.call.upstreams import Upstream, UpstreamChanged, UpstreamEvent
from mcproxy.settings import Settings


class Reconfiguration(msgspec.Struct, frozen=True):
    """The settings to go by from now on, and the upstreams that they enable, by name."""

    settings: Settings
    upstreams: Mapping[str, Upstream]
    kept: frozenset[str] = frozenset()
    """Names of the upstreams that are the same objects as before the reload: their links go on."""


LINK_EVENTS: Final[frozenset[type]] = frozenset(get_args(UpstreamEvent)) - {UpstreamChanged}
"""The types of events that are about a link itself."""


class Component:
    """A part of the gateway; each method does nothing unless overridden.

    A base class and not a protocol, so that a component states only what concerns it.
    """

    goes_by: ClassVar[frozenset[str]] = frozenset()
    """The sections of the settings that the component uses: it is reconfigured when one of them differs."""
    heeds: ClassVar[frozenset[type]] = frozenset()
    """The types of upstream events, and of the changes that upstreams announce, that `on_event` is called with."""

    def reconfigure(self, change: Reconfiguration) -> None:
        """Puts other settings and upstreams in force. Never blocks."""

    def on_event(self, event: UpstreamEvent) -> None:
        """Reacts to an upstream event. Never blocks."""

    def join(self, listener: Listener) -> None:
        """As `Audience.join`."""

    def leave(self, listener: Listener) -> None:
        """As `Audience.leave`."""

    async def run(self) -> None:
        """The component's long-running work, until cancelled; returns at once where there is none."""
