"""Which handler answers what."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mcproxy.http import server as http


async def one(request: http.Request, found: Mapping[str, str]) -> http.Response:
    return http.Response(200)


async def other(request: http.Request, found: Mapping[str, str]) -> http.Response:
    return http.Response(200)


ROUTER = http.PathRouter(
    [
        http.Route("POST", "/mcp/{name}", one),
        http.Route("GET", "/mcp/fixed", other),
        http.Route("GET", "/well-known/{rest...}", other),
    ]
)


class Unused:
    most = 0


def asked(method: str, target: str) -> http.Request:
    return http.Request(Unused(), method, target, http.Headers())  # type: ignore[arg-type]  # it has no client


@pytest.mark.parametrize(
    ("target", "name"), [("/mcp/a", "a"), ("/mcp/a?b=/c", "a"), ("/mcp/a%20b", "a b"), ("/mcp/a%2Fb", "a/b")]
)
def test_a_name_is_one_segment_decoded(target: str, name: str) -> None:
    handler, found = ROUTER.find(asked("POST", target))
    assert handler is one
    assert found == {"name": name}


def test_a_path_without_names_goes_first() -> None:
    assert ROUTER.find(asked("GET", "/mcp/fixed"))[0] is other
    with pytest.raises(http.MethodNotAllowed) as caught:
        ROUTER.find(asked("POST", "/mcp/fixed"))
    assert caught.value.allowed == "GET"


def test_the_rest_may_be_anything() -> None:
    assert ROUTER.find(asked("GET", "/well-known/a/b"))[1] == {"rest": "a/b"}


@pytest.mark.parametrize("target", ["/mcp/", "/mcp/a/b", "/", "*", "/MCP/a", "/well-known"])
def test_what_is_not_there_is_not_found(target: str) -> None:
    with pytest.raises(http.NotFound):
        ROUTER.find(asked("POST", target))
