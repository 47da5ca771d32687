"""Every official SDK as a client meets every kind of server through one gateway: each behaviour works in each cell.

A player (an SDK, an era, a transport) plays one script to a gateway with all the servers behind it; the tests read its
transcript. What a pair of eras cannot have, or an SDK does not do, stands in `IMPOSSIBLE`, with its reason.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
import pytest

from tests.system.running import (
    CLIENTS,
    NODE,
    PYTHON,
    Json,
    command,
    configuration,
    gateway,
    need_npm,
    run,
    web_server,
    write,
)
from tests.system.scripts import ANSWERS, call

pytestmark = pytest.mark.timeout(300)

PATIENCE = 240.0
"""Seconds that a player may take for its whole script."""
LARGE = 5 * 2**20
UPDATED, TOOLS_CHANGED, LOGGED = (
    "notifications/resources/updated",
    "notifications/tools/list_changed",
    "notifications/message",
)


@dataclass(frozen=True)
class Player:
    sdk: str
    era: str
    transport: str

    def __str__(self) -> str:
        return f"{self.sdk}-{self.era}-{self.transport}"


@dataclass(frozen=True)
class Cell:
    """One server behind the gateway."""

    language: str
    era: str
    transport: str

    def __str__(self) -> str:
        return f"{self.language}-{self.era}-{self.transport}"

    @property
    def memo(self) -> str:
        return f"{self}+matrix://memo"

    def call(self, tool: str, **arguments: object) -> Json:
        return call(f"{self}__{tool}", **arguments)


ERAS: Final = ("legacy", "modern")
TRANSPORTS: Final = ("stdio", "http")
PLAYERS: Final = [
    Player(sdk, era, transport)
    for sdk, era in [("python1", "legacy"), ("typescript1", "legacy"), *product(("python2", "typescript2"), ERAS)]
    for transport in TRANSPORTS
]
CELLS: Final = [Cell(*kind) for kind in product(("python", "typescript"), ERAS, TRANSPORTS)]
MODES: Final = {"legacy": "legacy", "modern": "auto"}
SERVERS: Final[dict[str, Callable[[str], list[str]]]] = {
    "python": lambda era: [PYTHON, "-W", "ignore", "-m", "tests.system.matrix_server"],
    "typescript": lambda era: ["node", str(NODE / "matrix_server.mjs"), era],
}


def elicited(cell: Cell, action: str, **answer: object) -> list[Json]:
    return [{**cell.call("elicit"), "answers": {"elicitation/create": {"action": action, **answer}}}]


def logged(cell: Cell, who: str) -> list[Json]:
    return [cell.call("log", who=f"{cell} {who}"), {"do": "await", "method": LOGGED}]


def at_level(level: str) -> Json:
    return {"do": "logging/setLevel", "params": {"level": level}}


BEHAVIOURS: Final[dict[str, Callable[[Cell], list[Json]]]] = {
    "call": lambda cell: [cell.call("add", a=1, b=2)],
    "read": lambda cell: [{"do": "resources/read", "params": {"uri": cell.memo}}],
    "progress": lambda cell: [cell.call("report")],
    "log": lambda cell: logged(cell, "aloud"),
    "level": lambda cell: [at_level("warning"), *logged(cell, "softly"), at_level("info")],
    "accept": lambda cell: elicited(cell, "accept", content={"name": "Ada"}),
    "decline": lambda cell: elicited(cell, "decline"),
    "dismiss": lambda cell: elicited(cell, "cancel"),
    "sampling": lambda cell: [cell.call("sample")],
    "roots": lambda cell: [cell.call("roots")],
    "update": lambda cell: [cell.call("touch"), {"do": "await", "method": UPDATED}],
    "list change": lambda cell: [cell.call("grow"), {"do": "await", "method": TOOLS_CHANGED}, {"do": "tools/list"}],
    "failure": lambda cell: [cell.call("fail")],
    "error": lambda cell: [cell.call("refuse")],
    "large": lambda cell: [{**cell.call("large", size=LARGE), "quiet": True}],
    "cancel": lambda cell: [{**cell.call("wait"), "do": "cancel"}, cell.call("given_up")],
}
"""Giving a call up comes last: for a while its server may still speak of it, and what cannot be told apart is nobody's
(requirement R26)."""

IMPOSSIBLE: Final[dict[str, Callable[[Player, Cell], str | None]]] = {
    "level": lambda player, cell: (
        "logging/setLevel is of the handshake eras: a stateless request says itself what it wants to hear"
        if player.era == "modern"
        else None
    ),
}
"""By behaviour: why a player cannot have it of a cell, or None."""


def every_cell(behaviour: str) -> pytest.MarkDecorator:
    possible = [
        pytest.param(player, cell, id=f"{player}-{cell}", marks=pytest.mark.xdist_group(str(player)))
        for player, cell in product(PLAYERS, CELLS)
        if reason(behaviour, player, cell) is None
    ]
    return pytest.mark.parametrize(("player", "cell"), possible)


def reason(behaviour: str, player: Player, cell: Cell) -> str | None:
    why = IMPOSSIBLE.get(behaviour)
    return why(player, cell) if why else None


@every_cell("call")
def test_a_call_is_answered(player: Player, cell: Cell) -> None:
    assert said(met(player, cell, "call")[0]) == "3"


@every_cell("read")
def test_r27_a_resource_is_read_by_the_uri_that_was_listed(player: Player, cell: Cell) -> None:
    [contents] = met(player, cell, "read")[0]["result"]["contents"]
    assert (contents["uri"], contents["text"]) == (cell.memo, "hello")


@every_cell("progress")
def test_r24_progress_is_reported_while_a_call_lasts(player: Player, cell: Cell) -> None:
    [step] = met(player, cell, "progress")
    assert said(step) == "report: done"
    assert [report[:2] for report in step["progress"]] == [[1, 3], [2, 3], [3, 3]]


@every_cell("cancel")
def test_r25_a_cancelled_call_is_given_up_by_its_server(player: Player, cell: Cell) -> None:
    cancel, then = met(player, cell, "cancel")
    assert cancel["result"] == {"cancelled": True}
    assert said(then) == "given_up: done"


@every_cell("log")
def test_log_messages_of_a_call_reach_its_caller(player: Player, cell: Cell) -> None:
    assert heard_of(player, f"{cell} aloud") == ["info", "warning", "error"]


@every_cell("level")
def test_less_is_logged_where_the_client_wants_less(player: Player, cell: Cell) -> None:
    assert heard_of(player, f"{cell} softly") == ["warning", "error"]


@every_cell("accept")
def test_an_elicitation_is_accepted(player: Player, cell: Cell) -> None:
    answer = json.loads(said(met(player, cell, "accept")[0]))
    assert (answer["action"], answer["content"]) == ("accept", {"name": "Ada"})


@every_cell("decline")
def test_an_elicitation_is_declined(player: Player, cell: Cell) -> None:
    assert json.loads(said(met(player, cell, "decline")[0]))["action"] == "decline"


@every_cell("dismiss")
def test_an_elicitation_is_dismissed(player: Player, cell: Cell) -> None:
    assert json.loads(said(met(player, cell, "dismiss")[0]))["action"] == "cancel"


@every_cell("sampling")
def test_a_server_samples_the_clients_model(player: Player, cell: Cell) -> None:
    answer = json.loads(said(met(player, cell, "sampling")[0]))
    assert (answer["model"], answer["content"]["text"]) == ("fixed", "fine")


@every_cell("roots")
def test_a_server_learns_the_clients_roots(player: Player, cell: Cell) -> None:
    assert json.loads(said(met(player, cell, "roots")[0]))["roots"] == ANSWERS["roots/list"]["roots"]


@every_cell("update")
def test_r22_a_subscriber_hears_of_an_update(player: Player, cell: Cell) -> None:
    assert cell.memo in [update["params"]["uri"] for update in played(player).notifications(UPDATED)]


@every_cell("list change")
def test_r19_a_changed_list_is_announced_and_then_listed(player: Player, cell: Cell) -> None:
    _, announced, listed = met(player, cell, "list change")
    assert "late" not in announced
    grown = [tool["name"] for tool in listed["result"]["tools"] if tool["name"].startswith(f"{cell}__grown")]
    assert len(grown) == 1


@every_cell("failure")
def test_a_tools_failure_is_a_result(player: Player, cell: Cell) -> None:
    [step] = met(player, cell, "failure")
    assert step["result"]["isError"] is True
    assert "it did not work" in said(step)


@every_cell("error")
def test_a_servers_error_comes_through(player: Player, cell: Cell) -> None:
    error = met(player, cell, "error")[0]["error"]
    assert error == {"code": -31999, "message": "no, and this is why", "data": {"kept": [1]}}


@every_cell("large")
def test_r16_a_large_result_comes_through_whole(player: Player, cell: Cell) -> None:
    assert said(met(player, cell, "large")[0]) == "x" * LARGE


@dataclass(frozen=True)
class Transcript:
    steps: dict[tuple[Cell, str], list[Json]]
    heard: list[Json]

    def notifications(self, method: str) -> list[Json]:
        return [notification for notification in self.heard if notification["method"] == method]


def met(player: Player, cell: Cell, behaviour: str) -> list[Json]:
    """What came of each step."""
    return played(player).steps[cell, behaviour]


def said(step: Json) -> str:
    assert "result" in step, step
    text: str = step["result"]["content"][0]["text"]
    return text


def heard_of(player: Player, who: str) -> list[str]:
    """The levels of the log messages that speak of `who`."""
    lines = [message["params"] for message in played(player).notifications(LOGGED)]
    return [line["level"] for line in lines if line["data"] == f"{who}: {line['level']}"]


def played(player: Player) -> Transcript:
    need_npm()
    transcript = _played(player)
    if isinstance(transcript, str):
        pytest.fail(transcript, pytrace=False)
    return transcript


@cache
def _played(player: Player) -> Transcript | str:
    """What `player` met, or how it failed: once for all tests."""
    try:
        return anyio.run(_play, player)
    except (AssertionError, TimeoutError) as failure:
        return f"{player}: {failure or 'out of time'}"


async def _play(player: Player) -> Transcript:
    parts = [
        (cell, behaviour, steps(cell))
        for cell, (behaviour, steps) in product(CELLS, BEHAVIOURS.items())
        if reason(behaviour, player, cell) is None
    ]
    opening: list[Json] = [{"do": "tools/list"}, {"do": "listen", "params": {"uris": [cell.memo for cell in CELLS]}}]
    script = {
        "mode": MODES[player.era],
        "answers": ANSWERS,
        "steps": opening + [step for *_, steps in parts for step in steps],
    }
    with TemporaryDirectory() as name:
        async with _gateway(player, Path(name)) as transport:
            file = Path(name) / "script.json"
            file.write_text(json.dumps({**script, "transport": transport}))
            found = json.loads(await run([*CLIENTS[player.sdk], str(file)], within=PATIENCE))
    outcomes = iter(found["steps"])
    assert [next(outcomes).keys() & {"error", "late"} for _ in opening] == [set(), set()]
    return Transcript(
        {(cell, behaviour): [next(outcomes) for _ in steps] for cell, behaviour, steps in parts},
        found["notifications"],
    )


@asynccontextmanager
async def _gateway(player: Player, folder: Path) -> AsyncIterator[Json]:
    """How a client reaches a gateway with every server behind it."""
    async with AsyncExitStack() as stack:
        upstreams: Json = {}
        for cell in CELLS:
            server = SERVERS[cell.language](cell.era)
            if cell.transport == "stdio":
                where: Json = {"command": server[0], "args": server[1:]}
            else:
                where = {"url": await stack.enter_async_context(web_server(*server))}
            upstreams[str(cell)] = {**where, "era": cell.era}
        settings = configuration(upstreams, list_wait=60)
        if player.transport == "stdio":
            yield {"kind": "stdio", "command": command(write(folder, settings), "--stdio")}
        else:
            yield {"kind": "http", "url": (await stack.enter_async_context(gateway(folder, settings))).url + "/mcp"}
