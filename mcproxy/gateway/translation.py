"""The way back from an upstream, in the names of the caller's endpoint: what it asks while a call lasts, or after."""

from __future__ import annotations

from dataclasses import dataclass, replace

from msgspec import Raw

from mcproxy.call import Call, Caller, Change, Client, InputRequest, Listener
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.protocol.jsonrpc import Params


def translated(call: Call, params: Params, rewriter: Rewriter) -> Call:
    """`call` with `params` in the upstream's names, and a way back that speaks the caller's."""
    listener = None if call.listener is None else TranslatedListener(call.listener, rewriter)
    return replace(call, params=params, client=TranslatedClient(call.client, rewriter), listener=listener)


@dataclass(frozen=True, slots=True)
class TranslatedClient:
    """Progress and log messages hold no URI that the specification knows of, and pass."""

    client: Client
    rewriter: Rewriter

    def notify(self, method: str, params: Params) -> None:
        self.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        return await self.client.ask(self.rewriter.request(request))


@dataclass(frozen=True, slots=True)
class TranslatedListener:
    """Changes reach a listener through the gateway, translated there."""

    listener: Listener
    rewriter: Rewriter

    @property
    def caller(self) -> Caller:
        return self.listener.caller

    def set_log_level(self, level: str) -> None:
        self.listener.set_log_level(level)

    def signal(self, change: Change) -> None:
        self.listener.signal(change)

    async def ask(self, request: InputRequest) -> Raw:
        return await self.listener.ask(self.rewriter.request(request))
