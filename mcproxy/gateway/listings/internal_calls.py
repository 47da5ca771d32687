"""Calls that the gateway makes by itself, for no client: fetching lists, subscribing, setting log levels."""

from __future__ import annotations

from typing import Final, NoReturn

from mcproxy.call.calls import Call
from mcproxy.call.clients import Client, InputRequest, Listener
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params
from mcproxy.protocol.methods import METHODS

LONGEST_RETRY: Final = 60.0
"""Seconds between attempts at what an upstream fails to do."""


def retry_delay(failures: int) -> float:
    """Seconds to wait after `failures` failures in a row; at least one second."""
    return min(2.0 ** min(failures - 1, 10), LONGEST_RETRY)


class _GatewayItself:
    """The `Client` of an internal call: nobody is there to notify or ask."""

    def notify(self, method: str, params: Params) -> None:
        return

    async def ask(self, request: InputRequest) -> NoReturn:
        raise McpError(INVALID_REQUEST, "the gateway itself made this call: there is no client to ask")


GATEWAY_ITSELF: Final[Client] = _GatewayItself()


def internal_call(
    link: LinkKey,
    method: str,
    params: Params,
    listener: Listener | None = None,
    owner: Caller | None = None,
    *,
    hurries: bool = True,
) -> Call:
    """A call over `link`, on behalf of its owner's listener or caller, if any: they make the link if there is none."""
    caller = owner or (listener.caller if listener is not None else Caller(ANONYMOUS, LATEST, session=link.owner))
    return Call(METHODS[method], params, caller, GATEWAY_ITSELF, listener, over=link.owner, hurries=hurries)
