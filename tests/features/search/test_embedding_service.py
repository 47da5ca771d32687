"""A service of vectors is asked as OpenAI's API has it, and never trusted: in front of a real server on loopback."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from aiohttp import web

from mcproxy.features.search.embedding_service import EmbeddingFailed, EmbeddingService
from mcproxy.settings.embeddings import EmbeddingSettings
from tests.fakes.embeddings import Respond, fake_embeddings, vector

pytestmark = pytest.mark.anyio

GENEROUS = 60.0


async def ask(respond: Respond, texts: list[str], seconds: float = GENEROUS, **settings: object) -> list[list[float]]:
    async with fake_embeddings(respond) as fake:
        service = EmbeddingService(EmbeddingSettings.model_validate(fake.settings(**settings)))
        try:
            rows: list[list[float]] = (await service(texts, seconds)).tolist()
            return rows
        finally:
            await service.aclose()


async def test_each_text_has_its_vector_in_order() -> None:
    async with fake_embeddings() as fake:
        service = EmbeddingService(EmbeddingSettings.model_validate(fake.settings()))
        rows = (await service(["car car", "rain \ud800"], GENEROUS)).tolist()
        await service.aclose()
    assert fake.asked == [{"model": "small", "input": ["car car", "rain ?"], "encoding_format": "float"}]
    assert rows[0].index(max(rows[0])) == vector("car").index(1.0)
    assert rows[1].index(max(rows[1])) == vector("rain").index(1.0)


def of(*vectors: object) -> Respond:
    """Answers with these vectors, numbered."""

    async def respond(body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"data": [{"index": n, "embedding": one} for n, one in enumerate(vectors)]})

    return respond


def saying(text: str, status: int = 200) -> Respond:
    async def respond(body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text=text, status=status)

    return respond


async def redirect(body: dict[str, Any]) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("respond", "why"),
    [
        (of([1.0]), "has not one vector for each text"),
        (of([1.0], [1.0], [1.0]), "has not one vector for each text"),
        (saying('{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'), "has not one vector"),
        (of([1.0], [1.0, 2.0]), "of different lengths"),
        (of([], []), "vectors are empty"),
        (of([1.0] * 9, [1.0] * 9), "too long"),
        (of([0.0], [1.0]), "only zeros"),
        (of([True], [1.0]), "no list of vectors"),
        (of("AAAA", "AAAA"), "no list of vectors"),
        (saying('{"data": [{"index": 0, "embedding": [NaN]}, {"index": 1, "embedding": [1]}]}'), "no list of vectors"),
        (saying('{"data": [{"index": 0, "embedding": [1e999]}, {"index": 1, "embedding": [1]}]}'), "list|finite"),
        (saying("[" * 60_000), "no list of vectors"),
        (saying("no JSON"), "no list of vectors"),
        (saying("{}", 500), "HTTP 500"),
        (redirect, "HTTP 302"),
        (saying(" " * 1_000_000), "has more than"),
    ],
)  # fmt: skip
async def test_an_answer_that_does_not_count_fails(respond: Respond, why: str) -> None:
    with pytest.raises(EmbeddingFailed, match=why):
        await ask(respond, ["one", "two"], max_dimensions=8)


async def test_a_service_that_does_not_answer_in_time_fails() -> None:
    async def hang(body: dict[str, Any]) -> web.StreamResponse:
        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(EmbeddingFailed, match=r"no answer in 0\.01 s"):
        await ask(hang, ["one"], 0.01)


async def test_a_service_that_is_away_fails() -> None:
    async with fake_embeddings() as fake:
        settings = EmbeddingSettings.model_validate(fake.settings())
    service = EmbeddingService(settings)
    with pytest.raises(EmbeddingFailed):
        await service(["one"], GENEROUS)
    await service.aclose()
