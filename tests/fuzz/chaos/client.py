"""Clients of a chaos run, of both eras: they make marked calls, and judge all that reaches them.

A client keeps one stream open for changes and makes several calls at once; at random it cancels calls, hangs up, leaves
questions unanswered, ends its session or forgets it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import anyio
from anyio.abc import TaskGroup

from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE, META_SUBSCRIPTION, Era
from mcproxy.protocol.headers import standard_headers
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import row_of
from mcproxy.protocol.sse import EventDecoder
from tests.fuzz.chaos.ledger import Invariant, Ledger, MarkedCall
from tests.fuzz.chaos.server import PAGE

Json = dict[str, Any]

STUCK: Final = 90.0
"""Seconds that a call may take: three times the longest time-out of the configuration, since the machine is shared."""
WORKERS: Final = 3
"""Calls of one client at once."""
CALLS: Final = 60
"""Calls of one worker before its session ends."""
RETRY: Final = 0.3
"""Seconds between two attempts to open what was refused."""
TOOLS: Final = {"echo": 8, "slow": 3, "ask": 2, "log": 2, "large": 1, "read": 3, "list": 1}
_PREFIX: Final = "io.modelcontextprotocol"
_MAX_MESSAGE: Final = 1 << 26


class Refused(Exception):
    """A status other than 200 and 202: the session is gone, or the key is revoked."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text[:300]}")
        self.status = status


class Gate:
    """Closed, it lets no new call begin."""

    def __init__(self) -> None:
        self._open = anyio.Event()
        self._open.set()

    def close(self) -> None:
        self._open = anyio.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()


@dataclass(eq=False)
class Client:
    """One client; `run` goes on until it is cancelled."""

    name: str
    principal: str
    key: str
    era: Era
    url: str
    upstreams: Sequence[str]
    watched: Sequence[str]
    chance: random.Random
    ledger: Ledger
    gate: Gate
    listening: bool = False
    """Whether the stream of changes is open, and all subscriptions were accepted."""
    updates: Counter[str] = field(default_factory=Counter)
    """Updates heard, by upstream."""
    changes: int = 0
    """Changes of lists heard."""
    _http: aiohttp.ClientSession = field(init=False)
    _session: str | None = None
    _left: set[str] = field(default_factory=set)
    """Markers of calls whose questions this client left without an answer."""
    _stream_began: float = 0.0
    _news: anyio.Event = field(default_factory=anyio.Event)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Needed for all else."""
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "application/json, text/event-stream"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as self._http:
            yield

    async def run(self) -> None:
        async with self.connected():
            while True:
                try:
                    await self._opened()
                except (Refused, aiohttp.ClientError) as error:
                    self._check_refusal(error)
                    await anyio.sleep(RETRY)
                    continue
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._listen)
                    async with anyio.create_task_group() as workers:
                        for _ in range(WORKERS):
                            workers.start_soon(self._work, tasks)
                    tasks.cancel_scope.cancel()
                self.listening = False
                await self._closed()

    async def hears(self, upstream: str, updates: int) -> None:
        """Returns once so many updates were heard of an upstream's page."""
        while self.updates[upstream] < updates:
            await self._news.wait()

    async def tools(self) -> list[str]:
        """The names of all tools. Raises Refused."""
        answer = await self._asked("tools/list", {})
        return [tool["name"] for tool in answer.get("result", {}).get("tools", ())]

    async def call_once(self, upstream: str, tool: str) -> str | Json:
        """The text of a result, or the error. Raises Refused and ClientError."""
        marker = f"{self.name}.{tool}.{self.chance.getrandbits(64)}"
        params = {"name": f"{upstream}__{tool}", "arguments": {"marker": marker}}
        answer = await self._asked("tools/call", params, id=marker)
        if "result" not in answer or answer["result"].get("isError"):
            return answer
        return str(answer["result"]["content"][0]["text"])

    async def _opened(self) -> None:
        self._session = None
        if self.era is Era.STATELESS:
            return
        info = {"name": self.name, "version": "1"}
        capabilities: Json = {"elicitation": {"form": {}}}
        params = {"protocolVersion": LATEST_HANDSHAKE, "capabilities": capabilities, "clientInfo": info}
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        async with self._http.post(self.url, json=message) as response:
            if response.status != 200:
                raise Refused(response.status, await response.text())
            self._session = response.headers["Mcp-Session-Id"]
        await self._say({"method": "notifications/initialized"})
        self.ledger.counts["sessions"] += 1

    async def _closed(self) -> None:
        if self._session is None or self.chance.random() < 0.3:
            return
        with suppress(aiohttp.ClientError):
            async with self._http.delete(self.url, headers=self._headers("DELETE", {})):
                pass

    async def _work(self, tasks: TaskGroup) -> None:
        """Calls until it has made enough, or the session is gone."""
        for _ in range(CALLS):
            await self.gate.passed()
            if self._session is None and self.era is Era.HANDSHAKE:
                return
            await self._call(tasks)
            await anyio.sleep(self.chance.uniform(0, 0.15))

    async def _call(self, tasks: TaskGroup) -> None:
        [tool] = self.chance.choices(list(TOOLS), list(TOOLS.values()))
        upstream = self.chance.choice(self.upstreams)
        call = self.ledger.begin(self.principal, self.name, upstream, tool)
        deserts = self.chance.random()
        within = STUCK if deserts > 0.06 else self.chance.uniform(0, 0.4)
        try:
            with anyio.move_on_after(within) as scope:
                await self._made(call, tasks)
        except Refused as refusal:
            self._refused(call, refusal)
        except aiohttp.ClientError as error:
            self.ledger.end(call, "calls without an answer")
            self.ledger.found(Invariant.ANSWERED, f"{call}: {error!r}")
        if not scope.cancelled_caught:
            return
        self.ledger.end(call, "calls that hung up" if within < STUCK else "stuck calls")
        if within == STUCK:
            self.ledger.found(Invariant.PROMPT, str(call))
        elif deserts < 0.03 and self._session is not None:
            with suppress(Refused, aiohttp.ClientError):
                await self._say({"method": "notifications/cancelled", "params": {"requestId": call.marker}})

    def _refused(self, call: MarkedCall, refusal: Refused) -> None:
        if refusal.status == 404 and self._session is not None:
            # A session is lost with its credential alone: a revocation ends it.
            self._session = None
            self.ledger.end(call, "calls of sessions that were gone")
            if not self.ledger.is_disturbed(self.principal, call.began):
                self.ledger.found(Invariant.UNDISTURBED, f"{call}: the session is gone: {refusal}")
        elif refusal.status == 401 and self.ledger.is_disturbed(self.principal, call.began):
            self.ledger.end(call, "calls refused after a revocation")
        else:
            self.ledger.end(call, "refused calls")
            self.ledger.found(Invariant.UNDISTURBED, f"{call} was refused: {refusal}")

    def _check_refusal(self, error: Exception) -> None:
        if not self.ledger.is_disturbed(self.principal, self.ledger.clock() - 1):
            self.ledger.found(Invariant.UNDISTURBED, f"{self.name} cannot open a session: {error!r}")

    async def _made(self, call: MarkedCall, tasks: TaskGroup) -> None:
        if call.tool == "list":
            answer = await self._asked("tools/list", {}, id=call.marker)
            if "result" in answer:
                # Which tools are listed depends on which upstreams are there.
                self.ledger.end(call, "lists")
            else:
                self.ledger.fail(call, json.dumps(answer))
            return
        if call.tool == "read":
            uri = f"{call.upstream}+chaos:///marked/{call.marker}"
            answer = await self._asked("resources/read", {"uri": uri}, id=call.marker, call=call, tasks=tasks)
            said = [content["text"] for content in answer.get("result", {}).get("contents", ())]
            expected = call.marker
        else:
            size, steps = self.chance.choice((1000, 70_000, 300_000)), self.chance.randint(1, 8)
            arguments = {"marker": call.marker, "size": size, "steps": steps}
            params: Json = {"name": f"{call.upstream}__{call.tool}", "arguments": arguments}
            answer = await self._asked("tools/call", params, id=call.marker, call=call, tasks=tasks)
            if answer.get("result", {}).get("resultType") == "input_required":
                if self.chance.random() < 0.1:
                    self.ledger.end(call, "questions that were left")
                    return
                answer = await self._asked(
                    "tools/call",
                    {**params, **self._answers(call, answer["result"])},
                    id=f"{call.marker} again",
                    call=call,
                    tasks=tasks,
                )
            said = [block["text"] for block in answer.get("result", {}).get("content", ())]
            expected = _expected(call, size)
        if "result" not in answer:
            self.ledger.fail(call, json.dumps(answer))
        elif answer["result"].get("isError"):
            self.ledger.fail(call, "; ".join(said))
        elif not said:
            self.ledger.end(call, "results without content")
            self.ledger.found(Invariant.DELIVERED, f"{call} got {json.dumps(answer)[:2000]}")
        elif call.tool == "ask" and said[0].startswith(f"{call.marker} answered refused"):
            # On a pipe that several principals share, a question that does not prove whose it is goes to none.
            self.ledger.succeed(call, call.marker, call.marker)
            self.ledger.counts["questions refused"] += 1
        elif said == [f"{call.marker} answered cancel"] and call.marker in self._left:
            self.ledger.succeed(call, call.marker, call.marker)
            self.ledger.counts["questions that were left"] += 1
        else:
            self.ledger.succeed(call, "".join(said), expected)

    def _answers(self, call: MarkedCall, result: Json) -> Json:
        """The params of a retry of an `input_required`."""
        responses: Json = {}
        for key, question in result.get("inputRequests", {}).items():
            marker = question["params"]["message"]
            if marker != call.marker:
                self.ledger.found(Invariant.DELIVERED, f"{call} was asked the question of {marker}")
            responses[key] = {"action": "accept", "content": {"marker": marker}}
        self.ledger.counts["questions"] += len(responses)
        return {"requestState": result["requestState"], "inputResponses": responses}

    def _headers(self, method: str, params: Json) -> dict[str, str]:
        if self.era is Era.HANDSHAKE:
            assert self._session is not None
            return {"Mcp-Session-Id": self._session, "MCP-Protocol-Version": LATEST_HANDSHAKE}
        return dict(standard_headers(LATEST, row_of(method), {name: raw(value) for name, value in params.items()}))

    async def _asked(
        self,
        method: str,
        params: Json,
        *,
        id: str = "harness",
        call: MarkedCall | None = None,
        tasks: TaskGroup | None = None,
    ) -> Json:
        """The answer to a request. What else comes on its stream is judged. Raises Refused and ClientError."""
        if self.era is Era.STATELESS:
            meta = {
                f"{_PREFIX}/protocolVersion": LATEST,
                f"{_PREFIX}/clientCapabilities": {"elicitation": {"form": {}}},
                f"{_PREFIX}/clientInfo": {"name": self.name, "version": "1"},
                f"{_PREFIX}/logLevel": "info",
            }
            params = {**params, "_meta": {"progressToken": id, **meta}}
        elif self._session is None:
            raise Refused(404, "the session is gone already")
        else:
            params = {**params, "_meta": {"progressToken": id}}
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        async with self._http.post(self.url, json=message, headers=self._headers(method, params)) as response:
            if response.content_type != "text/event-stream":
                text = await response.text()
                if response.status not in (200, 400) or not text.startswith("{"):
                    raise Refused(response.status, text)
                answer: Json = json.loads(text)
                return answer
            async for said in _messages(response):
                if "method" not in said:
                    if said.get("id") != id:
                        self.ledger.found(Invariant.DELIVERED, f"{id} got the answer of {said.get('id')}")
                    return said
                self._hear(said, call, tasks)
        raise aiohttp.ClientPayloadError("the stream ended without an answer")

    async def _say(self, message: Json) -> None:
        headers = self._headers("", {})
        async with self._http.post(self.url, json={"jsonrpc": "2.0", **message}, headers=headers) as response:
            if response.status not in (200, 202):
                raise Refused(response.status, await response.text())

    def _hear(self, message: Json, call: MarkedCall | None, tasks: TaskGroup | None) -> None:
        """Judges what is neither an answer nor a change."""
        params = message.get("params", {})
        match message["method"]:
            case "notifications/progress":
                self.ledger.counts["reports of progress"] += 1
                marker = params["message"]
                if call is None:
                    # The connection of its call broke, and the call goes on.
                    is_own = marker.startswith(f"{self.name}.")
                else:
                    is_own = marker == call.marker == params["progressToken"]
                if not is_own:
                    self.ledger.found(Invariant.DELIVERED, f"{call or self.name} heard {params}")
            case "notifications/message":
                self.ledger.counts["log messages"] += 1
                self._check_owner(params["data"]["marker"], "the log message")
            case "elicitation/create":
                self.ledger.counts["questions"] += 1
                self._check_owner(params["message"], "the question")
                if tasks is not None and self.chance.random() > 0.05:
                    tasks.start_soon(self._answer, message)
                else:
                    self._left.add(params["message"])

    def _check_owner(self, marker: str, kind: str) -> None:
        if marker.partition(".")[0] != self.principal:
            self.ledger.found(Invariant.DELIVERED, f"{self.name} heard {kind} of {marker}")

    async def _answer(self, question: Json) -> None:
        marker = question["params"]["message"]
        result = {"action": "accept", "content": {"marker": marker}}
        try:
            await self._say({"id": question["id"], "result": result})
        except (Refused, aiohttp.ClientError, AssertionError) as error:
            # A key that was revoked meanwhile gives no answers; the call goes on without one.
            self._left.add(marker)
            self.ledger.counts["answers to questions that were refused"] += 1
            if not self.ledger.is_disturbed(self.principal, self.ledger.clock() - 1):
                self.ledger.found(
                    Invariant.ANSWERED, f"{self.name} could not answer the question of {marker}: {error!r}"
                )

    async def _listen(self) -> None:
        """Keeps a stream for changes open, with a subscription to each watched page."""
        while True:
            try:
                await self._listened()
            except (Refused, aiohttp.ClientError) as error:
                if isinstance(error, Refused) and error.status == 404:
                    self._session = None
                    return
            self.listening = False
            await anyio.sleep(RETRY)

    async def _listened(self) -> None:
        uris = [f"{upstream}+{PAGE}" for upstream in self.watched]
        if self.era is Era.HANDSHAKE:
            stream = self._http.get(self.url, headers=self._headers("GET", {}))
        else:
            wanted = {"toolsListChanged": True, "resourceSubscriptions": uris}
            meta = {f"{_PREFIX}/protocolVersion": LATEST, f"{_PREFIX}/clientCapabilities": {}}
            params = {"notifications": wanted, "_meta": meta}
            headers = self._headers("subscriptions/listen", params)
            message = {"jsonrpc": "2.0", "id": "listen", "method": "subscriptions/listen", "params": params}
            stream = self._http.post(self.url, json=message, headers=headers)
        async with stream as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                raise Refused(response.status, await response.text())
            self.ledger.counts["streams"] += 1
            self._stream_began = self.ledger.clock()
            async with anyio.create_task_group() as tasks:
                if self.era is Era.HANDSHAKE:
                    tasks.start_soon(self._subscribe, uris)
                with anyio.move_on_after(self.chance.expovariate(1 / 60)), suppress(aiohttp.ClientError):
                    async for message in _messages(response):
                        self._hear_change(message, tasks)
                tasks.cancel_scope.cancel()

    async def _subscribe(self, uris: Sequence[str]) -> None:
        waiting = list(uris)
        while waiting:
            with suppress(Refused, aiohttp.ClientError):
                answer = await self._asked("resources/subscribe", {"uri": waiting[0]}, id=f"{self.name} subscribes")
                if "result" in answer:
                    waiting.pop(0)
                    continue
            await anyio.sleep(RETRY)
        self.listening = True

    def _hear_change(self, message: Json, tasks: TaskGroup) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "notifications/resources/updated":
                self.ledger.counts["updates"] += 1
                self.updates[params["uri"].partition("+")[0]] += 1
            case "notifications/tools/list_changed":
                self.ledger.counts["changes of lists"] += 1
                self.changes += 1
            case "notifications/subscriptions/acknowledged":
                # An upstream that is not there at the moment is left out of what is agreed on.
                agreed = params["notifications"].get("resourceSubscriptions", ())
                self.listening = len(agreed) == len(self.watched)
                if not self.listening:
                    tasks.cancel_scope.cancel()
                if params["_meta"][META_SUBSCRIPTION] != "listen":
                    self.ledger.found(Invariant.DELIVERED, f"{self.name} heard an acknowledgement of {params}")
            case None:
                pass
            case _:
                self._hear(message, None, tasks)
        self._news.set()
        self._news = anyio.Event()

    def outlived(self, since: float, now: float) -> bool:
        """Whether a stream that was open at a time is open yet."""
        return self.listening and self._stream_began < since < now


def _expected(call: MarkedCall, size: int) -> str:
    match call.tool:
        case "large":
            return call.marker + "x" * size + call.marker
        case "ask":
            return f"{call.marker} answered {call.marker}"
        case _:
            return call.marker


async def _messages(response: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    decoder = EventDecoder(_MAX_MESSAGE)
    async for chunk in response.content.iter_any():
        for event in decoder.feed(chunk):
            if event.data:
                message: Json = json.loads(event.data)
                yield message
