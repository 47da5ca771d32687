"""The status page over HTTP: every page, hostile names, forms that are not ours, and who may look."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from mcproxy.access.audit.operator_records import OperatorRecord
from mcproxy.admin.actions import Actions
from mcproxy.admin.health import health_reports
from mcproxy.admin.listener import served
from mcproxy.admin.live_feed import Feed
from mcproxy.admin.measures.audit_usage import UsageReader
from mcproxy.admin.measures.statistics import CallStatistics
from mcproxy.admin.page_values import ReplicaRow
from mcproxy.admin.pages import MAX_FOUND, MAX_PROBLEMS, MAX_USAGE_ROWS, Pages
from mcproxy.admin.status_page import Admit, StatusPage
from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.clients import Listener
from mcproxy.call.errors import Party, Reason
from mcproxy.call.identity import AGGREGATE, ANONYMOUS, Principal
from mcproxy.call.upstreams import Disconnected, LinkState, LoginStatus, UpstreamStatus
from mcproxy.catalog.naming import RefusedEntry, layouts
from mcproxy.catalog.views.merging import merge
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.catalog.views.view import Shown, View
from mcproxy.configuration.problems import Place, Problem, RefusedReload
from mcproxy.protocol.jsonrpc import ErrorObject, first_level, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from mcproxy.telemetry.metrics import Metrics
from tests.admin.test_actions import FakeUpstream
from tests.catalog.whole import expose

pytestmark = pytest.mark.anyio

HOSTILE = "<script>alert(1)</script>\"'&"
TOKEN = "the token of the page"
SECRET = "s3cret-s3cret"
TOOL = {
    "name": "echo",
    "description": f"Says {HOSTILE}",
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": HOSTILE},
            **{name: {"type": "string"} for name in ("token", "key", "p.token")},
        },
    },
}


@dataclass
class FakeWaitingCall:
    """With hostile things in all that a caller or a server chose."""

    id: str = "one"
    principal: str = HOSTILE
    upstream: str = HOSTILE
    name: str = HOSTILE
    shown_arguments: str = HOSTILE
    expires: float = 7.0


@dataclass
class FakeGateway:
    """One upstream, with hostile things in all that it says."""

    settings: Settings = field(
        default_factory=lambda: Settings.model_validate(
            {"upstreams": [{"name": "odd", "prefix": "odd", "command": "x", "env": {"KEY": SECRET}}]}
        )
    )
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    figures: CallStatistics = field(init=False)
    calls: list[Call] = field(default_factory=list)
    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    recorded: list[OperatorRecord] = field(default_factory=list)
    login: LoginStatus | None = None
    cluster: list[ReplicaRow] = field(default_factory=list)
    waits: list[FakeWaitingCall] = field(default_factory=lambda: [FakeWaitingCall()])
    decided: list[tuple[str, bool]] = field(default_factory=list)
    refused_reload: RefusedReload | None = None
    further: list[UpstreamStatus] = field(default_factory=list)
    """Statuses of further upstreams, in front of that of the one."""
    listed: dict[str, int] = field(default_factory=dict)
    """How many tools further upstreams list."""
    audit_file: str | None = None
    outcome: Outcome = field(
        default_factory=lambda: Complete(first_level({"content": [{"type": "text", "text": HOSTILE}]}))
    )

    def __post_init__(self) -> None:
        self.figures = CallStatistics(self.metrics)

    @property
    def handler(self) -> Handler:
        async def answer(call: Call) -> Outcome:
            self.calls.append(call)
            call.client.notify("notifications/message", {"data": raw(HOSTILE)})
            return self.outcome

        return answer

    def statuses(self) -> list[UpstreamStatus]:
        return [
            *self.further,
            UpstreamStatus(
                "odd",
                LinkState.BACKING_OFF,
                1.0,
                "stdio",
                error=HOSTILE,
                stderr=(HOSTILE, "last words"),
                login=self.login,
            ),
        ]

    def catalogue(self, endpoint: str = AGGREGATE) -> View:
        layout = layouts(self.settings.upstreams, 64)[endpoint]
        space = layout.space("odd")
        tools = read_listing("odd", Kind.TOOLS, [raw(TOOL), raw({**TOOL, "name": HOSTILE}), raw(7)])
        resources = read_listing("odd", Kind.RESOURCES, [raw({"uri": "odd:memo", "name": HOSTILE})])
        prompt = {"name": "ask", "arguments": [{"name": HOSTILE, "required": True, "description": HOSTILE}]}
        prompts = read_listing("odd", Kind.PROMPTS, [raw(prompt)])
        templates = read_listing("odd", Kind.TEMPLATES, [raw({"uriTemplate": "odd:{day}", "name": HOSTILE})])
        lists = {
            Kind.TOOLS: expose(space, Kind.TOOLS, tools),
            Kind.RESOURCES: expose(space, Kind.RESOURCES, resources),
            Kind.PROMPTS: expose(space, Kind.PROMPTS, prompts),
            Kind.TEMPLATES: expose(space, Kind.TEMPLATES, templates),
        }
        view = merge(layout, {"odd": None}, {"odd": lists})
        more = tuple(
            Shown(f"{name}__{index}", name, str(index), raw({"name": f"{name}__{index}"}))
            for name, count in self.listed.items()
            for index in range(count)
        )
        return replace(view, lists={**view.lists, Kind.TOOLS: (*view.lists[Kind.TOOLS], *more)})

    def listeners(self) -> Sequence[Listener]:
        return []

    def replicas(self) -> Sequence[ReplicaRow]:
        return self.cluster

    def unapproved(self) -> Sequence[RefusedEntry]:
        return [RefusedEntry("odd", Kind.TOOLS, HOSTILE, "its description changed")]

    def waiting_calls(self) -> Sequence[FakeWaitingCall]:
        return self.waits

    def decide(self, id: str, operator: Principal | None, *, approve: bool) -> str | None:
        self.decided.append((id, approve))
        return None if any(call.id == id for call in self.waits) else "this call waits no more"


def make_calls(gateway: FakeGateway) -> None:
    """Counts calls, failures and a reconnect of the one upstream."""
    metrics = gateway.metrics
    metrics.requests.labels("odd", "tools/call", "echo", "ok").inc(90)
    metrics.requests.labels("odd", "tools/call", "echo", "timeout").inc(3)
    for seconds in (0.02,) * 90 + (3.0,) * 3:
        metrics.duration.labels("odd", "tools/call").observe(seconds)
    metrics.reconnects.labels("odd").inc()


@dataclass
class Site:
    gateway: FakeGateway
    feed: Feed
    http: aiohttp.ClientSession
    url: str

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url + path, allow_redirects=False) as response:
            return response.status, await response.text()

    async def post(self, path: str, **fields: str) -> tuple[int, str]:
        async with self.http.post(self.url + path, data=fields) as response:
            return response.status, await response.text()


@asynccontextmanager
async def site(
    principal: Principal | None = ANONYMOUS, gateway: FakeGateway | None = None, admit: Admit | None = None
) -> AsyncIterator[Site]:
    async def admit_principal(request: web.Request) -> Principal:
        if principal is None:
            raise web.HTTPUnauthorized
        return principal

    gateway = gateway or FakeGateway()
    feed = Feed(1)
    page = StatusPage(
        Pages(gateway, gateway.figures, lambda: {SECRET}, lambda: gateway.refused_reload, TOKEN),
        feed,
        admit or admit_principal,
        Actions(lambda: {"odd": gateway.upstream}, gateway.recorded.append, lambda: 5.0),
        UsageReader(lambda: gateway.audit_file, lambda: NOW),
        lambda name: f"https://gateway.example/connect/{name}",
        admitted_for=0,
    )
    async with served("127.0.0.1", 0, page.routes()) as url, aiohttp.ClientSession() as http:
        yield Site(gateway, feed, http, url)


PAGES = [
    "/ui",
    "/ui/servers/odd",
    "/ui/catalogue",
    "/ui/catalogue?q=says&kind=tool",
    "/ui/catalogue/tool?key=odd__echo",
    "/ui/catalogue/resource?key=odd%2Bodd:memo",
    "/ui/catalogue/prompt?key=odd__ask",
    "/ui/catalogue/template?key=odd%2Bodd:%7Bday%7D",
    "/ui/live",
    "/ui/approvals",
    "/ui/usage",
    "/ui/sessions",
    "/ui/configuration",
]


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_is_there_and_says_nothing_hostile(path: str) -> None:
    async with site() as ui:
        status, text = await ui.get(path)
    assert status == 200
    assert "<script>alert" not in text
    assert SECRET not in text


@pytest.mark.parametrize("path", [*PAGES, "/ui/live/events", "/ui/servers/none"])
async def test_a_principal_that_may_not_look_sees_nothing(path: str) -> None:
    async with site(None) as ui:
        assert (await ui.get(path))[0] == 401
        assert (await ui.post("/ui/catalogue/tool?key=odd__echo", token=TOKEN))[0] == 401
    assert ui.gateway.calls == []


@pytest.mark.parametrize(
    "path", ["/ui/servers/none", "/ui/catalogue/tool?key=none", "/ui/catalogue/none?key=odd__echo"]
)
async def test_an_unknown_page_is_not_found(path: str) -> None:
    async with site() as ui:
        status, text = await ui.get(path)
    assert (status, "Not found" in text) == (404, True)


async def test_the_root_redirects_to_the_fleet() -> None:
    async with site() as ui:
        assert [(await ui.get(path))[0] for path in ("/", "/ui/")] == [303, 303]


async def test_nothing_comes_from_elsewhere_and_nothing_is_kept() -> None:
    async with site() as ui, ui.http.get(f"{ui.url}/ui") as response:
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "unsafe" not in response.headers["Content-Security-Policy"]
        assert response.headers["Cache-Control"] == "no-store"


async def test_the_fleet_tells_why_an_upstream_is_not_there() -> None:
    async with site() as ui:
        _status, text = await ui.get("/ui")
    assert "backing off" in text
    why = re.search(r'<tr class="why"><td colspan="9">(.*?)</tr>', text, re.DOTALL)
    assert why is not None, "a sentence is long: it has the width of the table"
    assert "last words" in why[1]
    assert "0 of 1" in text


async def test_the_fleet_has_servers_in_trouble_first_and_keeps_the_order_of_the_others() -> None:
    names = ["fine", "resting", "starting", "ready"]
    states = [LinkState.READY, LinkState.IDLE, LinkState.CONNECTING, LinkState.READY]
    further = [UpstreamStatus(name, state, 1.0, "stdio") for name, state in zip(names, states, strict=True)]
    async with site(gateway=FakeGateway(further=further)) as ui:
        _status, text = await ui.get("/ui")
    shown = re.findall(r'<th scope="row"><a href="/ui/servers/(\w+)"', text)
    assert shown == ["starting", "odd", "fine", "resting", "ready"]


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_has_a_banner_while_a_reload_is_refused(path: str) -> None:
    problem = Problem("/etc/mcproxy.yaml", f"{HOSTILE} holds {SECRET}", Place(12, 3), ("upstreams", 0))
    async with site() as ui:
        assert "not in force" not in (await ui.get(path))[1]
        ui.gateway.refused_reload = RefusedReload(1_800_000_000.0, (problem,) * (MAX_PROBLEMS + 2))
        _status, text = await ui.get(path)
        assert "not in force" in text
        assert "2027-01-15 08:00:00+00:00" in text
        assert text.count("/etc/mcproxy.yaml:12:3: upstreams.0: &lt;script&gt;") == MAX_PROBLEMS
        assert "2 further" in text
        assert SECRET not in text
        ui.gateway.refused_reload = None
        assert "not in force" not in (await ui.get(path))[1]


@pytest.mark.parametrize("path", ["/ui", "/ui/servers/odd"])
async def test_the_last_hour_is_drawn_and_told_without_a_script(path: str) -> None:
    async with site() as ui:
        make_calls(ui.gateway)
        _status, text = await ui.get(path)
    subject = "odd" if "odd" in path else "All servers"
    assert f'aria-label="{subject}: 93 calls in the last hour, at most 93 in a minute, 1 reconnect"' in text
    assert f'aria-label="{subject}: 3 failed in the last hour, at most 3 in a minute"' in text
    assert ("odd: 93 calls in the last hour, at most 93 in a minute, 1 reconnect, 3 failed" in text) == (path == "/ui")
    assert "The last hour as a table" in text
    assert "style=" not in text


async def test_the_fleet_shows_the_replicas_and_which_of_them_answers() -> None:
    async with site() as ui:
        assert "Replicas" not in (await ui.get("/ui"))[1]
        ui.gateway.cluster = [
            ReplicaRow("a1", "http://10.0.0.1:8100", "1", "live"),
            ReplicaRow("b2", "http://10.0.0.2:8100", "1", "unreachable", ["configuration"]),
        ]
        _status, text = await ui.get("/ui")
    assert "this page is of a1" in text
    assert "http://10.0.0.2:8100" in text
    assert "unreachable" in text
    assert "It differs in configuration." in text


async def test_a_search_finds_by_every_word() -> None:
    async with site() as ui:
        assert "1 found" in (await ui.get("/ui/catalogue?q=ECHO+says&kind=tool"))[1]
        assert "0 found" in (await ui.get("/ui/catalogue?q=echo&kind=prompt"))[1]


async def test_the_catalogue_is_grouped_by_server_in_the_order_of_the_configuration() -> None:
    listed = {"late": 1, "early": 2}
    further = [UpstreamStatus(name, LinkState.READY, 1.0, "stdio") for name in ("early", "empty", "late")]
    async with site(gateway=FakeGateway(further=further, listed=listed)) as ui:
        _status, text = await ui.get("/ui/catalogue?kind=tool")
        assert re.findall(r'<h2 id="server\d"><a href="/ui/servers/(\w+)">\w+</a> <small>(\d) found', text) == [
            ("early", "2"),
            ("late", "1"),
            ("odd", "2"),
        ]
        ui.gateway.listed = {"late": 1, "mcproxy": 1}
        _status, text = await ui.get("/ui/catalogue?q=mcproxy")
        assert "/ui/servers/mcproxy" not in text, "the gateway itself has no such page"
        _status, text = await ui.get("/ui/catalogue?q=late")
        assert "1 found" in text
        assert "/ui/servers/odd" not in text


async def test_a_large_catalogue_is_shown_in_part_and_counted_whole() -> None:
    many = MAX_FOUND + 3
    async with site(gateway=FakeGateway(listed={"many": many})) as ui:
        _status, text = await ui.get("/ui/catalogue")
    assert f"{many + 5} found, the first {MAX_FOUND} shown" in text
    assert text.count('<a href="/ui/catalogue/') == MAX_FOUND
    assert f"<small>{many} found" in text


async def test_a_tool_is_called_as_the_principal_that_uses_the_page() -> None:
    alice = Principal("alice", frozenset({"operator"}))
    async with site(alice) as ui:
        status, text = await ui.post("/ui/catalogue/tool?key=odd__echo", **{"token": TOKEN, "p.text": "hello"})
    (call,) = ui.gateway.calls
    assert status == 200
    assert (call.method, call.caller.principal) == ("tools/call", alice)
    assert json.loads(bytes(call.params["arguments"])) == {"text": "hello"}
    assert "&lt;script&gt;" in text
    assert "<script>alert" not in text


async def test_a_resource_is_read() -> None:
    async with site() as ui:
        await ui.post("/ui/catalogue/resource?key=odd%2Bodd:memo", token=TOKEN)
    assert [call.method for call in ui.gateway.calls] == ["resources/read"]


async def test_a_refusal_is_shown() -> None:
    denied = Failed(ErrorObject(-32602, "Unknown tool: odd__echo"), Party.CLIENT, Reason.DENIED)
    async with site(gateway=FakeGateway(outcome=denied)) as ui:
        _status, text = await ui.post("/ui/catalogue/tool?key=odd__echo", token=TOKEN)
    assert ">Error</h2>" in text
    assert "Unknown tool: odd__echo" in text


async def test_a_form_of_another_page_calls_nothing() -> None:
    async with site() as ui:
        assert (await ui.post("/ui/catalogue/tool?key=odd__echo", token="guessed"))[0] == 403
        assert (await ui.post("/ui/catalogue/tool?key=odd__echo"))[0] == 403
    assert ui.gateway.calls == []


async def test_events_pass_and_watchers_are_bounded() -> None:
    async with site() as ui, ui.http.get(f"{ui.url}/ui/live/events") as response:
        assert (await ui.get("/ui/live/events"))[0] == 503
        ui.feed.on_event(Disconnected("odd", None, f"{HOSTILE}\n\ndata: forged"))
        line = await response.content.readline()
        passing = json.loads(line.removeprefix(b"data: "))
        assert passing["outcome"] == f"{HOSTILE}\n\ndata: forged"
        assert await response.content.readline() == b"\n"


async def test_r9_the_feed_of_a_gateway_that_stops_ends_at_once_and_admits_no_watcher() -> None:
    async with site() as ui, ui.http.get(f"{ui.url}/ui/live/events") as response:
        ui.feed.on_event(Disconnected("odd", None, "last"))
        ui.feed.close()
        assert b"last" in await response.content.read()
        assert (await ui.get("/ui/live/events"))[0] == 503


async def test_a_watcher_whose_key_was_revoked_sees_nothing_more() -> None:
    allowed = [ANONYMOUS]

    async def admit(request: web.Request) -> Principal:
        if not allowed:
            raise web.HTTPUnauthorized
        return allowed[0]

    async with site(admit=admit) as ui, ui.http.get(f"{ui.url}/ui/live/events") as response:
        ui.feed.on_event(Disconnected("odd", None, "before"))
        assert b"before" in await response.content.readline()
        allowed.clear()
        ui.feed.on_event(Disconnected("odd", None, "after"))
        assert b"after" not in await response.content.read()


async def test_only_what_is_ours_is_served() -> None:
    async with site() as ui:
        assert (await ui.get("/ui/static/style.css"))[0] == 200
        assert (await ui.get("/ui/static/..%2Fui.py"))[0] == 404


async def test_subscriptions_are_counted_by_the_upstream_that_they_are_of() -> None:
    async with site() as ui:
        ui.gateway.metrics.subscriptions.labels("odd", "clients").set(3)
        assert "odd <b>3</b>" in (await ui.get("/ui/sessions"))[1]


@pytest.mark.parametrize("path", ["/ui", "/ui/static/style.css", "/metrics", "/healthz", "/nothing"])
async def test_r42_nothing_is_served_under_a_foreign_host(path: str) -> None:
    def refuse(request: web.Request) -> None:
        raise web.HTTPMisdirectedRequest

    health = health_reports(FakeGateway().metrics, list)
    async with (
        served("127.0.0.1", 0, [], health, refuse) as url,
        aiohttp.ClientSession() as http,
        http.get(url + path) as response,
    ):
        assert response.status == 421


async def test_calls_with_long_arguments_fill_no_page_beyond_its_room() -> None:
    long = "x" * 90_000
    async with site() as ui:
        waits = ui.gateway.waits = [
            FakeWaitingCall(str(index), f"caller {index}", shown_arguments=long) for index in range(9)
        ]
        _status, text = await ui.get("/ui/approvals")
        assert text.count(long) == text.count('value="allow"') == 3
        assert all(f"caller {index}" in text for index in range(9)), "who waits is always seen"
        del waits[1:]
        assert "Further calls" not in (await ui.get("/ui/approvals"))[1]


async def test_an_operator_decides_on_a_call_that_waits() -> None:
    async with site() as ui:
        status, text = await ui.post("/ui/approvals", token=TOKEN, id="one", decision="allow")
        assert (status, "Decided." in text) == (200, True)
        _status, text = await ui.post("/ui/approvals", token=TOKEN, id="gone", decision="deny")
        assert "waits no more" in text
        assert (await ui.post("/ui/approvals", token="guessed", id="one", decision="allow"))[0] == 403
        assert (await ui.post("/ui/approvals", token=TOKEN, id="one", decision="maybe"))[0] == 400
        assert ui.gateway.decided == [("one", True), ("gone", False)]


@pytest.mark.parametrize("name", ["token", "key", "p.token"])
async def test_a_parameter_may_have_the_name_of_a_field_of_ours(name: str) -> None:
    async with site() as ui:
        status, page = await ui.get("/ui/catalogue/tool?key=odd__echo")
        assert f'name="p.{name}"' in page
        await ui.post("/ui/catalogue/tool?key=odd__echo", **{"token": TOKEN, f"p.{name}": "mine"})
        (call,) = ui.gateway.calls
    assert status == 200
    assert bytes(call.params["arguments"]) == f'{{"{name}":"mine"}}'.encode()


async def test_a_button_restarts_a_server_and_says_who_did_it() -> None:
    async with site(Principal("ops")) as page:
        _, text = await page.get("/ui/servers/odd")
        assert 'formaction="/ui/servers/odd/restart"' in text
        status, text = await page.post("/ui/servers/odd/restart", token=TOKEN)
        assert (status, "odd" in text) == (200, True), "back at the page of the server"
        await page.post("/ui/servers/odd/retry", token=TOKEN)
        assert page.gateway.upstream.done == ["restart", "retry"]
        assert page.gateway.recorded == [
            OperatorRecord(5.0, "ops", "restart", "odd"),
            OperatorRecord(5.0, "ops", "retry", "odd"),
        ]


LOGIN = LoginStatus(
    is_per_principal=False,
    is_for_people=True,
    state="the access token serves",
    issuers=("https://as.example",),
    expires_at=1_800_000_000.0,
    reason=HOSTILE,
    logged_in=1,
    awaited=0,
)


async def test_a_servers_login_is_shown_made_and_forgotten() -> None:
    async with site(Principal("ops"), FakeGateway(login=LOGIN)) as page:
        _, text = await page.get("/ui/servers/odd")
        assert "the access token serves" in text
        assert "https://as.example" in text
        assert "2027-01-15 08:00:00+00:00" in text
        assert HOSTILE not in text
        async with page.http.get(f"{page.url}/ui/servers/odd/login", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (303, "https://gateway.example/connect/odd")
        assert (await page.post("/ui/servers/odd/forget-login"))[0] == 403
        assert (await page.post("/ui/servers/odd/forget-login", token=TOKEN))[0] == 200
        assert page.gateway.upstream.done == ["forget login"]
        assert page.gateway.recorded == [OperatorRecord(5.0, "ops", "forget login", "odd")]


async def test_the_logins_of_principals_are_counted_and_none_is_made_for_them() -> None:
    own = msgspec.structs.replace(LOGIN, is_per_principal=True, logged_in=7, awaited=2)
    async with site(gateway=FakeGateway(login=own)) as page:
        _, text = await page.get("/ui/servers/odd")
    assert "7 logged in" in text
    assert "forget-login" not in text
    assert "/login" not in text


async def test_r42_a_button_of_another_site_does_nothing() -> None:
    async with site() as page:
        assert (await page.post("/ui/servers/odd/restart"))[0] == 403
        assert (await page.post("/ui/servers/odd/restart", token="guessed"))[0] == 403
        assert (await page.get("/ui/servers/odd/restart"))[0] == 405, "a link cannot do it"
        assert (await page.post("/ui/servers/none/restart", token=TOKEN))[0] == 404
        assert page.gateway.upstream.done == []


async def test_an_approval_says_until_when_it_can_be_given() -> None:
    async with site() as ui:
        _, text = await ui.get("/ui/approvals")
    assert "1970-01-01 00:00:07" in text


async def test_an_entry_leads_to_the_server_that_has_it() -> None:
    async with site() as ui:
        _, text = await ui.get("/ui/catalogue/tool?key=odd__echo")
    assert '<a href="/ui/servers/odd">odd</a>' in text


NOW = 1795348860.0
AUDITED = "2026-11-22T12:00:00.000+00:00"


def audit(folder: Path, *lines: Mapping[str, object]) -> str:
    """An audit log of calls within the last minute; its path."""
    plain = {"time": AUDITED, "outcome": "ok", "method": "tools/call", "upstream": "odd", "bytes_in": 1, "bytes_out": 2}
    file = folder / "audit.jsonl"
    file.write_text("".join(json.dumps({**plain, **line}) + "\n" for line in lines))
    return str(file)


async def test_usage_is_summed_by_what_an_operator_chooses_and_names_are_escaped(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"principal": HOSTILE, "subject": "echo", "bytes_in": 1_234_567},
        {"principal": HOSTILE, "subject": HOSTILE, "outcome": "denied"},
        {"principal": "bob", "subject": "echo", "outcome": "timeout", "time": "2026-10-30T12:00:00.000+00:00"},
    ]
    async with site(gateway=FakeGateway(audit_file=audit(tmp_path, *lines))) as ui:
        status, page = await ui.get("/ui/usage")
        assert status == 200
        assert HOSTILE not in page
        assert "1\u202f234\u202f568" in page
        assert "bob" not in page
        assert '<option value="7d" selected>' in page
        _, page = await ui.get("/ui/usage?by=day&since=all")
        assert re.findall(r'class="name">([\d-]+)<', page) == ["2026-11-22", "2026-10-30"]
        _, page = await ui.get("/ui/usage?by=outcome&and=principal&since=30d")
        assert re.findall(r'<th scope="row" class="name">(\w+)<', page) == ["denied", "ok", "timeout"]


async def test_usage_takes_only_the_columns_and_times_that_there_are(tmp_path: Path) -> None:
    async with site(gateway=FakeGateway(audit_file=audit(tmp_path, {"subject": "echo"}))) as ui:
        for query in ("by=__class__&and=x&since=1e9", "by=&and=&since=", "by=tool&and=tool"):
            status, page = await ui.get(f"/ui/usage?{query}")
            assert (status, '<option value="7d" selected>' in page) == (200, True)


async def test_a_page_of_usage_is_bounded(tmp_path: Path) -> None:
    lines = [{"principal": f"caller {number}", "subject": "echo"} for number in range(MAX_USAGE_ROWS + 7)]
    gateway = FakeGateway(audit_file=audit(tmp_path, *lines), listed={"many": MAX_USAGE_ROWS + 3})
    async with site(gateway=gateway) as ui:
        _, page = await ui.get("/ui/usage?by=principal")
        assert page.count('<th scope="row"') == MAX_USAGE_ROWS
        assert f"{MAX_USAGE_ROWS} of {MAX_USAGE_ROWS + 7}" in page
        assert page.count("<li>") == MAX_USAGE_ROWS


async def test_tools_that_were_not_called_are_named_with_their_bytes(tmp_path: Path) -> None:
    async with site(gateway=FakeGateway(audit_file=audit(tmp_path, {"subject": "echo"}))) as ui:
        _, page = await ui.get("/ui/usage")
        idle = page.partition("Never called")[2]
        assert "odd/echo" not in idle
        assert idle.count("<li>") == 1


async def test_without_an_audit_log_the_page_of_usage_says_what_to_set() -> None:
    async with site() as ui:
        status, page = await ui.get("/ui/usage")
        assert (status, "set access.audit.file" in page) == (200, True)
