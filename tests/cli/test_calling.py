"""What commands ask of a gateway in process."""

from __future__ import annotations

import anyio
import pytest
from msgspec import Raw

from mcproxy.call.calls import Call, Complete, Failed, Handler, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Party
from mcproxy.cli.calling import (
    LocalClient,
    RequestRefused,
    call_tool,
    entries,
    entry_row,
    print_contents,
    read_pairs,
    result,
    tool_text,
)
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, ErrorObject, Params, first_level, raw
from mcproxy.protocol.methods import Kind
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

TOOL = {
    "name": "t",
    "inputSchema": {"properties": {"text": {"type": "string"}, "n": {"type": "integer"}, "any": {}}},
}


class Nobody:
    def notify(self, method: str, params: Params) -> None:
        raise AssertionError(method)

    async def ask(self, request: InputRequest) -> Raw:
        raise AssertionError(request.method)


class Gateway:
    """Answers calls with `outcomes`, in order, and keeps them."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.calls: list[Call] = []
        self._outcomes = list(outcomes)

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        return self._outcomes.pop(0)


def client_of(handler: Handler) -> LocalClient:
    return LocalClient(handler, Nobody(), {})


def page(*tools: object, cursor: str | None = None) -> Complete:
    return Complete(first_level({"tools": tools} | ({} if cursor is None else {"nextCursor": cursor})))


async def test_r31_a_list_is_drained_and_the_empty_cursor_is_one() -> None:
    gateway = Gateway(page({"name": "a"}, cursor=""), page({"name": "b"}))
    assert await entries(client_of(gateway), Kind.TOOLS) == [{"name": "a"}, {"name": "b"}]
    assert [call.params for call in gateway.calls] == [{}, {"cursor": raw("")}]


async def test_arguments_are_read_as_the_tools_schema_wants_them() -> None:
    gateway = Gateway(page(TOOL), Complete({}))
    pairs = {"text": "1", "n": "2", "any": '{"a": [true]}', "other": "plain words"}
    with anyio.fail_after(GUARD):
        await call_tool(client_of(gateway), "t", pairs, {"whole": None})
    _, call = gateway.calls
    assert call.params == {
        "name": raw("t"),
        "arguments": raw({"whole": None, "text": "1", "n": 2, "any": {"a": [True]}, "other": "plain words"}),
    }


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"properties": {"sides": {}}}, "warning: t lists no argument 'side'; did you mean 'sides'?\n"),
        ({"properties": {"sides": {}}, "additionalProperties": True}, ""),
        ({"properties": {}}, ""),
        ({}, ""),
    ],
)
async def test_an_argument_that_is_probably_misspelt_is_told_and_sent_all_the_same(
    capsys: pytest.CaptureFixture[str], schema: dict[str, object], told: str
) -> None:
    gateway = Gateway(page({"name": "t", "inputSchema": schema}), Complete({}))
    await call_tool(client_of(gateway), "t", {"side": "3"}, {})
    assert capsys.readouterr().err == told
    assert gateway.calls[1].params["arguments"] == raw({"side": 3})


async def test_without_pairs_a_call_is_one_request() -> None:
    gateway = Gateway(Complete({}))
    await call_tool(client_of(gateway), "t", {}, {"a": 1})
    assert len(gateway.calls) == 1


async def test_a_failure_is_refused_with_its_sentence() -> None:
    gateway = Gateway(Failed(ErrorObject(INVALID_PARAMS, "Unknown tool: t"), Party.CLIENT))
    with pytest.raises(RequestRefused, match="Unknown tool: t"):
        result(await call_tool(client_of(gateway), "t", {}, {}))


@pytest.mark.parametrize("schema", [{}, {"properties": None}, {"properties": {"a": True}}])
def test_any_schema_is_survived(schema: dict[str, object]) -> None:
    assert read_pairs({"a": "1"}, schema) == {"a": 1}


def test_an_entry_is_its_key_and_a_line() -> None:
    assert entry_row(Kind.TEMPLATES, {"uriTemplate": "a://{b}", "description": "one\ntwo"}) == ("a://{b}", "one")
    assert entry_row(Kind.TOOLS, {"name": "t"}) == ("t", "")


def test_a_tools_content_is_shown_block_by_block() -> None:
    blocks = [
        {"type": "text", "text": "hello"},
        {"type": "image", "mimeType": "image/png", "data": "AAAA"},
        {"type": "resource_link", "uri": "git+x:y"},
        {"type": "resource", "resource": {"uri": "u", "text": "inside"}},
        {"type": "hologram"},
    ]
    assert tool_text({"content": blocks}).splitlines() == [
        "hello",
        "[image image/png, 3 bytes]",
        "[resource git+x:y]",
        "inside",
        "[hologram]",
    ]
    assert tool_text({"content": [], "structuredContent": {"a": 1}}) == '{\n  "a": 1\n}'


def test_bytes_are_written_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    print_contents({"contents": [{"uri": "u", "blob": "AAEC"}]})
    assert capfdbinary.readouterr().out == b"\x00\x01\x02"
