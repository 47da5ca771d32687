"""Counts the files of the package that one message enters: a real gateway, traced between a real client and servers.

`python -m tests.docs.entered_files` prints a line for each case and its files; `--json` prints in how many repetitions
each file was entered, as one object. It starts the gateway by its command line alone, so that it measures other
revisions as well: `PYTHONPATH=OTHER python tests/docs/entered_files.py`. A file counts where one of its functions
begins or goes on in more than half of several repetitions: what a timer of the gateway does meanwhile is in fewer, and
what now and then is not needed in more.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import queue
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import mcproxy
from mcproxy.cli.commands import main as run_command

if __package__:
    from tests.docs.servers import McpServer
else:
    from servers import McpServer  # type: ignore[import-not-found, no-redef, unused-ignore]  # run from another revision

PACKAGE: Final = str(Path(mcproxy.__file__).parent) + os.sep
GUARD: Final = 120.0
"""Seconds after which what does not come has failed."""
REPETITIONS: Final = 9
"""Of each case: an odd number, so that a file is in more than half of them or in fewer."""
SETTLE: Final = 0.1
"""Seconds without a file that was not entered before: then what follows an answer is over."""
DISCARDED: Final = 20
"""Repetitions at most that do not count because the machine stood still in these seconds."""
CLOCKWORK: Final = frozenset({"admin/measures/loop_lag.py"})
"""What runs several times a second, whatever else happens."""
STATELESS: Final = "2026-07-28"
PREFIX: Final = "io.modelcontextprotocol"

Message = dict[str, Any]
Files = set[str]
Entries = dict[str, int]


class Tracer:
    """Notes the files of the package whose functions run while `recording`, in every thread that begins after it."""

    def __init__(self) -> None:
        self._entered: Files | None = None
        self.stood_still = False
        """Whether it is not known that what followed the last answer was over."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._entered is not None and frame.f_code.co_filename.startswith(PACKAGE):
            self._entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    @contextmanager
    def recording(self) -> Iterator[Files]:
        entered: Files = set()
        self._entered = entered
        try:
            yield entered
            known, self.stood_still = -1, False
            while known != len(entered):
                known, began = len(entered), time.monotonic()
                time.sleep(SETTLE)
                self.stood_still |= time.monotonic() - began > 2 * SETTLE
        finally:
            self._entered = None


class TracedClient:
    """One connection to the gateway. Blocks."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._id = 0
        self._session: dict[str, str] = {}

    def stateless(self, method: str, params: Message, capabilities: Message | None = None) -> http.client.HTTPResponse:
        meta = {f"{PREFIX}/protocolVersion": STATELESS, f"{PREFIX}/clientCapabilities": capabilities or {}}
        named = {"Mcp-Name": params["name"]} if "name" in params else {}
        fields = {"MCP-Protocol-Version": STATELESS, "Mcp-Method": method, **named}
        return self._post(method, {**params, "_meta": meta}, fields)

    def handshake(self, method: str, params: Message) -> http.client.HTTPResponse:
        return self._post(method, params, {"MCP-Protocol-Version": "2025-11-25", **self._session})

    def initialize(self) -> None:
        info = {"name": "traced", "version": "1"}
        answer = self._post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}, {})
        answer.read()
        self._session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        self._post("notifications/initialized", {}, {"MCP-Protocol-Version": "2025-11-25", **self._session}).read()

    def events(self) -> http.client.HTTPResponse:
        """The session's event stream."""
        fields = {"Accept": "text/event-stream", "MCP-Protocol-Version": "2025-11-25", **self._session}
        self._connection.request("GET", "/mcp", headers=fields)
        return self._connection.getresponse()

    def of_same_session(self, port: int) -> TracedClient:
        other = TracedClient(port)
        other._session = self._session
        return other

    def _post(self, method: str, params: Message, fields: dict[str, str]) -> http.client.HTTPResponse:
        self._id += 1
        id = {} if method.startswith("notifications/") else {"id": self._id}
        body = json.dumps({"jsonrpc": "2.0", **id, "method": method, "params": params})
        accept = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self._connection.request("POST", "/mcp", body, {**accept, **fields})
        return self._connection.getresponse()


def result_of(response: http.client.HTTPResponse) -> Message:
    """The result, or the error, that a JSON answer or the last event of a stream holds."""
    body = response.read().decode()
    if response.headers["Content-Type"].startswith("text/event-stream"):
        body = [line for line in body.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
    message: Message = json.loads(body)
    found: Message = message["result"] if "result" in message else message["error"]
    return found


def await_event(stream: http.client.HTTPResponse, method: str) -> None:
    while method.encode() not in stream.readline():
        pass


class Cases:
    """Each method is one case: carries out what `measured` says is to be traced."""

    def __init__(self, port: int, handshake: McpServer, file: Path, log: Log) -> None:
        self._port, self._handshake, self._file, self._log = port, handshake, file, log
        self._modern = TracedClient(port)
        self._legacy = TracedClient(port)
        self._legacy.initialize()

    def wait_for_upstreams(self) -> None:
        while {"a__echo", "b__echo"} - {tool["name"] for tool in self._listed()}:
            time.sleep(SETTLE)

    def _listed(self) -> list[Message]:
        tools: list[Message] = result_of(self._modern.stateless("tools/list", {}))["tools"]
        return tools

    def all(self) -> dict[str, Callable[[], None]]:
        subscribers = self._subscribers()

        def update() -> None:
            self._handshake.update()
            for stream in subscribers:
                await_event(stream, "notifications/resources/updated")

        return {
            "a call of the stateless era": self._call_stateless,
            "a call of the handshake era": self._call_handshake,
            "a parked elicitation": self._parked_elicitation,
            "an update to three subscribers": update,
            "a denied call": self._denied_call,
            "a reload": self._reload,
        }

    def _call_stateless(self) -> None:
        assert "content" in result_of(self._modern.stateless("tools/call", {"name": "a__echo", "arguments": {}}))

    def _call_handshake(self) -> None:
        assert "content" in result_of(self._legacy.handshake("tools/call", {"name": "b__echo", "arguments": {}}))

    def _denied_call(self) -> None:
        denied = result_of(self._modern.stateless("tools/call", {"name": "denied__echo", "arguments": {}}))
        assert denied["code"] == -32602, denied

    def _parked_elicitation(self) -> None:
        able: Message = {"elicitation": {"form": {}}}
        call: Message = {"name": "b__ask", "arguments": {}}
        asked = result_of(self._modern.stateless("tools/call", call, able))
        responses = {key: {"action": "accept", "content": {"colour": "red"}} for key in asked["inputRequests"]}
        retry = {**call, "requestState": asked["requestState"], "inputResponses": responses}
        assert "content" in result_of(self._modern.stateless("tools/call", retry, able))

    def _subscribers(self) -> list[http.client.HTTPResponse]:
        """The open event streams of two handshake sessions and of one stateless client."""
        streams = []
        for _ in range(2):
            client = TracedClient(self._port)
            client.initialize()
            assert result_of(client.handshake("resources/subscribe", {"uri": "b+memo://one"})) == {}
            streams.append(client.of_same_session(self._port).events())
        wanted = {"notifications": {"resourceSubscriptions": ["b+memo://one"]}}
        listening = TracedClient(self._port).stateless("subscriptions/listen", wanted)
        await_event(listening, "notifications/subscriptions/acknowledged")
        return [*streams, listening]

    def _reload(self) -> None:
        """Another idle timeout for one upstream: nothing connects anew."""
        text = self._file.read_text()
        here, there = ("idle: 60", "idle: 61") if "idle: 60" in text else ("idle: 61", "idle: 60")
        self._file.write_text(text.replace(here, there))
        os.kill(os.getpid(), signal.SIGHUP)
        self._log.await_event("configuration reloaded")


class Log(io.TextIOBase):
    """Takes the place of stderr; says when a line was written."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self._lines.put(text)
        return len(text)

    def await_event(self, event: str) -> str:
        while True:
            line = self._lines.get(timeout=GUARD)
            if event in line:
                return line


CONFIGURATION: Final = """\
proxy:
  port: 0
  watch: false
  log_format: json
  log_level: info
access:
  policy:
    default: allow
    roles:
      everyone:
        deny: [{{upstreams: [denied]}}]
mcpServers:
  a:
    url: {a}
  denied:
    url: {a}
  b:
    url: {b}
    timeouts:
      idle: 60
"""


def entries(tracer: Tracer, carry_out: Callable[[], None]) -> Entries:
    """In how many of REPETITIONS each file is entered."""
    found: Counter[str] = Counter()
    counted = discarded = 0
    while counted < REPETITIONS:
        with tracer.recording() as entered:
            carry_out()
        if tracer.stood_still and discarded < DISCARDED:
            discarded += 1
            continue
        found.update(entered - CLOCKWORK)
        counted += 1
    return dict(sorted(found.items()))


def mostly(found: Mapping[str, int]) -> list[str]:
    """The files that count as entered: in more than half of the repetitions."""
    return [file for file, number in found.items() if number > REPETITIONS / 2]


def measure() -> dict[str, Entries]:
    """The files that each case enters, by its name. Runs a gateway in this thread, which takes its signals."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, and then by the gateway too
    tracer, log = Tracer(), Log()
    found: dict[str, Entries] = {}
    stateless, handshake = McpServer(stateless=True), McpServer(stateless=False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mcproxy.yaml")
        file.write_text(CONFIGURATION.format(a=stateless.url, b=handshake.url))

        def drive() -> None:
            try:
                port = int(re.findall(r":(\d+)/", log.await_event('"serving"'))[0])
                cases = Cases(port, handshake, file, log)
                cases.wait_for_upstreams()
                for name, carry_out in cases.all().items():
                    carry_out()  # the first time of anything enters more: what is remembered is made then
                    found[name] = entries(tracer, carry_out)
            except BaseException:  # noqa: BLE001 - said before the gateway is told to end, in this thread as well
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        os.environ["XDG_STATE_HOME"] = folder
        driver = threading.Thread(target=drive)
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        with redirect_stderr(log), suppress(SystemExit):
            driver.start()
            run_command(["serve", "--config", str(file)])
        sys.setprofile(None)
        driver.join()
    return found


if __name__ == "__main__":
    measured = measure()
    if "--json" in sys.argv:
        print(json.dumps(measured, indent=1))
    for name, files in measured.items() if "--json" not in sys.argv else ():
        print(f"{name}: {len(mostly(files))}\n  {' '.join(mostly(files))}")
