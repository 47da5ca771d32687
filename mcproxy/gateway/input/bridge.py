"""The bridge between the eras: how an upstream's requests for input reach clients of either kind, and come back.

| client    | upstream  | what happens                                                                             |
|-----------|-----------|------------------------------------------------------------------------------------------|
| stateless | stateless | the upstream's `requestState` travels sealed in ours; nothing is stored                  |
| stateless | handshake | the call is parked, alive, while the client fetches the answers (`parking`); an error    |
|           |           | with URLs to visit first (-32042) becomes elicitations by URL (`url_elicitation`)        |
| handshake | stateless | the client is asked while its call lasts, which is made again each round (`rounds`)      |
| handshake | handshake | `Client.ask`, and nothing to do here                                                     |

A login that the upstream wants of a person first is asked for in the same ways (`logins`).

The upstream's era shows in what it does: it returns `InputRequired`, or it asks. Where its link is known to be
stateless, the call needs no task that outlives its request.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, assert_never

import anyio
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from mcproxy import settings
from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, LoginNeed, LoginRequired, Outcome
from mcproxy.call.clients import InputRequest, Listener
from mcproxy.call.errors import McpError
from mcproxy.call.upstreams import UpstreamEvent
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.gateway.component import Component, Reconfiguration
from mcproxy.gateway.input.logins import QUESTION, LoginPages, LoginRequests, NoPages
from mcproxy.gateway.input.parked_call import DeclaredCapabilities, undeclared
from mcproxy.gateway.input.parking import Parking, Pause
from mcproxy.gateway.input.request_state import AfterLogin, Parked, Relayed, RequestStates, state_refusal
from mcproxy.gateway.input.rounds import with_input
from mcproxy.gateway.input.url_elicitation import is_unwilling, url_elicitations
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.protocol.eras import STATELESS_VERSIONS
from mcproxy.protocol.inputs import (
    INPUT_REQUESTS,
    INPUT_RESPONSES,
    REQUEST_STATE,
    Capabilities,
    merged,
    missing_capabilities,
)
from mcproxy.protocol.jsonrpc import EMPTY_OBJECT, Params, first_level, object_or_empty, raw
from mcproxy.protocol.methods import INPUT_CAPABILITIES
from mcproxy.sealing import Sealer
from mcproxy.telemetry.metrics import Metrics

ASKABLE: Final = frozenset(INPUT_CAPABILITIES.values())
"""Client capabilities that allow an upstream to ask a client for input."""


class CallResolver(Protocol):
    """What the bridge asks about a call (`resolving.targets`)."""

    def asks_by_results(self, call: Call) -> bool:
        """Whether the call's upstream is known to ask for input in results alone, and never while a call runs.

        False where the gateway itself may ask for its caller's approval.
        """

    def may_be_referred(self, call: Call) -> bool:
        """Whether a person other than the caller may have to decide before the call is sent."""

    async def owner(self, call: Call) -> str:
        """The name of the upstream that the call goes to. Raises McpError where there is none."""

    def check_allowed(self, call: Call) -> None:
        """Raises McpError where the policy does not, or no longer, allow the call to its caller."""


class _Retry(msgspec.Struct, frozen=True, eq=False):
    """How a stateless client's request is carried out."""

    made: Call | Parked
    """The call to send upstream, or the parked call to resume."""
    relayed: Relayed | None = None
    """The opened `requestState`, where it carries the upstream's own state."""
    answers: Params | None = None
    """The answers to a request to log in, if the client was asked for that."""
    earlier: str = ""
    """The answers, as JSON, that the call carried before it had to wait for the login."""
    asked_at: float = 0.0
    """The Unix time in seconds at which the login was asked for."""


class UnparkableClient(msgspec.Struct, eq=False):
    """The upstream's `Client` during a call that cannot be parked: notifications pass, questions are refused."""

    call: Call
    declared: DeclaredCapabilities | None = None
    """Created with the first question."""

    def notify(self, method: str, params: Params) -> None:
        self.call.client.notify(method, params)

    async def ask(self, request: InputRequest) -> Raw:
        if self.declared is None:
            self.declared = DeclaredCapabilities(self.call.caller.capabilities)
        self.declared.check(request)
        return await self.call.client.ask(request)

    def explained(self, outcome: Outcome) -> Outcome:
        """As `DeclaredCapabilities.explained`."""
        return outcome if self.declared is None else self.declared.explained(outcome)


async def _attempt(handler: Handler, call: Call) -> Outcome:
    try:
        return await handler(call)
    except LoginRequired as refusal:
        return refusal.failed


def _mint() -> str:
    return secrets.token_urlsafe(16)


class InputBridge(Component):
    """`bridged` is its stage. Calls can be parked while `run` runs."""

    goes_by = frozenset({"proxy"})
    heeds = LoginRequests.heeds

    def __init__(
        self,
        limits: settings.BridgeSettings,
        sealer: Sealer,
        resolver: CallResolver,
        metrics: Metrics,
        clock: Clock = time.time,
        sleep: Sleep = anyio.sleep,
        mint: Callable[[], str] = _mint,
        awaits_login: Callable[[LinkKey], bool] = lambda link: False,
        pages: LoginPages | None = None,
    ) -> None:
        self._limits = limits
        self._states = RequestStates(sealer)
        self._resolver = resolver
        self._clock = clock
        self._sleep = sleep
        self._mint = mint
        self._parking = Parking(limits, metrics, clock, sleep, mint)
        self._logins = LoginRequests(pages or NoPages(), awaits_login, clock, sleep, mint)

    def reconfigure(self, change: Reconfiguration) -> None:
        self._limits = change.settings.proxy.bridge
        self._parking.reconfigure(change)

    async def run(self) -> None:
        await self._parking.run()

    def on_event(self, event: UpstreamEvent) -> None:
        """Passes events on to the logins that calls wait for."""
        self._logins.on_event(event)

    def leave(self, listener: Listener) -> None:
        self._logins.leave(listener)

    def bridged(self, handler: Handler) -> Handler:
        """Has the questions of upstreams answered by the client, whatever the eras of the two."""

        def bridging(call: Call) -> Awaitable[Outcome]:
            if not call.row.may_ask:
                return handler(call)
            if call.caller.version in STATELESS_VERSIONS:
                return self._answer_by_results(handler, call)
            return self._answer_by_asking(handler, call)

        return bridging

    def resumes(self, call: Call) -> bool:
        """Whether a call is a retry that resumes a parked call; limits count the two as one call."""
        if REQUEST_STATE not in call.params or not call.row.may_ask or call.caller.version not in STATELESS_VERSIONS:
            return False
        try:
            continuation = self._states.open(call, self._clock())
        except McpError:
            return False
        return isinstance(continuation, Parked) and self._parking.keeps(continuation)

    async def _answer_by_asking(self, handler: Handler, call: Call) -> Outcome:
        try:
            outcome = await handler(call)
        except LoginRequired as refusal:
            outcome = refusal.failed
        if type(outcome) is Complete:
            return outcome
        if type(outcome) is Failed and outcome.login is not None:
            again = partial(_attempt, handler, call)
            outcome = await self._logins.ask(call, outcome.login, outcome, again, self._limits.park_ttl)
        if type(outcome) is not InputRequired:
            return outcome
        return await with_input(handler, call, outcome, self._limits.max_rounds, self._sleep, self._mint)

    async def _answer_by_results(self, handler: Handler, call: Call, again: _Retry | None = None) -> Outcome:
        """Answers a call whose upstream asks in results alone.

        `again` is the call's state from before its caller logged in.
        """
        retry = again or (await self._continued(call) if REQUEST_STATE in call.params else None)
        made, outcome = call if retry is None else retry.made, None
        try:
            if not isinstance(made, Call):
                outcome = await self._parking.resume(made, call)
            elif self._may_park(made):
                outcome = await self._parking.begin(handler, made)
            else:
                # If the upstream reconnects in the other era before the call is sent, its questions are refused.
                client = UnparkableClient(made)
                outcome = client.explained(await handler(replace(made, client=client)))
        except LoginRequired as refusal:
            outcome = refusal.failed
        if type(outcome) is Complete:
            return outcome
        match outcome:
            case Pause(parked=parked, requests=requests, expires=expires):
                return input_required(requests, self._states.issue(call, parked, expires))
            case InputRequired():
                return await self._relay(call, outcome)
            case Failed(login=LoginNeed() as need):
                if again:
                    return outcome
                return await self._answer_after_login(handler, call, retry or _Retry(call), outcome, need)
            case Failed(error=error) if (requests := url_elicitations(error)) and not is_unwilling(call):
                return await self._relay(call, input_required(requests, None))
            case _:
                return outcome

    def _may_park(self, call: Call) -> bool:
        """Whether the call may have to be parked; only then does it need a task that outlives its request."""
        if not self._parking.is_running:
            return False
        if ASKABLE.isdisjoint(call.caller.capabilities):
            return self._resolver.may_be_referred(call)
        return not self._resolver.asks_by_results(call)

    async def _answer_after_login(
        self, handler: Handler, call: Call, retry: _Retry, failed: Failed, need: LoginNeed
    ) -> Outcome:
        """The outcome of a call before which its caller must log in: sent after the login, else a request for it."""
        again = partial(self._answer_by_results, handler, call, retry)
        if retry.answers is not None:
            outcome = await self._logins.retried(call, need, retry.answers, retry.asked_at, again)
            if outcome is not None:
                return outcome
        asked = None if isinstance(retry.made, Parked) else self._logins.request(call, need)
        if asked is None:
            return await self._logins.explain(call, need, failed, again)
        answers = retry.earlier or bytes(call.params.get(INPUT_RESPONSES, b"")).decode()
        now = self._clock()
        state = self._states.issue(call, AfterLogin(retry.relayed, answers, now), now + self._limits.park_ttl)
        return input_required({QUESTION: asked}, state)

    async def _continued(self, call: Call) -> _Retry:
        """Opens the state that a retry carries, and says how to continue. Raises McpError."""
        match self._states.open(call, self._clock()):
            case Relayed() as relayed:
                return _Retry(await self._with_state(call, relayed), relayed)
            case Parked() as parked:
                self._resolver.check_allowed(call)
                return _Retry(parked)
            case AfterLogin(relayed=relayed, answers=answers, asked_at=asked_at):
                params = {key: call.params[key] for key in call.params if key not in (REQUEST_STATE, INPUT_RESPONSES)}
                made = call.with_params({**params, INPUT_RESPONSES: Raw(answers.encode())} if answers else params)
                if relayed is not None:
                    made = await self._with_state(made, relayed)
                given = object_or_empty(call.params.get(INPUT_RESPONSES, EMPTY_OBJECT))
                return _Retry(made, relayed, given, answers, asked_at)
            case continuation:
                assert_never(continuation)

    async def _with_state(self, call: Call, relayed: Relayed) -> Call:
        """A retry that carries its upstream's own state. Raises McpError."""
        if await self._resolver.owner(call) != relayed.upstream:
            raise state_refusal("belongs to another server than the one called now: make the call again, without it")
        call.notes.approval = relayed.approval
        rest = {key: value for key, value in call.params.items() if key != REQUEST_STATE}
        return call.with_params(rest if relayed.state is None else {**rest, REQUEST_STATE: raw(relayed.state)})

    async def _relay(self, call: Call, required: InputRequired) -> Outcome:
        """An upstream's own request for input, with the upstream's state, if any, sealed inside ours."""
        missing = _missing(call, required)
        if missing:
            return undeclared(missing)
        if required.state is None and required.approval is None:
            return required
        continuation = Relayed(await self._resolver.owner(call), required.state, required.approval)
        state = self._states.issue(call, continuation, self._clock() + self._limits.park_ttl)
        return replace(required, state=state, result={**required.result, REQUEST_STATE: raw(state)})


def input_required(requests: dict[str, InputRequest], state: str | None) -> InputRequired:
    """An InputRequiredResult of our own. Without questions it has no `inputRequests`: its client may retry at once."""
    shown = {key: {"method": request.method, "params": request.params} for key, request in requests.items()}
    members: dict[str, object] = {"resultType": "input_required", **({INPUT_REQUESTS: shown} if shown else {})}
    return InputRequired(requests, state, first_level(members if state is None else {**members, REQUEST_STATE: state}))


def _missing(call: Call, required: InputRequired) -> Capabilities:
    """The capabilities that the client did not declare: mrtr, Server Requirements, "MUST NOT send"."""
    missing: Capabilities = {}
    for request in required.requests.values():
        missing = merged(missing, missing_capabilities(call.caller.capabilities, request.method, request.params))
    return missing
