"""Lists of the last run are served until the server has connected, and those of this run are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from mcproxy.access.pins import approved
from mcproxy.call.calls import Complete
from mcproxy.call.clients import ListChanged
from mcproxy.call.identity import Principal
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import PinSettings
from tests.fakes.upstream import FakeUpstream, House, complete, decoded, error, house, quiet, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SERVER = {"command": "run", "args": ["x"]}


def server(*names: str) -> FakeUpstream:
    upstream = FakeUpstream("git", tools={"listChanged": True})
    upstream.lists[Kind.TOOLS] = [tool(name) for name in names]
    return upstream


async def names(it: House, **call: Any) -> list[str]:
    outcome = await it.call("tools/list", **call)
    assert isinstance(outcome, Complete)
    return [each["name"] for each in msgspec.json.decode(msgspec.json.encode(outcome.result["tools"]))]


async def saved(it: House, state: Path, before: int = 0) -> None:
    """Waits until the lists have been written."""
    with anyio.fail_after(GUARD):
        while not [path for path in (state / "lists").glob("[!.]*") if path.stat().st_mtime_ns > before]:
            it.sleeper.wake()
            await anyio.sleep(0.001)  # a thread writes


async def one_run(state: Path, *tools: str, **options: Any) -> None:
    async with house(server(*tools), state=state, options={"git": SERVER}, **options) as it:
        await it.ready()
        await saved(it, state)


async def test_lists_of_the_last_run_are_served_before_the_server_has_connected(tmp_path: Path) -> None:
    await one_run(tmp_path, "a", "b")
    async with house(server("a", "b"), state=tmp_path, options={"git": SERVER}) as it:
        assert await names(it) == ["git__a", "git__b"]
        assert not it["git"].calls
        it["git"].answers["tools/call"] = lambda call: Complete({"content": raw([])})
        assert isinstance(await it.call("tools/call", name="git__a", arguments={}), Complete)


async def test_lists_that_differ_replace_remembered_ones(tmp_path: Path) -> None:
    await one_run(tmp_path, "a")
    async with house(server("c"), state=tmp_path, options={"git": SERVER}) as it:
        listener = it.listener()
        assert await names(it, listener=listener) == ["git__a"]
        await it.ready()
        await quiet()
        assert ListChanged(Kind.TOOLS) in listener.changes
        assert await names(it) == ["git__c"]


@pytest.mark.parametrize(
    "changed",
    [
        {"command": "other"},
        {"args": ["y"]},
        {"env": {"A": "b"}},
        {"command": None, "args": [], "url": "https://a.example/mcp"},
    ],
)
async def test_a_server_that_was_changed_is_not_remembered(tmp_path: Path, changed: dict[str, Any]) -> None:
    await one_run(tmp_path, "a")
    options = {key: value for key, value in {**SERVER, **changed}.items() if value is not None}
    async with house(server("a"), state=tmp_path, options={"git": options}, list_wait=0) as it:
        assert await names(it) == []


async def test_another_version_of_the_program_is_not_remembered(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text("one")
    options = {"git": {"command": "run", "args": [str(program)]}}
    async with house(server("a"), state=tmp_path / "state", options=options) as it:
        await it.ready()
        await saved(it, tmp_path / "state")
    program.write_text("another")
    async with house(server("a"), state=tmp_path / "state", options=options, list_wait=0) as it:
        assert await names(it) == []


async def test_filters_apply_to_remembered_lists(tmp_path: Path) -> None:
    await one_run(tmp_path, "a", "b")
    filtered = {"git": {**SERVER, "tools": {"exclude": ["b"]}}}
    async with house(server("a", "b"), state=tmp_path, options=filtered) as it:
        assert await names(it) == ["git__a"]


async def test_policy_applies_to_remembered_lists(tmp_path: Path) -> None:
    await one_run(tmp_path, "a", "b")
    roles = {"reader": {"allow": [{"tools": ["b"]}]}}
    options = {"git": SERVER}
    async with house(server("a", "b"), state=tmp_path, options=options, access={"policy": {"roles": roles}}) as it:
        it["git"].answers["tools/call"] = lambda call: complete(content=[])
        reader = Principal("ann", roles=frozenset({"reader"}))
        assert await names(it, principal=reader) == ["git__b"]
        assert error(await it.call("tools/list", principal=Principal("bob"))).code == METHOD_NOT_FOUND
        assert error(await it.call("tools/call", principal=reader, name="git__a")).code == INVALID_PARAMS
        assert decoded(await it.call("tools/call", principal=reader, name="git__b")) == {"content": []}


def pinned(*tools: dict[str, object]) -> dict[str, object]:
    """Access in which exactly these tools of the server are approved."""
    lock = {"git": approved(None, {Kind.TOOLS: {str(each["name"]): raw(each) for each in tools}})}
    return {"pins": PinSettings(mode="enforce").holding(lock)}


async def test_r45_pins_apply_to_remembered_lists(tmp_path: Path) -> None:
    await one_run(tmp_path, "a", "b")
    access = pinned(tool("a"), tool("b", description="as it was approved"))
    async with house(server("a", "b"), state=tmp_path, options={"git": SERVER}, access=access) as it:
        assert await names(it) == ["git__a"]
        assert error(await it.call("tools/call", name="git__b")).code == INVALID_PARAMS
        assert it["git"].count("tools/call") == 0


async def test_r45_a_remembered_tool_is_compared_again_before_it_is_called(tmp_path: Path) -> None:
    access = pinned(tool("a"), tool("b"))
    await one_run(tmp_path, "a", "b", access=access)
    upstream = server("a")
    upstream.lists[Kind.TOOLS] = [tool("a"), tool("b", description="changed since")]
    upstream.answers["tools/call"] = lambda call: complete(content=[])
    async with house(upstream, state=tmp_path, options={"git": SERVER}, access=access) as it:
        assert await names(it) == ["git__a", "git__b"]
        assert error(await it.call("tools/call", name="git__b")).code == INVALID_PARAMS
        assert upstream.count("tools/call") == 0
        assert decoded(await it.call("tools/call", name="git__a")) == {"content": []}


async def test_nothing_is_remembered_where_it_is_turned_off(tmp_path: Path) -> None:
    await one_run(tmp_path, "a")
    async with house(server("a"), state=tmp_path, options={"git": SERVER}, remember_lists=False, list_wait=0) as it:
        assert await names(it) == []


async def test_a_file_that_was_tampered_with_is_ignored(tmp_path: Path) -> None:
    await one_run(tmp_path, "a")
    (path,) = (tmp_path / "lists").iterdir()
    text = path.read_text()
    assert "git" not in text
    path.write_text(text[:-4] + ("AAAA" if text[-4:] != "AAAA" else "BBBB"))
    async with house(server("a"), state=tmp_path, options={"git": SERVER}, list_wait=0) as it:
        assert await names(it) == []


async def test_remembered_lists_of_a_server_that_is_gone_end_with_the_grace_period(tmp_path: Path) -> None:
    await one_run(tmp_path, "a")
    async with house(server("a"), state=tmp_path, options={"git": SERVER}, list_wait=0) as it:
        it["git"].disconnect()
        await quiet()
        assert await names(it) == ["git__a"]
        it.sleeper.wake()
        await quiet()
        assert await names(it) == []


async def test_the_first_list_over_stdio_waits_longer() -> None:
    async with house(server("a"), list_wait=0, list_wait_first=GUARD) as it:
        async with anyio.create_task_group() as tasks:
            found: list[list[str]] = []

            async def ask() -> None:
                found.append(await names(it, transport="stdio"))

            tasks.start_soon(ask)
            await quiet()
            assert not found
            it["git"].connect()
        assert found == [["git__a"]]
