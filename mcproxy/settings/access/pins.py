"""Settings of pins (`access.pins`): which upstream definitions are approved, and what happens to others (R45)."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import msgspec
from msgspec import Raw
from pydantic import BeforeValidator, PrivateAttr

from mcproxy.protocol.eras import Era
from mcproxy.protocol.jsonrpc import Params
from mcproxy.protocol.methods import Kind
from mcproxy.settings.section import Section


class Pin(msgspec.Struct, frozen=True):
    """One approved definition."""

    sha256: str
    """Digest of the whole definition."""
    description: str | None = None
    """The description, for people who read the lock file."""
    members: Mapping[str, str] = msgspec.field(default_factory=dict)
    """A digest of each other member, to tell which of them changed."""


class Manifest(msgspec.Struct, frozen=True):
    """An upstream's identity and its lists in full: shown while it is not running (`start: on_demand`)."""

    era: Era
    version: str
    capabilities: Params = msgspec.field(default_factory=dict)
    info: Raw | None = None
    instructions: str | None = None
    lists: Mapping[Kind, tuple[Raw, ...]] = msgspec.field(default_factory=dict)


class Approved(msgspec.Struct, frozen=True):
    """The approved definitions of one upstream, by the upstream's own names."""

    instructions: str | None = None
    definitions: Mapping[Kind, Mapping[str, Pin]] = msgspec.field(default_factory=dict)
    manifest: Manifest | None = None
    """The manifest of an upstream that is started on demand."""


Lock = Mapping[str, Approved]
"""The approved definitions, by the names of upstreams."""


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class PinSettings(Section):
    """Approved definitions (`access.pins`)."""

    mode: Annotated[Literal["off", "warn", "enforce"], BeforeValidator(_off)] = "off"
    """What happens to a new or changed definition. `warn`: logged and counted; `enforce`: also hidden and not callable.
    """
    file: str | None = None
    """The lock file, relative to the configuration. Default: `mcproxy.lock` beside it. If missing, nothing is approved.
    """

    _lock: Lock = PrivateAttr(default_factory=dict)

    @property
    def lock(self) -> Lock:
        """The content of the lock file; empty before `holding`."""
        return self._lock

    def holding(self, lock: Lock) -> Self:
        """These settings with the content of the lock file."""
        held = self.model_copy()
        held._lock = lock
        return held
