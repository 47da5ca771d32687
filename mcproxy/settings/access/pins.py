"""What can be said of pins: which definitions of upstreams are approved, and what becomes of others (R45)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BeforeValidator, PrivateAttr

from mcproxy.protocol.methods import Kind
from mcproxy.settings.section import Section


@dataclass(frozen=True, slots=True)
class Pin:
    """One definition as it was approved."""

    sha256: str
    """Of all of it."""
    description: str | None = None
    """For people who read the lock file."""
    members: Mapping[str, str] = field(default_factory=dict)
    """A digest of each other member, to say which of them changed."""


@dataclass(frozen=True, slots=True)
class Approved:
    """What of one upstream was approved, in its own names."""

    instructions: str | None = None
    definitions: Mapping[Kind, Mapping[str, Pin]] = field(default_factory=dict)


Lock = Mapping[str, Approved]
"""By the names of upstreams."""


def _off(value: object) -> object:
    """What YAML makes of a bare `off`."""
    return "off" if value is False else value


class PinSettings(Section):
    """Tools, prompts, resource templates and instructions as they were approved: by `mcproxy lock`, into a file."""

    mode: Annotated[Literal["off", "warn", "enforce"], BeforeValidator(_off)] = "off"
    """What is new or changed since is, with `warn`, logged and counted; with `enforce`, neither shown nor callable."""
    file: str | None = None
    """The lock file, relative to the configuration; `mcproxy.lock` beside it where it is not given.

    Where there is none, nothing is approved.
    """

    _lock: Lock = PrivateAttr(default_factory=dict)

    @property
    def lock(self) -> Lock:
        return self._lock

    def holding(self, lock: Lock) -> PinSettings:
        """The same pins, with what the file says."""
        held = self.model_copy()
        held._lock = lock
        return held
