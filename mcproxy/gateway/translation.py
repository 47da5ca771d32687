"""Translates what an upstream asks of a client into the names of the caller's endpoint.

The table of all differences between the eras, what becomes of each, and the module that does it:

| handshake (to 2025-11-25)          | stateless (2026-07-28)              | between the two                          |
|------------------------------------|-------------------------------------|------------------------------------------|
| `initialize`, session              | `server/discover`, `_meta`          | answered at the edge: `handshake`,       |
|                                    |                                     | `stateless`, `upstream.stateless.probe`  |
| `ping`                             | -                                   | answered at the edge                     |
| `*/list`                           | the same, with `ttlMs`, `cacheScope`| answered here: `listings`                |
| `tools/call`, `prompts/get`,       | the same, with `resultType`         | passed: `routing`; types and hints are   |
| `resources/read`,                  |                                     | put on and taken off at the edge:        |
| `completion/complete`              |                                     | `envelope.dressed`, `undressed`          |
| `resources/subscribe`              | `subscriptions/listen`              | translated: `subscriptions`              |
| `logging/setLevel`                 | `logLevel` of each request          | translated: `log_levels`, `envelope`     |
| server's requests for input        | `input_required` and a retry        | translated: `input.bridge`               |
| error -32042, URLs to visit        | `input_required`                    | `input.url_elicitation`, `input.rounds`  |
| `elicitation/complete`             | -                                   | impossible: a client retries unasked     |
| `notifications/roots/list_changed` | -                                   | impossible: roots are asked for anew     |
| `notifications/cancelled`          | the same on stdio; HTTP: hang up    | translated at the edges                  |
| progress, log messages             | the same, of a request alone        | passed, tokens of each hop:              |
|                                    |                                     | `pending_requests`                       |
| `list_changed`, `updated`          | the same, on `listen` streams       | translated: `listings.listeners`,        |
|                                    |                                     | `io.pending_changes`                     |
| batches (2025-03-26)               | -                                   | taken apart at the edge: `batches`       |
| tasks: `params.task`, `tasks/*`    | tasks: an extension                 | impossible, and not offered; a tool that |
|                                    |                                     | must be a task is waited for: `tasks`    |
| client capabilities, said once     | said with each request              | a shared link declares what can be       |
|                                    |                                     | bridged; `parked_call` refuses the rest  |
| extensions (capabilities)          | the same                            | shown where the upstream hears what the  |
|                                    |                                     | client declares: `merging.relayed`       |
| methods of extensions              | the same                            | impossible: -32601, but for tasks        |
| error -32002, no such resource     | -32602                              | translated at the edge of the client     |
| -                                  | errors -32020, -32022               | of one hop: stateless clients get -32603 |
| -                                  | error -32021, capability missing    | passed, and made where a client lacks it |

All other errors of an upstream are its own, and pass.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Call
from mcproxy.call.clients import Change, Client, InputRequest, Listener
from mcproxy.call.identity import Caller
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.protocol.jsonrpc import Params


def translated(call: Call, params: Params, rewriter: Rewriter, *, repeatable: bool) -> Call:
    """`call` with `params` in the upstream's names, and a way back that speaks the caller's."""
    listener = None if call.listener is None else TranslatedListener(call.listener, rewriter)
    client = TranslatedClient(call.client, rewriter)
    return replace(call, params=params, client=client, listener=listener, repeatable=repeatable)


class TranslatedClient(msgspec.Struct, frozen=True):
    """Progress and log messages hold no URI that the specification knows of, and pass."""

    client: Client
    rewriter: Rewriter

    def notify(self, method: str, params: Params) -> None:
        self.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        return await self.client.ask(self.rewriter.request(request))


class TranslatedListener(msgspec.Struct, frozen=True):
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
