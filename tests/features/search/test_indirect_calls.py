"""Calls through `call_read`, `call_write` and `call_destructive`: each is the one call of the tool itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from mcproxy.access.audit.audit_log import AuditLog
from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.identity import Caller, Principal
from mcproxy.features import features_of
from mcproxy.features.search.answer_texts import MAX_TEXT
from mcproxy.features.search.indirect_calls import unwrap
from mcproxy.gateway.gateway import Gateway
from mcproxy.gateway.input.bridge import input_required
from mcproxy.protocol.eras import LATEST, LATEST_HANDSHAKE
from mcproxy.protocol.jsonrpc import LIMIT_EXCEEDED, Params, raw
from mcproxy.protocol.methods import Kind, row_of
from mcproxy.sealing import Sealer
from mcproxy.settings.access.audit import AuditSettings
from mcproxy.telemetry.metrics import Metrics
from tests.fakes.upstream import FakeClient, FakeUpstream, House, complete, decoded, error, house, settings_of, tool
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"repo": {"type": "string"}}, "required": ["repo"]}
TOOLS = [
    tool("log", annotations={"readOnlyHint": True}, inputSchema=SCHEMA, outputSchema={"type": "object"}),
    tool("add", annotations={"destructiveHint": False}),
    tool("reset"),
    tool("app", _meta={"ui": {"visibility": ["app"]}}),
]
KINDS = {"git__log": "call_read", "git__add": "call_write", "git__reset": "call_destructive"}
REPO = {"repo": "x"}
RESULT = b'{"content":[],"structuredContent":{"a": 1.0,  "b":"\\u00e4"},"_meta":{"x/y":[1, 2]},"isError":false}'


def git() -> FakeUpstream:
    upstream = FakeUpstream("git")
    upstream.lists[Kind.TOOLS] = TOOLS
    upstream.answers["tools/call"] = lambda call: Complete(msgspec.json.decode(RESULT, type=dict[str, msgspec.Raw]))
    return upstream


@asynccontextmanager
async def searched(upstream: FakeUpstream | None = None, access: object = None) -> AsyncIterator[House]:
    async with house(upstream or git(), access=access, endpoints={"agent": {"discovery": "search"}}) as gateway:
        await gateway.ready()
        yield gateway


async def through(
    gateway: House,
    via: str,
    name: str,
    arguments: object = None,
    version: str = LATEST,
    capabilities: Params | None = None,
    **params: object,
) -> Outcome:
    given = {"name": name, **({} if arguments is None else {"arguments": arguments})}
    raw_params = {key: raw(value) for key, value in {"name": via, "arguments": given, **params}.items()}
    caller = Caller(Principal("ann"), version, capabilities or {}, endpoint="/agent")
    with anyio.fail_after(GUARD):
        return await gateway.gateway.handler(Call(row_of("tools/call"), raw_params, caller, FakeClient()))


def text(outcome: Outcome) -> str:
    content = decoded(outcome)["content"]
    assert isinstance(content, list)
    return str(content[0]["text"])


@pytest.mark.parametrize("version", [LATEST, LATEST_HANDSHAKE])
async def test_a_result_is_the_very_bytes_of_a_direct_call(version: str) -> None:
    async with searched() as gateway:
        indirect = await through(gateway, "call_read", "git__log", REPO, version)
        direct = await gateway.call("tools/call", endpoint="/agent", version=version, name="git__log", arguments=REPO)
        assert isinstance(indirect, Complete)
        assert isinstance(direct, Complete)
        assert indirect.result == direct.result
        assert bytes(indirect.result["structuredContent"]) == b'{"a": 1.0,  "b":"\\u00e4"}'
        first, second = gateway["git"].calls[-2:]
        assert first.params == second.params


@pytest.mark.parametrize("via", ["call_read", "call_write", "call_destructive"])
@pytest.mark.parametrize(("name", "right"), KINDS.items())
async def test_each_caller_takes_its_own_kind_of_tool_and_names_the_right_one(via: str, name: str, right: str) -> None:
    async with searched() as gateway:
        outcome = await through(gateway, via, name, REPO)
        called = gateway["git"].count("tools/call")
        if via == right:
            assert called == 1
        else:
            assert called == 0
            assert text(outcome) == f"{name} is not for {via}: call it with {right}."
            assert isinstance(outcome, Complete)
            assert outcome.is_error


async def test_wrong_arguments_are_answered_with_the_schema_of_the_tool() -> None:
    async with searched() as gateway:
        outcome = await through(gateway, "call_read", "git__log", {"repo": 5})
        assert text(outcome).startswith("Wrong arguments: 'repo' must be of type string. The input schema is: ")
        assert msgspec.json.decode(text(outcome).partition("The input schema is: ")[2]) == SCHEMA
        assert gateway["git"].count("tools/call") == 0


async def test_a_schema_too_long_to_be_told_is_described_in_pieces() -> None:
    upstream = FakeUpstream("git")
    long = {**SCHEMA, "description": "x" * MAX_TEXT}
    upstream.lists[Kind.TOOLS] = [tool("log", annotations={"readOnlyHint": True}, inputSchema=long)]
    async with searched(upstream) as gateway:
        told = text(await through(gateway, "call_read", "git__log", {}))
        assert told == (
            "Wrong arguments: 'repo' is required. "
            f"The input schema is left out, as it has {len(raw(long))} bytes: describe_tools gives it for git__log."
        )


@pytest.mark.parametrize("name", ["git__nope", "nope", "git__app"])
async def test_what_is_not_there_is_unknown_as_in_a_direct_call(name: str) -> None:
    async with searched() as gateway:
        assert error(await through(gateway, "call_destructive", name)).message == f"Unknown tool: {name}"


async def test_the_gateways_own_tools_are_not_called_through_each_other() -> None:
    async with searched() as gateway:
        outcome = await through(gateway, "call_read", "find_tools", {"query": "x"})
        assert text(outcome) == "find_tools is called directly, not through call_read."


async def test_a_tool_whose_upstream_connects_late_is_called() -> None:
    upstream = git()
    async with house(upstream, endpoints={"agent": {"discovery": "search"}}) as gateway:
        outcome = await through(gateway, "call_read", "git__log", REPO)
        assert isinstance(outcome, Complete)
        assert upstream.count("tools/call") == 1


async def test_an_upstream_that_is_away_is_said_to_be() -> None:
    upstream = git()
    upstream.reachable = False
    async with house(upstream, endpoints={"agent": {"discovery": "search"}}) as gateway:
        assert "connection refused" in error(await through(gateway, "call_read", "git__log", REPO)).message


async def test_r80_the_policy_judges_the_tool_and_its_arguments() -> None:
    rules = {"allow": [{"tools": ["log"], "arguments": {"repo": {"equals": "mine"}}}]}
    access = {"policy": {"default": "deny", "roles": {"everyone": rules}}}
    async with searched(access=access) as gateway:
        assert error(await through(gateway, "call_read", "git__log", REPO)).message == "Unknown tool: git__log"
        assert isinstance(await through(gateway, "call_read", "git__log", {"repo": "mine"}), Complete)
        assert error(await through(gateway, "call_destructive", "git__reset")).message == "Unknown tool: git__reset"


async def test_limits_and_metrics_count_the_tool_once() -> None:
    access = {"limits": {"rules": {"few": {"tools": ["log"], "rate": "1/h"}}}}
    async with searched(access=access) as gateway:
        assert isinstance(await through(gateway, "call_read", "git__log", REPO), Complete)
        assert error(await through(gateway, "call_read", "git__log", REPO)).code == LIMIT_EXCEEDED
        labels = {"upstream": "git", "method": "tools/call", "subject": "git__log"}
        counted = {
            outcome: gateway.metrics.registry.get_sample_value("mcproxy_requests_total", {**labels, "outcome": outcome})
            for outcome in ("ok", "rate_limited")
        }
        assert counted == {"ok": 1, "rate_limited": 1}
        sizes = gateway.metrics.registry.get_sample_value(
            "mcproxy_result_bytes_count", {"upstream": "git", "subject": "git__log"}
        )
        assert sizes == 1


async def test_an_endpoint_that_a_reload_lets_search_has_its_callers_at_once() -> None:
    upstream = git()
    async with house(upstream, endpoints={"agent": {}}) as gateway:
        await gateway.ready()
        assert error(await through(gateway, "call_read", "git__log", REPO)).message == "Unknown tool: call_read"
        gateway.gateway.reconfigure(
            settings_of({"git": {}}, endpoints={"agent": {"discovery": "search"}}), {"git": upstream}
        )
        assert isinstance(await through(gateway, "call_read", "git__log", REPO), Complete)


async def test_the_audit_names_the_tool_and_what_it_was_called_through(tmp_path: Path) -> None:
    upstream, metrics, file = git(), Metrics(), tmp_path / "audit.jsonl"
    settings = settings_of({"git": {}}, endpoints={"agent": {"discovery": "search"}})
    audit = AuditLog(AuditSettings(file=str(file)), metrics)
    gateway = Gateway(settings, {"git": upstream}, metrics, Sealer(b"secret"), audit=audit, features=features_of)
    upstream.on_event = gateway.on_event
    async with audit.running(), anyio.create_task_group() as tasks:
        tasks.start_soon(gateway.run)
        upstream.connect()
        await gateway.settled()
        await through(House(gateway, settings, {}, metrics, None, None), "call_read", "git__log", REPO)  # type: ignore[arg-type]  # only its gateway is used
        tasks.cancel_scope.cancel()
    (line,) = [msgspec.json.decode(line) for line in file.read_bytes().splitlines() if b"tools/call" in line]
    assert (line["upstream"], line["subject"], line["via"], line["outcome"]) == ("git", "log", "call_read", "ok")


async def test_a_stateless_upstreams_questions_reach_the_caller_and_its_retry_the_tool() -> None:
    upstream = git()
    question = {"k": InputRequest("elicitation/create", {"message": raw("Sure?"), "requestedSchema": raw({})})}

    def answer(call: Call) -> Outcome:
        return complete(content=[]) if "requestState" in call.params else input_required(question, "theirs")

    upstream.answers["tools/call"] = answer
    async with searched(upstream) as gateway:
        capabilities = {"elicitation": raw({"form": {}})}
        asked = await through(gateway, "call_destructive", "git__reset", capabilities=capabilities)
        assert isinstance(asked, InputRequired)
        done = await through(
            gateway, "call_destructive", "git__reset", capabilities=capabilities, requestState=asked.state,
            inputResponses={"k": {"action": "accept"}},
        )  # fmt: skip
        assert isinstance(done, Complete), done
        assert decoded(upstream.calls[-1].params)["requestState"] == "theirs"


def call(**params: object) -> Call:
    given = {key: raw(value) for key, value in params.items()}
    return Call(row_of("tools/call"), given, Caller(Principal("ann"), LATEST), FakeClient())


def test_all_other_members_of_a_call_stay_with_it() -> None:
    wrapped = call(name="call_read", arguments={"name": "t", "arguments": {"a": 1}}, _meta={"x": 1}, task={"ttl": 5})
    made = unwrap(wrapped)
    assert decoded(made.params) == {"name": "t", "arguments": {"a": 1}, "_meta": {"x": 1}, "task": {"ttl": 5}}
    assert made.notes.via == "call_read"
    assert decoded(unwrap(call(name="call_read", arguments={"name": "t"})).params) == {"name": "t"}


@pytest.mark.parametrize(
    "params",
    [
        {"name": "t", "arguments": {"name": "u"}},
        {"name": "call_read"},
        {"name": "call_read", "arguments": []},
        {"name": "call_read", "arguments": {"name": 5}},
        {"name": "call_read", "arguments": {"name": "t", "other": 1}},
        {"name": "call_read", "arguments": {"name": "t", "arguments": None}},
        {"name": 5},
        {},
    ],
)
def test_a_call_that_names_no_tool_is_left_as_it_is(params: dict[str, object]) -> None:
    given = call(**params)
    assert unwrap(given) is given
