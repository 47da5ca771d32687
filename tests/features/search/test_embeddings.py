"""Searches by meaning beside those by words, through a whole gateway and a service of vectors on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from mcproxy.call.clients import ListChanged
from mcproxy.call.identity import Principal
from mcproxy.catalog.search.ranking import ToolText
from mcproxy.features.search.embeddings import MAX_TEXT, embedded_text, fused
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.methods import Kind
from mcproxy.settings import Settings
from tests.fakes.embeddings import FakeEmbeddings, fake_embeddings, well
from tests.fakes.upstream import FakeUpstream, House, decoded, house, tool

pytestmark = pytest.mark.anyio

GUARD = 120
TOOLS = [
    tool("rent", description="Books a vehicle."),
    tool("sky", description="Says the forecast of a city."),
    tool("post", description="Sends a letter."),
    tool("hidden", description="Sells a vehicle."),
]
ROLES = {"guest": {"deny": [{"tools": ["hidden"]}]}}
ACCESS = {"policy": {"default": "allow", "roles": ROLES, "principals": {"eve": ["guest"]}}}  # fmt: skip


@asynccontextmanager
async def searched(fake: FakeEmbeddings, **settings: object) -> AsyncIterator[House]:
    upstream = FakeUpstream("u")
    upstream.lists[Kind.TOOLS] = TOOLS

    async def soon(seconds: float) -> None:
        await anyio.sleep(0.01)

    with anyio.fail_after(GUARD):
        async with house(
            upstream,
            access=ACCESS,
            endpoints={"agent": {"discovery": "search"}},
            sleep=soon,
            embeddings=fake.settings(**settings),
        ) as gateway:
            await gateway.ready()
            yield gateway


async def find(gateway: House, query: str, who: str = "anonymous") -> list[str]:
    """The tools that a search finds."""
    outcome = await gateway.call(
        "tools/call",
        endpoint="/agent",
        version=LATEST,
        principal=Principal(who),
        name="find_tools",
        arguments={"query": query},
    )
    content: Any = decoded(outcome)["content"]
    lines = content[0]["text"].splitlines()
    return [line.partition("(")[0].removeprefix("u__") for line in lines if line.startswith("u__")]


def value(gateway: House, name: str, labels: Mapping[str, str] | None = None) -> float:
    return gateway.metrics.registry.get_sample_value(name, dict(labels or {})) or 0


def texts(fake: FakeEmbeddings) -> list[str]:
    return [text for asked in fake.asked for text in asked["input"]]


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(GUARD):
        while not condition():  # noqa: ASYNC110  # a metric tells nobody that it changed
            await anyio.sleep(0.005)


async def embedded(gateway: House, count: int) -> None:
    await until(lambda: value(gateway, "mcproxy_embedded_texts") == count)


async def test_a_tool_is_found_by_what_it_means_once_there_are_vectors() -> None:
    async with fake_embeddings() as fake, searched(fake) as gateway:
        assert await find(gateway, "umbrella") == []
        await embedded(gateway, 4)
        assert (await find(gateway, "umbrella"))[0] == "sky"
        assert (await find(gateway, "send a letter"))[0] == "post"
        rankings = {by: value(gateway, "mcproxy_search_rankings_total", {"by": by}) for by in ("both", "words")}
        assert rankings == {"both": 2, "words": 1}
        assert value(gateway, "mcproxy_embedding_requests_total", {"outcome": "ok"}) == 3


async def test_texts_are_posted_in_batches_once_for_all_views_that_have_them() -> None:
    async with fake_embeddings() as fake, searched(fake, max_batch=3) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        assert [len(asked["input"]) for asked in fake.asked] == [3, 1]
        assert (await find(gateway, "car", "eve"))[0] == "rent"
        assert [asked["input"] for asked in fake.asked[2:]] == [["car"]]


async def test_r80_what_a_caller_may_not_use_is_not_found_by_its_meaning() -> None:
    async with fake_embeddings() as fake, searched(fake) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        assert set((await find(gateway, "car"))[:2]) == {"rent", "hidden"}
        found = await find(gateway, "car", "eve")
        assert found[0] == "rent"
        assert "hidden" not in found


async def test_where_the_service_fails_words_alone_rank_and_it_is_told_once() -> None:
    broken = True

    async def sometimes(body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=503) if broken else await well(body)

    async with fake_embeddings(sometimes) as fake, searched(fake) as gateway:
        with capture_logs() as logs:
            assert await find(gateway, "vehicle") == ["rent", "hidden"]
            await until(lambda: value(gateway, "mcproxy_embedding_requests_total", {"outcome": "failed"}) == 1)
            assert await find(gateway, "vehicle") == ["rent", "hidden"]
            assert len(fake.asked) == 1
            gateway.clock.now += 1000
            await until(lambda: value(gateway, "mcproxy_embedding_requests_total", {"outcome": "failed"}) == 2)
            broken = False
            gateway.clock.now += 1000
            await embedded(gateway, 4)
        said = [(line["log_level"], line["event"]) for line in logs if "embedding" in line["event"]]
        assert said == [
            ("warning", "the embedding service failed: searches go by words alone"),
            ("info", "the embedding service answers again"),
        ]
        assert (await find(gateway, "umbrella"))[0] == "sky"


async def test_a_query_for_which_the_service_fails_is_searched_by_words() -> None:
    async with fake_embeddings() as fake, searched(fake) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        fake.respond = refuse
        assert await find(gateway, "vehicle") == ["rent", "hidden"]
        asked = len(fake.asked)
        assert await find(gateway, "letter") == ["post"]
        assert len(fake.asked) == asked
        fake.respond = well
        gateway.clock.now += 1000
        assert (await find(gateway, "umbrella"))[0] == "sky"


async def refuse(body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=429)


async def test_vectors_of_another_length_count_as_failed_and_are_made_anew() -> None:
    async def longer(body: dict[str, Any]) -> web.StreamResponse:
        data = [{"index": number, "embedding": [1.0] * 7} for number, _ in enumerate(body["input"])]
        return web.json_response({"data": data})

    async with fake_embeddings() as fake, searched(fake) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        fake.respond = longer
        assert await find(gateway, "vehicle") == ["rent", "hidden"]
        assert value(gateway, "mcproxy_embedded_texts") == 0
        gateway.clock.now += 1000
        await find(gateway, "vehicle")
        await embedded(gateway, 4)
        assert len(await find(gateway, "vehicle")) == 4


async def test_a_view_with_more_vectors_than_there_is_room_for_is_searched_by_words() -> None:
    async with fake_embeddings() as fake, searched(fake, max_bytes=2 * 4 * 4, max_batch=1) as gateway:
        await find(gateway, "car")
        await until(lambda: len(texts(fake)) == 4)
        await embedded(gateway, 2)
        assert await find(gateway, "umbrella") == []
        assert await find(gateway, "letter") == ["post"]
        assert len(texts(fake)) == 4


async def test_r78_texts_of_lists_that_are_gone_do_not_wait_for_a_service_that_is_away() -> None:
    async with fake_embeddings() as fake, searched(fake, max_bytes=4 * 4 * 4) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        fake.respond = refuse
        assert await find(gateway, "vehicle") == ["rent", "hidden"]
        for version in range(5):
            names = [f"v{version}t{number}" for number in range(4)]
            gateway["u"].lists[Kind.TOOLS] = [tool(name) for name in names]
            gateway["u"].announce(ListChanged(Kind.TOOLS))
            await until(lambda names=names: {f"u__{name}" for name in names} <= set(gateway.names(Kind.TOOLS)))  # type: ignore[misc]
            await find(gateway, names[0])
        before = len(texts(fake))
        fake.respond = well
        gateway.clock.now += 1000
        await until(lambda: any(text.startswith("u: v4t3") for text in texts(fake)[before:]))
        assert {text.split()[1] for text in texts(fake)[before:]} == {f"v4t{number}" for number in range(4)}


async def test_a_reload_keeps_vectors_unless_the_model_is_another() -> None:
    async with fake_embeddings() as fake, searched(fake) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        reload(gateway, fake.settings(timeout=50))
        assert (await find(gateway, "umbrella"))[0] == "sky"
        assert len(texts(fake)) == 5
        reload(gateway, fake.settings(model="large"))
        assert await find(gateway, "umbrella") == []
        await embedded(gateway, 4)
        assert fake.asked[-1]["model"] == "large"
        reload(gateway, None)
        assert await find(gateway, "umbrella") == []
        assert value(gateway, "mcproxy_embedded_texts") == 0


def reload(gateway: House, embeddings: object) -> None:
    given = gateway.settings.model_dump(mode="json", exclude_unset=True)
    given["proxy"] = {"embeddings": embeddings}
    gateway.gateway.reconfigure(Settings.model_validate(given), gateway.upstreams)


async def test_only_so_many_queries_are_posted_at_once() -> None:
    began, go_on = anyio.Event(), anyio.Event()

    async def slow(body: dict[str, Any]) -> web.StreamResponse:
        began.set()
        await go_on.wait()
        return await well(body)

    async with fake_embeddings() as fake, searched(fake, max_concurrent=1) as gateway:
        await find(gateway, "car")
        await embedded(gateway, 4)
        fake.respond = slow
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(find, gateway, "umbrella")
            await began.wait()
            assert await find(gateway, "letter") == ["post"]
            go_on.set()


def test_two_rankings_become_one() -> None:
    assert fused([[5, 1, 2], [2, 7]], 10) == [2, 5, 1, 7]
    assert fused([[3, 1], [1, 3]], 2) == [1, 3]
    assert fused([[3, 1], [1, 3]], 1) == [1]


def test_a_vector_is_made_of_the_beginning_of_what_callers_see() -> None:
    assert embedded_text(ToolText("log", "Log", "Shows.", "repo", "Where.", "git")) == "git: log\nLog\nShows.\nrepo"
    assert len(embedded_text(ToolText("log", description="x" * 9000))) == MAX_TEXT
