"""Asks the client of a call to open a URL and log in, where the upstream wants that, and makes the call afterwards.

| client                                   | what happens                                                            |
|------------------------------------------|-------------------------------------------------------------------------|
| 2026-07-28, takes URLs                   | a result asks for the login; the retry waits for it                     |
| 2025-11-25, takes URLs                   | it is asked while its call lasts, which waits; where it cannot be asked:|
|                                          | error -32042, and `elicitation/complete` after the login                |
| any other                                | a tool error with the link, or an error; over stdio a browser is opened |

The upstream refused the call before executing it, so that it runs once. Keeps no credentials and makes no link itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import anyio
import msgspec
import structlog
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Failed, LoginNeed, Outcome
from mcproxy.call.clients import InputRequest, Listener, Notice
from mcproxy.call.errors import McpError, Party, Reason
from mcproxy.call.identity import Caller
from mcproxy.call.upstreams import LoginAwaited, UpstreamEvent
from mcproxy.concurrency.clock import Clock, Sleep
from mcproxy.gateway.component import Component
from mcproxy.gateway.listings.keys import LinkKey
from mcproxy.protocol.eras import STATELESS_VERSIONS, V2025_11_25
from mcproxy.protocol.inputs import missing_capabilities
from mcproxy.protocol.jsonrpc import (
    EMPTY_OBJECT,
    INTERNAL_ERROR,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    Params,
    first_level,
    raw,
)
from mcproxy.protocol.methods import ELICITATION_COMPLETE, PROGRESS, Subject

log = structlog.get_logger()

QUESTION: Final = "mcproxy/login"
"""The key of the login among a result's `inputRequests`."""
ASK: Final = "elicitation/create"
RETRY_WAIT: Final = 45.0
"""Seconds that a retry, or a call for which a browser was opened here, waits for the login.

Shorter than the minute after which many clients give up.
"""
KEEP_ALIVE: Final = 5.0
"""Seconds between two progress notifications while a call waits."""
MAX_OPEN: Final = 1000
"""Elicitations whose completion is reported to their clients; beyond that the oldest are forgotten."""
MAX_MADE: Final = 1000
"""Links whose last login, or last failed attempt, is remembered; beyond that the oldest are forgotten."""

V = TypeVar("V")

Attempt = Callable[[], Awaitable[Outcome]]
"""Sends the call."""


class LoginPages(Protocol):
    """The pages where people log in (`mcproxy.login`)."""

    def url(self, need: LoginNeed, caller: Caller) -> str | None:
        """The URL at which `caller` can log in; None where there is no page, or where this caller may not log in."""

    async def opened(self, need: LoginNeed, url: str) -> bool:
        """Opens the URL in a browser of this machine, if the caller uses it (stdio).

        Returns whether that was possible.
        """


class NoPages:
    """The login pages of a gateway that serves none."""

    def url(self, need: LoginNeed, caller: Caller) -> str | None:
        return None

    async def opened(self, need: LoginNeed, url: str) -> bool:
        return False


class _LoginAnswer(msgspec.Struct):
    action: str = "cancel"


class _LoginFailure(msgspec.Struct, frozen=True):
    at: float
    why: str


class _Wait(msgspec.Struct, eq=False):
    """A call that waits for a login."""

    ended: anyio.Event = msgspec.field(default_factory=anyio.Event)
    is_made: bool = False

    def end(self, *, is_made: bool) -> None:
        self.is_made = is_made
        self.ended.set()


class LoginRequests(Component):
    """`awaits` returns whether the owner of a link has yet to log in; `clock` gives Unix time in seconds."""

    heeds = frozenset({LoginAwaited})

    def __init__(
        self,
        pages: LoginPages,
        awaits: Callable[[LinkKey], bool],
        clock: Clock,
        sleep: Sleep,
        mint: Callable[[], str],
    ) -> None:
        self._pages = pages
        self._awaits = awaits
        self._clock = clock
        self._sleep = sleep
        self._mint = mint
        self._waiting: dict[LinkKey, set[_Wait]] = {}
        """Calls that wait for a login, by the link that needs it."""
        self._last_made: dict[LinkKey, float] = {}
        """The time of the last login by its link: a person may finish before their client says that they agreed."""
        self._failures: dict[LinkKey, _LoginFailure] = {}
        """The latest attempt of each link that failed, until a login is made."""
        self._open: dict[str, tuple[LinkKey, Listener]] = {}
        """The link and client of each elicitation that is not complete, by its id."""

    def on_event(self, event: UpstreamEvent) -> None:
        match event:
            case LoginAwaited(upstream=upstream, owner=owner, awaited=False):
                made = LinkKey(upstream, owner)
                self._note_made(made)
                for waiting in self._waiting.get(made, ()):
                    waiting.end(is_made=True)
                for id in [id for id, (link, _) in self._open.items() if link == made]:
                    _, listener = self._open.pop(id)
                    listener.signal(Notice(ELICITATION_COMPLETE, {"elicitationId": raw(id)}))
            case LoginAwaited(upstream=upstream, owner=owner, failure=str(failure)) if failure:
                link = LinkKey(upstream, owner)
                _remember(self._failures, link, _LoginFailure(self._clock(), failure))
                for waiting in self._waiting.get(link, ()):
                    waiting.end(is_made=False)
            case _:
                pass

    def leave(self, listener: Listener) -> None:
        self._open = {id: kept for id, kept in self._open.items() if kept[1] is not listener}

    def request(self, call: Call, need: LoginNeed) -> InputRequest | None:
        """The question for the client of `call`; None where that client cannot be asked to open a URL."""
        url = self._pages.url(need, call.caller)
        if url is None or call.caller.version not in (V2025_11_25, *STATELESS_VERSIONS):
            return None
        asked = InputRequest(ASK, first_level({"mode": "url", "url": url, "message": self._message(need)}))
        return None if missing_capabilities(call.caller.capabilities, ASK, asked.params) else asked

    async def ask(self, call: Call, need: LoginNeed, failed: Failed, again: Attempt, seconds: float) -> Outcome:
        """Asks a handshake client to log in within so many seconds, and then sends its call `again`.

        `failed` is the outcome that demanded the login.
        """
        asked = self.request(call, need)
        if asked is None:
            return await self.explain(call, need, failed, again)
        id = self._mint()
        asked = InputRequest(ASK, {**asked.params, "elicitationId": raw(id)})
        call.notes.asked = True
        asked_at = self._clock()
        self._note_open(id, need, call.listener)
        log.info("a login is asked for", upstream=need.upstream, principal=call.caller.principal.name)
        try:
            answer = await call.client.ask(asked)
        except McpError:
            return _url_required(asked)
        if _action(answer) != "accept":
            self._open.pop(id, None)
            return self._told(call, need, f"The login to {need.upstream} was declined.")
        if await self._made(call, need, asked_at, seconds):
            return await self._ended(call, again)
        return _url_required(asked)

    async def retried(
        self, call: Call, need: LoginNeed, answers: Params, asked_at: float, again: Attempt
    ) -> Outcome | None:
        """The outcome of a stateless client's retry after the question; None where it has to be asked again."""
        if _action(answers.get(QUESTION, EMPTY_OBJECT)) != "accept":
            return self._told(call, need, f"The login to {need.upstream} was declined.")
        return await self._ended(call, again) if await self._made(call, need, asked_at, RETRY_WAIT) else None

    async def explain(self, call: Call, need: LoginNeed, failed: Failed, again: Attempt) -> Outcome:
        """The outcome for a client that cannot be asked to open a URL: an error that holds the link."""
        url = self._pages.url(need, call.caller)
        if url is None:
            command = f"`mcproxy login {shlex.quote(need.upstream)}`"
            return failed if need.why else self._told(call, need, f"An operator has to log in first, by {command}.")
        asked_at = self._clock()
        if await self._pages.opened(need, url) and await self._made(call, need, asked_at, RETRY_WAIT):
            return await self._ended(call, again)
        return self._told(call, need, self._message(need))

    async def _ended(self, call: Call, again: Attempt) -> Outcome:
        """The outcome of the call sent after the login; an error with the link if another login is needed by then."""
        outcome = await again()
        if type(outcome) is Failed and outcome.login is not None:
            return self._told(call, outcome.login, self._message(outcome.login))
        return outcome

    def _told(self, call: Call, need: LoginNeed, sentence: str) -> Outcome:
        """A sentence as the outcome of a call, with the link where there is one."""
        url = self._pages.url(need, call.caller)
        text = sentence if url is None else f"{sentence} Open this link in a browser, then try again: {url}"
        if call.row.subject is not Subject.TOOL:
            return Failed(ErrorObject(INTERNAL_ERROR, text), Party.UPSTREAM, Reason.LOGIN_NEEDED)
        is_error = bool(need.why)
        content = [{"type": "text", "text": text}]
        return Complete(first_level({"resultType": "complete", "content": content, "isError": is_error}), is_error)

    def _note_made(self, link: LinkKey) -> None:
        self._failures.pop(link, None)
        _remember(self._last_made, link, self._clock())

    def _note_open(self, id: str, need: LoginNeed, listener: Listener | None) -> None:
        if listener is None:
            return
        if len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[id] = LinkKey(need.upstream, need.owner), listener

    async def _made(self, call: Call, need: LoginNeed, asked_at: float, seconds: float) -> bool:
        """Whether a login was made since `asked_at`, or is made within so many seconds, before one fails.

        Meanwhile progress notifications tell the client that its call goes on.
        """
        link, wait = LinkKey(need.upstream, need.owner), _Wait()
        if not self._awaits(link) or self._last_made.get(link, asked_at) > asked_at:
            return True
        if (failure := self._failures.get(link)) is not None and failure.at > asked_at:
            return False
        waiting = self._waiting.setdefault(link, set())
        waiting.add(wait)
        try:
            with anyio.move_on_after(seconds):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._keep_alive, call, need)
                    await wait.ended.wait()
                    tasks.cancel_scope.cancel()
        finally:
            waiting.discard(wait)
            if not waiting:
                self._waiting.pop(link, None)
        return wait.is_made

    def _message(self, need: LoginNeed) -> str:
        failure = self._failures.get(LinkKey(need.upstream, need.owner))
        wanted = f"The server {need.upstream!r} wants you to log in" + (f": {need.why}." if need.why else ".")
        return wanted if failure is None else f"{wanted} The last attempt failed: {failure.why}."

    async def _keep_alive(self, call: Call, need: LoginNeed) -> None:
        step = 0
        while True:
            await self._sleep(KEEP_ALIVE)
            step += 1
            told = {"progress": step, "message": f"waiting for the login to {need.upstream}"}
            call.client.notify(PROGRESS, first_level(told))


def _remember(memory: dict[LinkKey, V], link: LinkKey, value: V) -> None:
    """Keeps a value as the latest; beyond MAX_MADE the oldest is forgotten."""
    memory.pop(link, None)
    if len(memory) >= MAX_MADE:
        del memory[next(iter(memory))]
    memory[link] = value


def _action(answer: Raw) -> str:
    try:
        return msgspec.json.decode(answer, type=_LoginAnswer).action
    except msgspec.MsgspecError:
        return ""


def _url_required(asked: InputRequest) -> Failed:
    """URLElicitationRequiredError (2025-11-25, elicitation), upon which the client logs in and sends the call again."""
    data = raw({"elicitations": [asked.params]})
    error = ErrorObject(URL_ELICITATION_REQUIRED, "A login is needed before this call", data)
    return Failed(error, Party.CLIENT, Reason.LOGIN_NEEDED)
