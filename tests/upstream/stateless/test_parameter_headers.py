"""Which tool parameters go into headers, as the lists that pass by say."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from mcproxy.call.calls import Call
from mcproxy.call.errors import McpError
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.concurrency.turns import at_once
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.jsonrpc import Params, first_level, raw
from mcproxy.protocol.methods import METHODS
from mcproxy.upstream.stateless.parameter_headers import MAX_TOOLS, ParameterHeaders, next_page
from tests.fakes.upstream import FakeClient
from tests.upstream.support import decoded


def tool(name: str, **headers: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "x-mcp-header": header} for key, header in headers.items()}
    return {"name": name, "inputSchema": {"type": "object", "properties": properties}}


def call(name: str, **arguments: str) -> Params:
    return {"name": raw(name), "arguments": raw(arguments)}


def test_a_tool_seen_in_a_list_has_its_parameters_mirrored() -> None:
    mirrored = ParameterHeaders("u")
    page = first_level({"tools": [tool("query", region="Region"), tool("plain")]})
    assert at_once(mirrored.note(page)) is page
    assert mirrored.headers(METHODS["tools/call"], call("query", region="eu", sql="x")) == {"Mcp-Param-Region": "eu"}
    assert mirrored.headers(METHODS["tools/call"], call("plain", region="eu")) == {}
    assert mirrored.headers(METHODS["prompts/get"], call("query", region="eu")) == {}


def test_the_newest_list_counts() -> None:
    mirrored = ParameterHeaders("u")
    at_once(mirrored.note(first_level({"tools": [tool("query", region="Region"), tool("other", a="A")]})))
    at_once(mirrored.note(first_level({"tools": [tool("query", region="Place")]})))
    at_once(mirrored.note(first_level({"tools": [tool("other")]})))
    assert mirrored.headers(METHODS["tools/call"], call("query", region="eu")) == {"Mcp-Param-Place": "eu"}
    assert mirrored.headers(METHODS["tools/call"], call("other", a="1")) == {}


def test_a_tool_with_an_invalid_annotation_is_left_out_and_the_rest_is_kept() -> None:
    page = first_level(
        {"tools": [tool("good"), tool("bad", region="no header"), {"odd": 1}], "nextCursor": "2", "_meta": {}}
    )
    assert decoded(raw(at_once(ParameterHeaders("u").note(page)))) == {
        "tools": [tool("good"), {"odd": 1}],
        "nextCursor": "2",
        "_meta": {},
    }


@pytest.mark.anyio
async def test_r89_arguments_with_headers_name_no_member_twice() -> None:
    mirrored = ParameterHeaders("u")
    at_once(mirrored.note(first_level({"tools": [tool("query", region="Region"), tool("plain")]})))

    def calling(name: str, arguments: bytes) -> Call:
        params = {"name": raw(name), "arguments": Raw(arguments)}
        return Call(METHODS["tools/call"], params, Caller(ANONYMOUS, LATEST), FakeClient())

    with pytest.raises(McpError, match="names the member 'region' twice"):
        await mirrored.check(calling("query", b'{"region":"eu","r\\u0065gion":"us"}'))
    await mirrored.check(calling("query", b'{"region":"eu","a":{"region":"us"}}'))
    await mirrored.check(calling("plain", b'{"region":"eu","region":"us"}'))  # it has no headers


def test_what_is_no_list_of_tools_passes() -> None:
    for page in (first_level({}), first_level({"tools": 1}), first_level({"tools": [1]})):
        assert at_once(ParameterHeaders("u").note(page)) is page


def test_the_empty_cursor_is_a_cursor() -> None:
    assert next_page(first_level({"nextCursor": ""})) == {"cursor": raw("")}
    assert next_page(first_level({"tools": []})) is None


def test_beyond_so_many_annotated_tools_the_first_listed_give_way() -> None:
    mirrored = ParameterHeaders("u")
    at_once(mirrored.note(first_level({"tools": [tool("first", a="A"), tool("second", a="A")]})))
    at_once(mirrored.note(first_level({"tools": [tool("first", a="A")]})))
    at_once(mirrored.note(first_level({"tools": [tool(f"t{number}", a="A") for number in range(MAX_TOOLS - 1)]})))
    assert mirrored.headers(METHODS["tools/call"], call("first", a="1")) == {"Mcp-Param-A": "1"}
    assert mirrored.headers(METHODS["tools/call"], call("second", a="1")) == {}


def test_a_tool_that_is_annotated_no_more_is_forgotten_though_its_list_has_no_annotation() -> None:
    mirrored = ParameterHeaders("u")
    at_once(mirrored.note(first_level({"tools": [tool("query", region="Region")]})))
    at_once(mirrored.note(first_level({"tools": [tool("query")]})))
    assert mirrored.headers(METHODS["tools/call"], call("query", region="eu")) == {}


def test_an_annotation_with_escapes_in_its_name_is_one() -> None:
    page = bytes(raw([tool("query", region="Region")])).replace(b"x-mcp-header", rb"x\u002dmcp-header")
    mirrored = ParameterHeaders("u")
    at_once(mirrored.note({"tools": Raw(page)}))
    assert mirrored.headers(METHODS["tools/call"], call("query", region="eu")) == {"Mcp-Param-Region": "eu"}
