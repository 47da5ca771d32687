"""The `requestState` that a stateless client carries between its requests: sealed, expiring, bound to one request.

It is good for the same principal, endpoint, method and params until it expires (2026-07-28, mrtr, "Server
Requirements"). Nothing is stored here: that a state of a parked call is used once is up to `parking`.
"""

from __future__ import annotations

import hashlib
from typing import Final, assert_never

import msgspec
from msgspec import Raw

from mcproxy.call.calls import Call
from mcproxy.call.errors import McpError
from mcproxy.protocol.envelope import META
from mcproxy.protocol.inputs import INPUT_RESPONSES, REQUEST_STATE
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, parse_text
from mcproxy.sealing import Sealer, Unsealable

_PURPOSE: Final = "requestState"
MAX_CANONICAL: Final = 1024 * 1024
"""Bytes of a param that is compared by value; parsing a longer one would hold up other calls."""
_ATTEMPT_MEMBERS: Final = frozenset({META, INPUT_RESPONSES, REQUEST_STATE})


class Relayed(msgspec.Struct, frozen=True, tag=True):
    """The retry goes to `upstream`, with the state that this upstream gave."""

    upstream: str
    state: str | None
    """The upstream's own state; None where it gave none."""
    approval: str | None = None
    """As in `InputRequired`."""


class Parked(msgspec.Struct, frozen=True, tag=True):
    """The retry resumes the parked call with this id, if it is still in this round."""

    id: str
    round: int


class AfterLogin(msgspec.Struct, frozen=True, tag=True):
    """The retry sends the original call, once its caller has logged in at the upstream."""

    relayed: Relayed | None
    """The upstream's own state that the call carried, if any."""
    answers: str
    """The answers, as JSON, that the call carried."""
    asked_at: float
    """The Unix time in seconds at which the login was asked for."""


Continuation = Relayed | Parked | AfterLogin


class _SealedState(msgspec.Struct, frozen=True, array_like=True):
    binding: str
    expires: float
    continuation: Continuation


_states = msgspec.json.Decoder(_SealedState)
_encoder = msgspec.json.Encoder(order="sorted")


class RequestStates:
    """Seals and opens `requestState`, which a client sends back with its retry (multi round-trip requests)."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def issue(self, call: Call, continuation: Continuation, expires: float) -> str:
        """`expires` is a Unix time in seconds."""
        sealed = _SealedState(_binding(call), expires, continuation)
        seal = self._sealer.seal_here if _lives_here(continuation) else self._sealer.seal
        return seal(_PURPOSE, _encoder.encode(sealed))

    def open(self, call: Call, now: float) -> Continuation:
        """What `call`, which carries a `requestState`, continues. Raises McpError for a state that is not valid."""
        try:
            sealed = _states.decode(self._sealer.open(_PURPOSE, parse_text(call.params[REQUEST_STATE]) or ""))
        except (Unsealable, msgspec.MsgspecError) as error:
            raise state_refusal("is not one that this gateway gave: return it exactly as it came") from error
        if sealed.expires <= now:
            raise state_refusal("has expired: make the call again, without it")
        if sealed.binding != _binding(call):
            raise state_refusal("was given for another request: retry with the same caller, method and params")
        return sealed.continuation


def state_refusal(why: str) -> McpError:
    """The refusal of a `requestState`; `why` completes the sentence that begins with that name."""
    return McpError(INVALID_PARAMS, f'"{REQUEST_STATE}" {why}')


def _lives_here(continuation: Continuation) -> bool:
    """Whether only this process can continue it.

    A parked call and an approval live in this process; a relayed state lives upstream.
    """
    match continuation:
        case Parked():
            return True
        case Relayed(approval=approval):
            return approval is not None
        case AfterLogin(relayed=relayed):
            return relayed is not None and _lives_here(relayed)
        case _:
            assert_never(continuation)


def _binding(call: Call) -> str:
    """A digest of principal, method and params. Params count by value: a retry may spell its JSON otherwise.

    A param that is very long or nested too deep counts by its bytes.
    """
    params = {key: _canonical(value) for key, value in call.params.items() if key not in _ATTEMPT_MEMBERS}
    identity = (call.caller.principal.name, call.caller.endpoint, call.method, params)
    return hashlib.sha256(_encoder.encode(identity)).hexdigest()


def _canonical(value: Raw) -> object:
    if len(value) > MAX_CANONICAL:
        return value
    try:
        decoded = msgspec.json.decode(value)
        _encoder.encode(decoded)
    except (msgspec.MsgspecError, OverflowError, RecursionError):
        return value  # nested too deep, or a number too large, to parse
    return decoded
