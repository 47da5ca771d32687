"""What `find_tools` and `describe_tools` answer, at an endpoint whose tools are found by search."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from mcproxy.call.calls import Complete, Outcome
from mcproxy.call.identity import Principal
from mcproxy.features.search.answer_texts import MAX_TEXT
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import METHOD_NOT_FOUND
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import FakeUpstream, House, decoded, error, house, tool

pytestmark = pytest.mark.anyio

LOG = tool(
    "log",
    description="Shows the history of commits.",
    annotations={"readOnlyHint": True},
    inputSchema={"type": "object", "properties": {"repo": {"type": "string"}}, "required": ["repo"]},
)
TOOLS = [LOG, tool("push", description="Sends commits."), tool("app", _meta={"ui": {"visibility": ["app"]}})]
ROLES = {"guest": {"deny": [{"tools": ["push"]}]}}
ACCESS = {"policy": {"default": "allow", "roles": ROLES, "principals": {"eve": ["guest"]}}}


@asynccontextmanager
async def searched(
    tools: Sequence[object] = TOOLS, access: object = None, options: Any = None, **endpoint: object
) -> AsyncIterator[House]:
    git = FakeUpstream("git")
    git.lists[Kind.TOOLS] = tools
    endpoints = {"agent": {"discovery": "search", **endpoint}}
    async with house(git, access=access, endpoints=endpoints, options=options) as gateway:
        await gateway.ready()
        yield gateway


async def ask(gateway: House, name: str, version: str = LATEST, who: str = "anonymous", **arguments: object) -> Outcome:
    return await gateway.call(
        "tools/call", endpoint="/agent", version=version, principal=Principal(who), name=name, arguments=arguments
    )


def text(outcome: Outcome) -> str:
    content = decoded(outcome)["content"]
    assert isinstance(content, list)
    (block,) = content
    return str(block["text"])


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_a_search_gives_signatures_the_best_first(version: str) -> None:
    async with searched() as gateway:
        found = text(await ask(gateway, "find_tools", version, query="history of commits"))
        assert found.splitlines() == [
            "git__log(repo: str) - Shows the history of commits. [call_read]",
            "git__push() - Sends commits. [call_destructive]",
        ]


async def test_r80_what_the_policy_denies_is_neither_found_nor_described() -> None:
    async with searched(access=ACCESS) as gateway:
        assert "git__push" not in text(await ask(gateway, "find_tools", who="eve", query="push commits"))
        assert text(await ask(gateway, "describe_tools", who="eve", names=["git__push"])) == "Unknown tool: git__push"
        assert "git__push" in text(await ask(gateway, "find_tools", who="ann", query="push commits"))


async def test_a_tool_for_apps_alone_is_listed_and_never_found() -> None:
    async with searched() as gateway:
        assert "git__app" in await gateway.listed(Kind.TOOLS, endpoint="/agent")
        assert "git__app" not in text(await ask(gateway, "find_tools", query="app"))
        assert text(await ask(gateway, "describe_tools", names=["git__app"])) == "Unknown tool: git__app"


async def test_where_nothing_is_found_the_servers_are_named() -> None:
    async with searched() as gateway:
        found = text(await ask(gateway, "find_tools", query="xyzzy"))
        assert found == "No tool was found. Try other words, or the name of a server: git."


async def test_tools_with_other_names_and_descriptions_are_found_by_these() -> None:
    override = {"log": {"name": "annals", "description": "Chronicles."}}
    async with searched(options={"git": {"tools": {"overrides": override}}}) as gateway:
        assert text(await ask(gateway, "find_tools", query="chronicles")).startswith("git__annals(repo: str) - Chronic")
        assert text(await ask(gateway, "find_tools", query="history")).startswith("No tool")


async def test_no_more_is_told_than_the_budget_has_room_for() -> None:
    many = [tool(f"list_{number}", description="Lists " + "many things " * 10) for number in range(10)]
    async with searched(many, search={"max_tokens": 100, "results": 8}) as gateway:
        lines = text(await ask(gateway, "find_tools", query="list")).splitlines()
        assert sum(len(line) + 1 for line in lines[:-1]) <= 400
        assert lines[-1] == f"({8 - (len(lines) - 1)} more: ask for fewer, or with other words)"


async def test_a_model_chooses_how_many_within_the_limit() -> None:
    many = [tool(f"list_{number}") for number in range(60)]
    async with searched(many, search={"max_tokens": 10_000}) as gateway:
        assert len(text(await ask(gateway, "find_tools", query="list", limit=3)).splitlines()) == 3
        assert len(text(await ask(gateway, "find_tools", query="list", limit=1000)).splitlines()) == 50
        assert len(text(await ask(gateway, "find_tools", query="list")).splitlines()) == 10


async def test_a_description_is_the_very_entry_that_a_list_would_hold() -> None:
    async with searched() as gateway:
        whole = await gateway.call("tools/list", version=LATEST)
        entry = text(await ask(gateway, "describe_tools", names=["git__log"])).removeprefix("call_read: ")
        assert isinstance(whole, Complete)
        assert entry.encode() in bytes(whole.result["tools"])


async def test_unknown_names_are_told_beside_known_ones() -> None:
    async with searched() as gateway:
        outcome = await ask(gateway, "describe_tools", names=["nope", "git__log", "nope"])
        assert text(outcome).endswith("\n\nUnknown tool: nope")
        assert text(outcome).count("nope") == 1
        assert isinstance(outcome, Complete)
        assert not outcome.is_error


async def test_definitions_that_do_not_fit_are_named_and_are_described_apart() -> None:
    long = [tool(f"t{number}", description="x" * (MAX_TEXT // 3)) for number in range(5)]
    async with searched(long) as gateway:
        names = [f"git__t{number}" for number in range(5)]
        told = text(await ask(gateway, "describe_tools", names=names))
        assert len(told) < MAX_TEXT + 500
        assert [name for name in names if f'"name":"{name}"' in told] == names[:2]
        note = told.rpartition("\n\n")[2]
        assert note.startswith("Left out, as there is no room for more here: git__t2 (1")
        assert all(f"{name} (" in note for name in names[2:])
        assert '"name":"git__t4"' in text(await ask(gateway, "describe_tools", names=names[4:]))


async def test_a_definition_longer_than_an_answer_is_read_in_pieces() -> None:
    async with searched([tool("big", description="\u00e4b\u20ac" * MAX_TEXT)]) as gateway:
        whole = await gateway.call("tools/list", version=LATEST)
        assert isinstance(whole, Complete)
        read, start = "", 0
        for _ in range(10):
            told = text(await ask(gateway, "describe_tools", names=["git__big"], start=start))
            piece, _, note = told.removeprefix("call_destructive: ").rpartition("\n")
            assert len(piece.encode()) <= MAX_TEXT
            read += piece
            following = re.search(r"ask again with start (\d+) ", note)
            if following is None:
                break
            start = int(following[1])
        assert bytes(whole.result["tools"]) == f"[{read}]".encode()


@pytest.mark.parametrize("start", [-5, 0, 1e300, 10**400, 5])
async def test_a_start_beyond_the_definition_is_its_end(start: float) -> None:
    async with searched() as gateway:
        told = text(await ask(gateway, "describe_tools", names=["git__log"], start=start))
        size = len(text(await ask(gateway, "describe_tools", names=["git__log"])).removeprefix("call_read: "))
        assert told.endswith("}" if start <= 0 else f"[bytes {min(start, size)} to {size} of {size}]")


async def test_a_limit_too_large_to_be_read_is_the_largest() -> None:
    async with searched() as gateway:
        call = b'{"query":"commits","limit":1e400}'
        assert "git__log" in text(await ask_with(gateway, "find_tools", Raw(call)))


@pytest.mark.parametrize(
    ("name", "arguments", "wrong"),
    [
        ("find_tools", {}, "'query' is required"),
        ("find_tools", {"query": 5}, "'query' must be of type string"),
        ("find_tools", {"query": "x", "limit": "many"}, "'limit' must be of type integer"),
        ("describe_tools", {"names": "git__log"}, "'names' must be of type array"),
        ("describe_tools", {"names": [1]}, "'names' must be a list of 1 to 20 names"),
        ("describe_tools", {"names": []}, "'names' must be a list of 1 to 20 names"),
        ("call_read", {}, "'name' is required"),
        ("call_read", {"name": "git__log", "repo": "x"}, "'repo' is not a parameter"),
        ("call_write", {"name": "git__log", "arguments": "{}"}, "'arguments' must be of type object"),
    ],
)
async def test_wrong_arguments_are_answered_with_the_schema(
    name: str, arguments: dict[str, object], wrong: str
) -> None:
    async with searched() as gateway:
        outcome = await ask_with(gateway, name, arguments)
        assert isinstance(outcome, Complete)
        assert outcome.is_error
        assert text(outcome).startswith(f"Wrong arguments: {wrong}. The input schema is: {{")


async def ask_with(gateway: House, name: str, arguments: object) -> Outcome:
    return await gateway.call("tools/call", endpoint="/agent", version=LATEST, name=name, arguments=arguments)


async def test_arguments_that_are_no_object_are_answered_with_the_schema() -> None:
    async with searched() as gateway:
        assert text(await ask_with(gateway, "find_tools", "commits")).startswith(
            'Wrong arguments: the member "arguments" must'
        )


async def test_the_gateways_own_tools_are_no_tasks() -> None:
    git = FakeUpstream("git", tools={}, tasks={"requests": {"tools": {"call": {}}}})
    async with house(git, endpoints={"agent": {"discovery": "search"}}) as gateway:
        await gateway.ready()
        outcome = await gateway.call(
            "tools/call", endpoint="/agent", name="find_tools", arguments={"query": "x"}, task={}
        )
        assert error(outcome).code == METHOD_NOT_FOUND


async def test_elsewhere_the_gateways_own_tools_do_not_exist() -> None:
    async with searched() as gateway:
        outcome = await gateway.call("tools/call", version=LATEST, name="find_tools", arguments={"query": "x"})
        assert error(outcome).message == "Unknown tool: find_tools"


async def test_searches_are_counted_by_what_follows_them() -> None:
    async with searched() as gateway:
        gateway["git"].answers["tools/call"] = lambda call: Complete({})
        await ask(gateway, "find_tools", query="commits")
        await ask(gateway, "find_tools", query="history")
        await ask_with(gateway, "call_read", {"name": "git__log", "arguments": {"repo": "x"}})
        ends = {
            followed: gateway.metrics.registry.get_sample_value("mcproxy_searches_total", {"followed": followed})
            for followed in ("called", "none")
        }
        assert ends == {"called": 1, "none": 1}
