"""Every SDK as a client meets every kind of server through one gateway, and through three replicas behind nginx that
deals each request out to the next of them: each behaviour works in each cell.

A player (an SDK, an era, a transport) plays one script to a gateway with all the servers behind it; the tests read its
transcript. What a pair of eras cannot have, or an SDK does not do, stands in `IMPOSSIBLE`, with its reason.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcproxy.upstream.attribution import LINGER
from tests.cluster.conftest import RedisServer
from tests.cluster.replicas import cluster
from tests.depth import IN_CI, sampled_pairs
from tests.ports import free_port
from tests.system.running import (
    GO,
    JVM,
    NODE,
    PYTHON,
    RUST,
    Clients,
    Json,
    command,
    configuration,
    gateway,
    need_go,
    need_java,
    need_npm,
    need_rust,
    web_server,
    write,
)
from tests.system.scripts import ANSWERS, call

PATIENCE = 480.0
"""Seconds that a player may take for its whole script."""
LARGE = 5 * 2**20
REPORTS = 3
ATTEMPTS = 10
"""Calls of the tool that reports its progress, where a client loses reports."""
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
HANDSHAKE: Final = [("legacy", transport) for transport in TRANSPORTS]
BOTH_ERAS: Final = list(product(ERAS, TRANSPORTS))
SSE: Final = ("legacy", "sse")
"""The one era that has HTTP+SSE."""
PLAYERS: Final = [
    Player(sdk, era, transport)
    for sdk, era in [("python1", "legacy"), ("typescript1", "legacy"), *product(("python2", "typescript2"), ERAS)]
    for transport in TRANSPORTS
]
CELLS: Final = [Cell(*kind) for kind in product(("python", "typescript"), ERAS, TRANSPORTS)]


@dataclass(frozen=True)
class Cast:
    """Players and the servers that each of them meets, behind one gateway with all these servers.

    `need` skips the tests where a toolchain is missing. The first cast is every player of the reference SDKs and all
    their servers. Each other SDK's players meet their own servers and the Python SDK's, and its servers meet the Python
    SDK's players too.
    """

    need: Callable[[], None]
    pairs: list[tuple[Player, Cell]]
    replicas: int = 1
    """Gateways behind nginx, with a real Redis; their children run at one of them (`placement: one`)."""

    def met_by(self, *players: Player) -> list[Cell]:
        """The cells that any of these players meets."""
        return list(dict.fromkeys(cell for player, cell in self.pairs if player in players))

    @property
    def players(self) -> list[Player]:
        return list(dict.fromkeys(player for player, _ in self.pairs))

    def reason(self, behaviour: str, player: Player, cell: Cell) -> str | None:
        """Why a player cannot have a behaviour of a cell here, or None."""
        tables = [IMPOSSIBLE, ELSEWHERE] if self.replicas > 1 else [IMPOSSIBLE]
        found = (table[behaviour](player, cell) for table in tables if behaviour in table)
        return next(filter(None, found), None)


def own_cast(sdk: str, need: Callable[[], None], kinds: Sequence[tuple[str, str]] = BOTH_ERAS) -> Cast:
    """The cast of an SDK with these eras and transports."""
    players = [Player(sdk, *kind) for kind in kinds]
    cells = [Cell(sdk, *kind) for kind in kinds]
    known_players = [Player("python2", era, "http") for era in ERAS]
    known_cells = [Cell("python", era, "http") for era in ERAS]
    return Cast(
        need,
        [
            *sampled_pairs(players, [*cells, *known_cells], one_in=3),
            *sampled_pairs(known_players, cells, one_in=2),
        ],
    )


LAST: Final = Player("python2", "modern", "http")
"""Who plays last through the replicas."""


def replicated_cast() -> Cast:
    """The Python SDK's players over HTTP and its servers, in both eras; in CI the players of the first SDK as well."""
    sdks = ("python1", "python2") if IN_CI else ("python2",)
    players = [player for player in PLAYERS if player.transport == "http" and player.sdk in sdks]
    cells = [cell for cell in CELLS if cell.language == "python"]
    return Cast(lambda: None, list(product(players, cells)), replicas=3)


CASTS: Final = {
    # An odd number, by which those over stdio meet those over HTTP.
    "reference": Cast(need_npm, sampled_pairs(PLAYERS, CELLS, one_in=7)),
    "go": own_cast("go", need_go),
    "mcpgo": own_cast("mcpgo", need_go, [*BOTH_ERAS, SSE]),
    "rust": own_cast("rust", need_rust),
    "java": own_cast("java", need_java, [*HANDSHAKE, SSE]),
    "replicas": replicated_cast(),
}
MODES: Final = {"legacy": "legacy", "modern": "auto"}
SERVERS: Final[dict[str, Callable[[Cell], list[str]]]] = {
    "python": lambda cell: [PYTHON, "-W", "ignore", "-m", "tests.system.matrix_server"],
    "typescript": lambda cell: ["node", str(NODE / "matrix_server.mjs"), cell.era],
    "go": lambda cell: [str(GO / "official"), cell.era],
    "mcpgo": lambda cell: [str(GO / "mcpgo"), cell.era, cell.transport],
    "rust": lambda cell: [str(RUST / "matrix"), cell.era, cell.transport],
    "java": lambda cell: [*JVM, "serve", cell.transport],
}
"""By language: the command of a cell's server, but for the port."""


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

UNORDERED: Final = {Cell("mcpgo", "legacy", "http")}
"""Cells whose servers send what belongs to one call on any stream of the session, and so in any order."""


def in_order(told: list[Any], cell: Cell) -> list[Any]:
    """What a cell's server told, sorted where it keeps to no order."""
    return sorted(told) if cell in UNORDERED else told


def unasked(player: Player, cell: Cell) -> str | None:
    """Why a pair has no questions."""
    if Cell("mcpgo", *SSE) == cell:
        return "v1.2.1 as a server asks nothing over HTTP+SSE"
    if Player("mcpgo", *SSE) == player:
        return "v1.2.1 as a client hears no question over HTTP+SSE"
    return None


def unlogged(player: Player, cell: Cell) -> str | None:
    """Why a player need not hear the log messages of a cell."""
    if cell in UNORDERED:
        return "v1.2.1 as a server logs on any stream, where a message may come after the answer and is nobody's then"
    if player.era == "modern" and cell == Cell("rust", "legacy", "http"):
        return "v3.11.0 as a server logs on its session's stream, whence a message may come after the answer"
    return "v1.2.1 as a server logs nothing over HTTP+SSE" if Cell("mcpgo", *SSE) == cell else None


IMPOSSIBLE: Final[dict[str, Callable[[Player, Cell], str | None]]] = {
    "accept": unasked,
    "decline": unasked,
    "dismiss": unasked,
    "sampling": unasked,
    "log": unlogged,
    "level": lambda player, cell: (
        "logging/setLevel is of the handshake eras: a stateless request says itself what it wants to hear"
        if player.era == "modern"
        else unlogged(player, cell)
    ),
    "roots": lambda player, cell: (
        "v1.8.0 as a client takes no embedded `roots/list` without `params`, which the schema has as optional"
        if player.sdk == "go" and player.era == cell.era == "modern" and cell.language != "go"
        else unasked(player, cell)
    ),
    "update": lambda player, cell: (
        "v1.2.1 as a stateless server over HTTP tells no one of an updated resource"
        if cell == Cell("mcpgo", "modern", "http")
        else None
    ),
    "error": lambda player, cell: (
        "v2.1.0 as a server over HTTP hangs up on some calls that it answers with an error, and ends the session"
        if cell.language == "java" and cell.transport != "stdio"
        else None
    ),
    "cancel": lambda player, cell: (
        "v1.2.1 as a handshake client tells a server over HTTP of no cancelled call: it hangs up, which cancels nothing"
        if player.sdk == "mcpgo" and player.era == "legacy" and player.transport != "stdio"
        else "v2.1.0 has no cancellation"
        if "java" in {player.sdk, cell.language}
        else "v1.2.1 sends what belongs to a call on any stream, and so the next client's messages would be nobody's"
        if cell in UNORDERED
        else None
    ),
    "list change": lambda player, cell: (
        "v1.8.0 as a server forgets a connection's subscriptions to lists with the first of its streams that ends"
        if cell == Cell("go", "modern", "stdio")
        else None
    ),
}
"""By behaviour: why a player cannot have it of a cell, or None."""

UNSHARED: Final = "the server tells the session that caused it alone, and the stream is of another replica's session"
ELSEWHERE: Final[dict[str, Callable[[Player, Cell], str | None]]] = {
    "list change": lambda player, cell: (
        UNSHARED if cell.transport == "http" else "the replica that lists next may hear of the change a moment later"
    ),
    "update": lambda player, cell: UNSHARED if cell.transport == "http" and cell.era != player.era else None,
    "cancel": lambda player, cell: (
        "for five seconds after it what a server says is nobody's (requirement R26), and the next player comes sooner"
        if player != LAST
        else None
    ),
}
"""As IMPOSSIBLE, through several replicas."""


def refusal(player: Player, cell: Cell) -> Json:
    """The error of a cell's server, as far as its SDK lets a tool choose it and the player's tells it."""
    if cell.language == "mcpgo":
        return {"code": -32603, "message": "no, and this is why"}
    if player.sdk == "mcpgo":
        return {"code": 0, "message": "no, and this is why"}
    return {"code": -31999, "message": "no, and this is why", "data": {"kept": [1]}}


UNANSWERED: Final = {"rust"}
"""SDKs whose servers do not answer a cancelled call: for a while, what they say on a stream that calls share may be of
it, and so is nobody's."""

SILENT: Final = {"go", "mcpgo"}
"""SDKs whose handshake servers log nothing to a client that has named no level."""


def every_cell(behaviour: str) -> pytest.MarkDecorator:
    possible = [
        pytest.param(name, player, cell, id="-".join([*["replicas"][: cast.replicas > 1], f"{player}-{cell}"]))
        for name, cast in CASTS.items()
        for player, cell in cast.pairs
        if cast.reason(behaviour, player, cell) is None
    ]
    return pytest.mark.parametrize(("cast", "player", "cell"), possible)


@every_cell("call")
def test_a_call_is_answered(transcript: Transcript, cell: Cell) -> None:
    assert said(transcript.met(cell, "call")[0]) == "3"


@every_cell("read")
def test_r27_a_resource_is_read_by_the_uri_that_was_listed(transcript: Transcript, cell: Cell) -> None:
    [contents] = transcript.met(cell, "read")[0]["result"]["contents"]
    assert (contents["uri"], contents["text"]) == (cell.memo, "hello")


@every_cell("progress")
def test_r24_progress_is_reported_while_a_call_lasts(transcript: Transcript, cell: Cell) -> None:
    [step] = transcript.met(cell, "progress")
    assert said(step) == "report: done"
    reports = [report[:2] for report in step["progress"]]
    assert in_order(reports, cell) == [[1, 3], [2, 3], [3, 3]]


@every_cell("cancel")
def test_r25_a_cancelled_call_is_given_up_by_its_server(transcript: Transcript, cell: Cell) -> None:
    cancel, then = transcript.met(cell, "cancel")
    assert cancel["result"] == {"cancelled": True}
    assert said(then) == "given_up: done"


@every_cell("log")
def test_log_messages_of_a_call_reach_its_caller(transcript: Transcript, cell: Cell) -> None:
    assert transcript.levels_of(f"{cell} aloud") == ["info", "warning", "error"]


@every_cell("level")
def test_less_is_logged_where_the_client_wants_less(transcript: Transcript, cell: Cell) -> None:
    assert transcript.levels_of(f"{cell} softly") == ["warning", "error"]


@every_cell("accept")
def test_an_elicitation_is_accepted(transcript: Transcript, cell: Cell) -> None:
    answer = json.loads(said(transcript.met(cell, "accept")[0]))
    assert (answer["action"], answer["content"]) == ("accept", {"name": "Ada"})


@every_cell("decline")
def test_an_elicitation_is_declined(transcript: Transcript, cell: Cell) -> None:
    assert json.loads(said(transcript.met(cell, "decline")[0]))["action"] == "decline"


@every_cell("dismiss")
def test_an_elicitation_is_dismissed(transcript: Transcript, cell: Cell) -> None:
    assert json.loads(said(transcript.met(cell, "dismiss")[0]))["action"] == "cancel"


@every_cell("sampling")
def test_a_server_samples_the_clients_model(transcript: Transcript, cell: Cell) -> None:
    answer = json.loads(said(transcript.met(cell, "sampling")[0]))
    assert (answer["model"], answer["content"]["text"]) == ("fixed", "fine")


@every_cell("roots")
def test_a_server_learns_the_clients_roots(transcript: Transcript, cell: Cell) -> None:
    assert json.loads(said(transcript.met(cell, "roots")[0]))["roots"] == ANSWERS["roots/list"]["roots"]


@every_cell("update")
def test_r22_a_subscriber_hears_of_an_update(transcript: Transcript, cell: Cell) -> None:
    assert cell.memo in [update["params"]["uri"] for update in transcript.notifications(UPDATED)]


@every_cell("list change")
def test_r19_a_changed_list_is_announced_and_then_listed(transcript: Transcript, cell: Cell) -> None:
    _, announced, listed = transcript.met(cell, "list change")
    assert "late" not in announced
    grown = {tool["name"] for tool in listed["result"]["tools"]} - transcript.tools
    assert len([name for name in grown if name.startswith(f"{cell}__grown")]) == 1


@every_cell("failure")
def test_a_tools_failure_is_a_result(transcript: Transcript, cell: Cell) -> None:
    [step] = transcript.met(cell, "failure")
    assert step["result"]["isError"] is True
    assert "it did not work" in said(step)


@every_cell("error")
def test_a_servers_error_comes_through(transcript: Transcript, player: Player, cell: Cell) -> None:
    error = transcript.met(cell, "error")[0]["error"]
    assert error == refusal(player, cell)


@every_cell("large")
def test_r16_a_large_result_comes_through_whole(transcript: Transcript, cell: Cell) -> None:
    assert said(transcript.met(cell, "large")[0]) == "x" * LARGE


@dataclass(frozen=True)
class Transcript:
    """What a player met: of each behaviour of each cell the outcomes of its steps, and all that it was told."""

    tools: frozenset[str]
    """The names that were listed first."""
    steps: dict[tuple[Cell, str], list[Json]]
    heard: list[Json]

    def met(self, cell: Cell, behaviour: str) -> list[Json]:
        return self.steps[cell, behaviour]

    def notifications(self, method: str) -> list[Json]:
        return [notification for notification in self.heard if notification["method"] == method]

    def levels_of(self, who: str) -> list[str]:
        """The levels of the log messages that speak of `who`."""
        lines = [message["params"] for message in self.notifications(LOGGED)]
        return [line["level"] for line in lines if line["data"] == f"{who}: {line['level']}"]


def said(step: Json) -> str:
    assert "result" in step, step
    text: str = step["result"]["content"][0]["text"]
    return text


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def stages(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stages]:
    async with AsyncExitStack() as stack:
        yield Stages(stack, tmp_path_factory)


@pytest.fixture
async def transcript(anyio_backend: str, stages: Stages, cast: str, player: Player) -> Transcript:
    CASTS[cast].need()
    return await (await stages.of(cast)).transcript(player)


@dataclass
class Stages:
    """The stage of each cast, set when it is first needed."""

    stack: AsyncExitStack
    folders: pytest.TempPathFactory
    _set: dict[str, Stage] = field(default_factory=dict)

    async def of(self, cast: str) -> Stage:
        if cast not in self._set:
            self._set[cast] = await Stage.set(self.stack, self.folders.mktemp(cast), CASTS[cast])
        return self._set[cast]


@dataclass
class Stage:
    """One gateway for the players over HTTP, one after another, with every server that one of them meets behind it.
    Those over stdio start a gateway each, with the servers that they meet; such as speak HTTP are the same for all.
    """

    cast: Cast
    clients: Clients
    ways: dict[str, Json]
    """How to connect to the gateway that runs, by the player's transport."""
    folder: Path
    behind_stdio: dict[Cell, Json] = field(default_factory=dict)
    """The settings of each server that a player over stdio meets."""
    _transcripts: dict[Player, Transcript | str] = field(default_factory=dict)
    _clear_at: float = 0.0
    """When no cancelled call of an earlier player can have caused a message, by the event loop's clock."""

    @classmethod
    async def set(cls, stack: AsyncExitStack, folder: Path, cast: Cast) -> Stage:
        clients = Clients()
        stack.push_async_callback(clients.aclose)
        if cast.replicas > 1:
            url = await replicated(stack, folder, cast)
            return cls(cast, clients, {"http": {"url": f"{url}/mcp"}}, folder)
        alone = [player for player in cast.players if player.transport == "stdio"]
        together = [player for player in cast.players if player.transport != "stdio"]
        behind = {str(cell): one for cell, one in (await settings(cast.met_by(*together), stack)).items()}
        running = await stack.enter_async_context(gateway(folder, configuration(behind, list_wait=60)))
        ways: dict[str, Json] = {"http": {"url": f"{running.url}/mcp"}, "sse": {"url": f"{running.url}/sse"}}
        return cls(cast, clients, ways, folder, await settings(cast.met_by(*alone), stack))

    def _transport(self, player: Player) -> Json:
        """What a script says of how to connect."""
        if player.transport in self.ways:
            return {"kind": player.transport, **self.ways[player.transport]}
        folder = self.folder / str(player)
        folder.mkdir(exist_ok=True)
        upstreams = {str(cell): self.behind_stdio[cell] for cell in self.cast.met_by(player)}
        return {"kind": "stdio", "command": command(write(folder, configuration(upstreams, list_wait=60)), "--stdio")}

    async def transcript(self, player: Player) -> Transcript:
        """What `player` met; played once for all tests, which all fail by its failure."""
        if player not in self._transcripts:
            try:
                self._transcripts[player] = await self._play(player)
            except (AssertionError, TimeoutError, anyio.IncompleteRead) as failure:
                self._transcripts[player] = f"{player}: {failure!r}"
        found = self._transcripts[player]
        if isinstance(found, str):
            pytest.fail(found, pytrace=False)
        return found

    async def _play(self, player: Player) -> Transcript:
        cells = self.cast.met_by(player)
        parts = [
            (cell, behaviour, steps(cell))
            for cell, (behaviour, steps) in product(cells, BEHAVIOURS.items())
            if self.cast.reason(behaviour, player, cell) is None
        ]
        opening: list[Json] = [
            {"do": "tools/list"},
            {"do": "listen", "params": {"uris": [cell.memo for cell in cells]}},
        ]
        if player.era == "legacy" and not SILENT.isdisjoint(cell.language for cell in cells):
            opening.append(at_level("info"))
        script = {
            "mode": MODES[player.era],
            "transport": self._transport(player),
            "answers": ANSWERS,
            "steps": opening + [step for *_, steps in parts for step in steps],
        }
        if player.transport != "stdio":
            await anyio.sleep_until(self._clear_at)
        found = json.loads(await self.clients.play(player.sdk, script, within=PATIENCE))
        if not UNANSWERED.isdisjoint(cell.language for cell in cells):
            self._clear_at = anyio.current_time() + LINGER
        outcomes = iter(found["steps"])
        opened = [next(outcomes) for _ in opening]
        assert [outcome.keys() & {"error", "late"} for outcome in opened] == [set()] * len(opening)
        met = {(cell, behaviour): [next(outcomes) for _ in steps] for cell, behaviour, steps in parts}
        for (cell, behaviour), reported in met.items():
            if behaviour == "progress":
                met[cell, behaviour] = await self._whole(reported, player, cell)
        return Transcript(frozenset(tool["name"] for tool in opened[0]["result"]["tools"]), met, found["notifications"])

    async def _whole(self, reported: list[Json], player: Player, cell: Cell) -> list[Json]:
        """The call that reports progress, made again while reports are missing: some clients lose what they read
        together with the answer, which is what a busy machine has them do.
        """
        again = {
            "mode": MODES[player.era],
            "transport": self._transport(player),
            "answers": ANSWERS,
            "steps": [{"do": "tools/list"}, *BEHAVIOURS["progress"](cell)],
        }
        for _ in range(ATTEMPTS):
            [step] = reported
            if "result" not in step or len(step["progress"]) >= REPORTS:
                break
            reported = json.loads(await self.clients.play(player.sdk, again, within=PATIENCE))["steps"][1:]
        return reported


async def replicated(stack: AsyncExitStack, folder: Path, cast: Cast) -> str:
    """The URL of nginx before the replicas."""
    redis = RedisServer(folder, free_port())
    stack.callback(redis.stop)
    await redis.start()
    upstreams = {
        str(cell): {**one, **({"placement": "one"} if cell.transport == "stdio" else {})}
        for cell, one in (await settings(cast.met_by(*cast.players), stack)).items()
    }
    running = await stack.enter_async_context(
        cluster(folder, upstreams, redis.url, size=cast.replicas, list_wait=60, ends_well=False)
    )
    return running.url


async def settings(cells: list[Cell], stack: AsyncExitStack) -> dict[Cell, Json]:
    """The settings of each cell's server, for one gateway at a time: servers tell no other of a changed list."""
    return {cell: await upstream(cell, stack) for cell in cells}


async def upstream(cell: Cell, stack: AsyncExitStack) -> Json:
    """The settings of a cell's server, which is started where the gateway does not do so itself."""
    server = SERVERS[cell.language](cell)
    if cell.transport == "stdio":
        return {"command": server[0], "args": server[1:], "era": cell.era}
    url = await stack.enter_async_context(web_server(*server))
    if cell.transport == "sse":
        return {"url": url.removesuffix("mcp") + "sse", "type": "sse", "era": cell.era}
    return {"url": url, "era": cell.era}
