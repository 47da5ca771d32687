"""The ways back to a client: `Client` while a call lasts, `Listener` and the changes it hears of between calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Raw

from mcproxy.call.identity import Caller
from mcproxy.protocol.jsonrpc import Notification, Params, encode, raw, size_of
from mcproxy.protocol.methods import RESOURCE_UPDATED, Kind


class InputRequest(msgspec.Struct, frozen=True):
    """A request of an upstream to a client: `sampling/createMessage`, `elicitation/create` or `roots/list`."""

    method: str
    params: Params


class Client(Protocol):
    """The way back to the client that made a call, for as long as the call lasts.

    Where it became a task (2025-11-25), `notify` goes on until that is over.
    """

    def notify(self, method: str, params: Params) -> None:
        """Sends a progress or log message ahead of the result. Never blocks.

        Progress comes without `progressToken`: the edge adds the client's own, or drops the message if it gave none.
        """

    async def ask(self, request: InputRequest) -> Raw:
        """Puts a request to the client and returns its result.

        Raises McpError with the client's own error, or with INVALID_REQUEST where the client did not declare
        the capability or is gone.
        """


@runtime_checkable
class ReferringClient(Client, Protocol):
    """A client that is told to retry while another person decides: its request may end before its call does."""

    def referred(self) -> AbstractContextManager[None]:
        """While entered, the call waits for another person; requests of the client wait a limited time for the call."""

    async def present(self) -> None:
        """Returns as soon as a request of the client waits for the call."""


class ListChanged(msgspec.Struct, frozen=True):
    """A list of that kind changed for some of its hearers, who are told to fetch it again."""

    kind: Kind


@dataclass(frozen=True)
class ResourceUpdated:
    """`uri` is in the hearer's own names. `params` are those of the latest notification, for what else they hold.

    One and the same is told to all who use a name, and what it takes to tell it is worked out once.
    """

    uri: str
    params: Params = field(default_factory=dict, compare=False)

    @cached_property
    def size(self) -> int:
        """Bytes of `params`."""
        return size_of(self.params)

    @property
    def told(self) -> Notification:
        """The notification for its hearers (`notifications/resources/updated`), with the URI in their own names."""
        return Notification(RESOURCE_UPDATED, {**self.params, "uri": raw(self.uri)})

    @cached_property
    def notification(self) -> bytes:
        """The encoded notification for its hearers."""
        return encode(self.told)


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification that is no change of state: passed on once, in order, to each client that may hear it.

    Log messages (`level` set), `elicitation/complete`, and progress of tasks.
    """

    method: str
    params: Params
    level: str | None = None
    principal: str | None = field(default=None, compare=False)
    """The name of the only principal that may be told; None if all that the link serves may be."""


@dataclass(frozen=True, slots=True)
class TaskChanged:
    """A task changed its state: `params` of the notification `method` hold it. `id` is in the hearer's own names."""

    id: str
    method: str = field(compare=False)
    params: Params = field(compare=False)


Change = ListChanged | ResourceUpdated | TaskChanged | Notice


class Listener(Protocol):
    """A client between its calls: a handshake session, or one `subscriptions/listen` stream.

    Compared and hashed by identity.
    """

    @property
    def caller(self) -> Caller:
        """The caller as of now: its `log_level` follows `logging/setLevel`."""

    def set_log_level(self, level: str) -> None:
        """Sets the level in `caller` from which it gets log messages; does nothing if levels belong to requests."""

    def signal(self, change: Change) -> None:
        """Notes a change that the client has yet to be told of. Never blocks; equal changes coalesce; bounded."""

    async def ask(self, request: InputRequest) -> Raw:
        """As `Client.ask`, outside any call. Raises McpError where the client has no stream for it."""


class Audience(Protocol):
    """The place where listeners join and leave."""

    def join(self, listener: Listener) -> None:
        """Adds a listener; also to be called again when other links serve its caller."""

    def leave(self, listener: Listener) -> None:
        """Ends all that `listener` holds: subscriptions, and links of its own. Idempotent."""
