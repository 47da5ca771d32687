"""Params and results that two JSON parsers read in two ways: who judges them and who gets them see the same value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from msgspec import Raw

from mcproxy.call.calls import Complete
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.json.repeated_members import SHORT
from mcproxy.protocol.jsonrpc import INVALID_PARAMS, Request, encode, parse_message, raw
from mcproxy.protocol.methods import Kind
from tests.fakes.upstream import complete, decoded, error, quiet, settings_of
from tests.features.hooks.test_hooks import ALICE, gateway, rm, sent, service

pytestmark = pytest.mark.anyio

FILLER = '"' + "x" * SHORT + '"'

TWICE = {
    "plain": '{"path":"/etc/shadow","path":"/safe/x"}',
    "escaped": r'{"path":"/etc/shadow","p\u0061th":"/safe/x"}',
    "escaped without \\u": r'{"a/b":1,"a\/b":2}',
    "spaced": '{ "path" : "/etc/shadow",\n\t"path" :\r\n "/safe/x" }',
    "nested": '{"path":"/safe/x","options":{"as":"root","as":"nobody"}}',
    "in a list": '{"paths":[{"p":1},{"p":1,"p":2}]}',
    "behind a number that is too large": '{"n":1e999,"path":"/etc/shadow","path":"/safe/x"}',
    "behind many digits": '{"n":' + "1" * 5000 + ',"path":1,"path":2}',
    "behind a long text": f'{{"path":1,"text":{FILLER},"path":2}}',
    "under a long name": f"{{{FILLER}:1,{FILLER}:2}}",
    "behind escaped quotes": r'{"a":"\"}","b":"\\","path":1,"path":2}',
    "empty": '{"":1,"":2}',
    "composed and decomposed": '{"caf\u00e9":1,"cafe\u0301":2}',
    "composed and decomposed, escaped": r'{"caf\u00e9":1,"cafe\u0301":2}',
    "cut at NUL": r'{"path":1,"path\u0000":2}',
    "one value twice": '{"path":1,"path":1}',
}
ONCE = {
    "equal names in two objects": '{"a":{"b":1},"c":{"b":1},"b":[{"b":1},{"b":2}]}',
    "names as texts": '{"path":"path","a":["path","path",":path"],"b":"\\"path\\":"}',
    "large numbers": '{"a":1e999,"b":-0,"c":0.10000000000000000000000000001,"d":' + "9" * 500 + "}",
    "escapes": r'{"caf\u00e9":"\u00e9","b":"\ud83d\ude00","c":"\u0000"}',
    "other letters": '{"größe":"größe","名":{"名":"\u0301"}}',
    "cases": '{"path":1,"Path":2}',
    "long": f'{{"a":{FILLER},"b":{FILLER},"c":[{FILLER},{{"a":1}}],{FILLER}:1}}',
    "spaced": '{ "a" : 1 , "b" : [ { } , { "a" : 2 } ] }',
}
ANYTHING = {"roles": {"everyone": {"allow": [{"tools": ["never"], "arguments": {"a": {"equals": 1}}}, {}]}}}
"""A policy that allows everything, with a condition on arguments."""
SCAN = {"on": ["tools/call", "prompts/get", "resources/read"]}


@pytest.mark.parametrize("arguments", TWICE.values(), ids=TWICE.keys())
async def test_r89_a_member_that_comes_twice_in_arguments_reaches_neither_hook_nor_server(arguments: str) -> None:
    async with service() as it, gateway({"url": it.url, **SCAN}) as h:
        h["up"].list_changed(Kind.PROMPTS, [{"name": "ask"}])
        await quiet()
        for method, name in (("tools/call", "up__rm"), ("prompts/get", "up__ask")):
            refusal = error(await h.call(method, name=name, arguments=Raw(arguments.encode())))
            assert refusal.code == INVALID_PARAMS
            assert refusal.message.startswith('"arguments" names the member ')
            assert refusal.message.endswith(" twice: send each member once")
            assert h["up"].count(method) == 0
        assert it.told == []


@pytest.mark.parametrize("arguments", ONCE.values(), ids=ONCE.keys())
async def test_r89_what_a_hook_is_told_is_what_the_server_gets(arguments: str) -> None:
    async with service() as it, gateway({"url": it.url}) as h:
        assert isinstance(await h.call("tools/call", name="up__rm", arguments=Raw(arguments.encode())), Complete)
        (call,) = (call for call in h["up"].calls if call.method == "tools/call")
        assert bytes(call.params["arguments"]) == arguments.encode()
        assert len(it.told) == 1


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/read", {"uri": "up+file:///a", "_meta": '{"k":{"a":1,"a":2}}'}),
        ("completion/complete", {"ref": '{"type":"ref/prompt","name":"up__ask"}', "argument": '{"name":1,"name":2}'}),
        ("completion/complete", {"ref": '{"type":"ref/prompt","name":"up__ask","name":"x"}', "argument": "{}"}),
        ("tools/call", {"name": "up__rm", "inputResponses": '{"a":{"action":"decline","action":"accept"}}'}),
        ("x/unknown", {"what": '{"a":1,"\\u0061":2}'}),
    ],
)
@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_r89_no_param_of_any_method_holds_a_member_twice(
    method: str, params: dict[str, str], version: str
) -> None:
    async with gateway(policy=ANYTHING) as h:
        given: dict[str, Any] = {
            key: Raw(value.encode()) if value[0] == "{" else value for key, value in params.items()
        }
        refusal = error(await h.call(method, version=version, **given))
        assert refusal.message.endswith(" twice: send each member once")
        assert h["up"].count(method) == 0


async def test_r89_a_member_that_comes_twice_is_refused_through_tools_that_call_others() -> None:
    async with gateway(policy=ANYTHING) as h:
        inner = '{"name":"up__rm","arguments":{"path":"/etc/shadow","path":"/safe/x"}}'
        refusal = error(await h.call("tools/call", name="call_write", arguments=Raw(inner.encode())))
        assert "'path' twice" in refusal.message
        assert sent(h) == []


async def test_the_audit_says_that_a_call_with_a_member_twice_was_refused(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    audit = {"file": str(file), "arguments": "redacted"}
    async with gateway(audit=audit) as h, h.gateway.audit.running():
        await h.call("tools/call", name="up__rm", arguments=Raw(TWICE["plain"].encode()))
        await h.call("tools/call", name="up__rm", arguments=Raw(b'{"path":"/a","n":1e999}'))
    refused, made = map(json.loads, file.read_text().splitlines())
    assert (refused["outcome"], refused["code"]) == ("protocol_error", INVALID_PARAMS)
    assert (made["outcome"], made["arguments"]) == ("ok", {"path": "/a", "n": "1e999"})


async def test_of_a_member_that_comes_twice_in_a_message_one_is_read_and_that_one_alone_sent() -> None:
    message = parse_message(
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"a","params":{"x":1},"method":"b","params":{"y":1,"y":2}}'
    )
    assert message == Request(2, "b", {"y": raw(2)})
    assert encode(message) == b'{"jsonrpc":"2.0","id":2,"method":"b","params":{"y":2}}'


async def test_a_long_search_for_repeated_members_lets_others_have_their_turn() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with gateway(policy=ANYTHING) as h, anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        arguments = b'{"a":[' + b'{"b":0},' * 50_000 + b'{"b":0,"b":1}]}'
        assert "'b' twice" in error(await h.call("tools/call", name="up__rm", arguments=Raw(arguments))).message
        tasks.cancel_scope.cancel()
    assert turns > len(arguments) // SHORT


async def test_more_names_than_can_be_compared_are_refused() -> None:
    async with gateway(policy=ANYTHING) as h:
        arguments = b"{" + b",".join(b'"%d":0' % number for number in range(100_001)) + b"}"
        refusal = error(await h.call("tools/call", name="up__rm", arguments=Raw(arguments)))
        assert "has more than 100000 members in its objects" in refusal.message


async def test_r89_a_reload_by_which_params_are_judged_refuses_them_from_then_on() -> None:
    async with gateway() as h:
        arguments = Raw(TWICE["plain"].encode())
        await h.call("tools/call", name="up__rm", arguments=arguments)
        assert h["up"].count("tools/call") == 1  # nobody looks at them
        fixed = {"tools": {"overrides": {"rm": {"arguments": {"path": {"description": "A path."}}}}}}
        h.gateway.reconfigure(settings_of({"up": fixed}), h.upstreams)
        assert "'path' twice" in error(await h.call("tools/call", name="up__rm", arguments=arguments)).message


# Results


@pytest.mark.parametrize("mode", ["enforce", "audit"])
@pytest.mark.parametrize("fail", ["closed", "open"])
async def test_r89_a_result_that_can_be_read_in_two_ways_is_judged_by_no_hook(mode: str, fail: str) -> None:
    text = b'[{"type":"text","text":"harmless","text":"secret"}]'
    async with service() as it, gateway({"url": it.url, "phase": "after", "mode": mode, "fail": fail}) as h:
        h["up"].answers["tools/call"] = lambda call: Complete({"content": Raw(text)})
        outcome = await rm(h)
        if mode == "audit":
            assert isinstance(outcome, Complete)
            assert bytes(outcome.result["content"]) == text
        else:
            assert "secret" not in str(decoded_or_error(outcome))
            assert it.told == []


def decoded_or_error(outcome: Any) -> object:
    return decoded(outcome) if isinstance(outcome, Complete) else error(outcome).message


async def test_a_result_with_each_member_once_passes_its_hook_unchanged() -> None:
    async with service() as it, gateway({"url": it.url, "phase": "after"}) as h:
        given = complete(content=[{"type": "text", "text": "é\u0000" + "x" * SHORT}], structuredContent={"a": {"a": 1}})
        h["up"].answers["tools/call"] = lambda call: given
        assert await rm(h) == given
        assert len(it.told) == 1
        assert len(sent(h)) == 1
        assert ALICE.name == it.told[0]["principal"]
