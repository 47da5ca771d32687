"""Attempts to get past access control at a gateway that runs as its users run it: keys, policy, limits, audit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from mcproxy.access.keys import key_digest, make
from tests.attacks.wire import INITIALIZE, answer, code, post, said, stateless
from tests.system.running import ODD_SERVER, Gateway, Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ANN: Final = make()
"""May use everything."""
BOB: Final = make()
"""May echo, and read one memo."""

COMMAND, *ARGUMENTS = ODD_SERVER


@asynccontextmanager
async def guarded(folder: Path, *, missing: Json | None = None, **limits: Any) -> AsyncIterator[Gateway]:
    """A gateway with two servers, and another that is `missing`."""
    odd = {"command": COMMAND, "args": ARGUMENTS}
    settings: Json = configuration({"odd": odd, "other": odd} | ({} if missing is None else {"missing": missing}))
    settings["admin"] = {"role": "admin"}
    settings["endpoints"] = {"both": {"upstreams": ["odd", "other"]}, "admins": {"roles": ["admin"]}}
    settings["access"] = {
        "authentication": {
            "keys": {"ann": [{"sha256": key_digest(ANN).hex()}], "bob": [{"sha256": key_digest(BOB).hex()}]}
        },
        "policy": {
            "roles": {
                "admin": {"allow": [{}]},
                "some": {
                    "allow": [
                        {"upstreams": ["odd"], "tools": ["echo"]},
                        {"upstreams": ["odd"], "resources": ["odd:memo"]},
                    ]
                },
            },
            "principals": {"ann": ["admin"], "bob": ["some"]},
        },
        "audit": {"file": "audit.log"},
        **limits,
    }
    with anyio.fail_after(GUARD):
        async with serving(folder, write(folder, settings)) as running:
            yield running


async def ask(url: str, key: str, method: str, **params: object) -> tuple[int, Any]:
    received = await answer(url, stateless(method, key=key, **params))
    return code(received), said(received)


async def opened(url: str, key: str, version: str = "2025-11-25") -> bytes:
    """The header of a session."""
    message = INITIALIZE.replace(b"2025-11-25", version.encode())
    received = await answer(url, post(message, bearer(key)))
    assert code(received) == 200, received
    line = next(line for line in received.split(b"\r\n") if line.lower().startswith(b"mcp-session-id"))
    return bytes(line)


def bearer(key: str) -> bytes:
    return b"Authorization: Bearer " + key.encode()


def message(id: int, method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


async def test_no_way_of_asking_leads_to_what_is_denied(tmp_path: Path) -> None:
    """Every endpoint, era, method and spelling: the answer is that of what does not exist, but for the name."""
    async with guarded(tmp_path) as running:
        _, allowed = await ask(running.url, ANN, "resources/read", uri="odd+file:///odd/blob.bin")
        assert "AAEC" in json.dumps(allowed)
        for denied, missing in (("links", "nil"), ("Echo", "nil2"), ("ECHO", "nil3"), ("echo\u200b", "nil4")):
            one = await ask(running.url, BOB, "tools/call", name=f"odd__{denied}", arguments={})
            other = await ask(running.url, BOB, "tools/call", name=f"odd__{missing}", arguments={})
            assert json.dumps(one).replace(json.dumps(denied)[1:-1], missing) == json.dumps(other)
            assert "error" in one[1]
        for uri in ("odd+file:///odd/blob.bin", "ODD+file:///odd/blob.bin", "odd+FILE:///odd/./blob.bin"):
            for method, params in (
                ("resources/read", {"uri": uri}),
                (
                    "completion/complete",
                    {"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "a", "value": ""}},
                ),
            ):
                _, refused = await ask(running.url, BOB, method, **params)
                assert "error" in refused, (method, uri)
                assert "AAEC" not in json.dumps(refused)
        session = await opened(running.url, BOB, "2025-03-26")
        batch = b"[" + b",".join(
            [
                message(1, "tools/call", name="odd__links", arguments={}),
                message(2, "resources/read", uri="odd+file:///odd/blob.bin"),
                message(3, "resources/subscribe", uri="odd+file:///odd/blob.bin"),
                message(4, "prompts/get", name="odd__greet", arguments={"who": "me"}),
            ]
        )
        received = await answer(running.url, post(batch + b"]", bearer(BOB), session))
        answers = said(received)
        assert len(answers) == 4
        assert all("error" in one for one in answers), answers


async def test_r38_an_endpoint_that_is_denied_is_one_that_does_not_exist(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        for denied, missing in (
            (b"/servers/other/mcp", b"/servers/nil/mcp"),
            (b"/servers/other/mcp/", b"/servers/nil/mcp/"),
            (b"/servers/%6fther/mcp", b"/servers/%6fil/mcp"),
            (b"/mcp/admins", b"/mcp/nil"),
            (b"/mcp/admins/", b"/mcp/nil/"),
        ):
            refusals = [await answer(running.url, post(INITIALIZE, bearer(BOB), target=it)) for it in (denied, missing)]
            assert [code(refusal) for refusal in refusals] == [404, 404]
            assert said(refusals[0]) == said(refusals[1])
            assert code(await answer(running.url, post(INITIALIZE, bearer(ANN), target=denied))) == 200


async def test_r39_a_session_of_another_is_unknown_however_it_is_come_by(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        stolen = await opened(running.url, ANN)
        ping = message(1, "ping")
        assert code(await answer(running.url, post(ping, bearer(ANN), stolen))) == 200
        made_up = await answer(running.url, post(ping, bearer(BOB), b"Mcp-Session-Id: chosen-by-the-attacker"))
        for session in (stolen, stolen[:-1], stolen + b"A", stolen.swapcase()):
            taken = await answer(running.url, post(ping, bearer(BOB), session))
            assert (code(taken), said(taken)) == (404, said(made_up))
        listening = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nLast-Event-ID: 1-1\r\n"
        taken = await answer(running.url, listening + bearer(BOB) + b"\r\n" + stolen + b"\r\n\r\n")
        assert code(taken) == 404
        ended = b"DELETE /mcp HTTP/1.1\r\nHost: localhost\r\n" + bearer(BOB) + b"\r\n" + stolen + b"\r\n\r\n"
        assert code(await answer(running.url, ended)) == 404
        assert code(await answer(running.url, post(ping, bearer(ANN), stolen))) == 200


async def test_nothing_that_is_near_a_key_is_one(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        wrong = [
            ANN[:-1],
            ANN + "a",
            ANN.swapcase(),
            key_digest(ANN).hex(),
            "ann",
            "a" * 7000,
            "eyJhbGciOiJub25lIn0.e30.",
        ]
        for key in wrong:
            received = await answer(running.url, stateless("tools/list", key=key))
            assert code(received) == 401, key
            assert key not in said(received)["error"]["message"]
        doubled = await answer(running.url, post(INITIALIZE, bearer("wrong"), bearer(ANN)))
        assert code(doubled) == 400
        in_query = await answer(running.url, post(INITIALIZE, target=f"/mcp?access_token={ANN}".encode()))
        assert code(in_query) == 401


async def test_r88_refused_credentials_are_counted_recorded_and_never_told(tmp_path: Path) -> None:
    guess = "mcproxy_" + "x" * 43
    async with guarded(tmp_path) as running:
        for _ in range(20):
            assert code(await answer(running.url, stateless("tools/list", key=guess))) == 401
        assert guess not in str(running.log)
        assert "credentials refused" in str(running.log)
    text = (tmp_path / "audit.log").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    refused = [record for record in records if record.get("event") == "credentials refused"]
    assert {record["reason"] for record in refused} == {"unknown_key"}
    assert 1 <= len(refused) < 20
    assert guess not in text


async def test_no_call_goes_unrecorded_and_none_writes_a_record_of_its_own(tmp_path: Path) -> None:
    forged = 'x\n{"principal": "ann"}\r\n\u2028{"principal": "ann"}\x1b[2K'
    async with guarded(tmp_path) as running:
        await ask(running.url, BOB, "tools/call", name=forged, arguments={})
        session = await opened(running.url, BOB, "2025-03-26")
        calls = [message(id, "tools/call", name="odd__echo", arguments={"text": "a"}) for id in range(5)]
        calls += [message(9, "ping"), b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}']
        calls += [message(10, forged)]
        batch = b"[" + b",".join(calls) + b"]"
        assert len(said(await answer(running.url, post(batch, bearer(BOB), session)))) == 8
    records = [json.loads(line) for line in (tmp_path / "audit.log").read_bytes().split(b"\n") if line]
    assert {record["principal"] for record in records} == {"bob"}
    assert len([record for record in records if record.get("subject") == "echo"]) == 5
    assert len([record for record in records if record["method"] == "tools/list"]) == 1
    assert [record["subject"] for record in records if "\x1b" in record.get("subject", "")] == [forged]


async def test_neither_sessions_nor_eras_nor_batches_nor_spellings_bring_more_than_the_limit(tmp_path: Path) -> None:
    limits = {"limits": {"rules": {"few": {"daily": 5, "per": ["principal"]}}}}
    async with guarded(tmp_path, **limits) as running:
        served = 0
        for path in ("/mcp", "/mcp/", "/servers/odd/mcp", "/mcp/both"):
            name = "echo" if "servers" in path else "odd__echo"
            request = stateless("tools/call", key=BOB, name=name, arguments={"text": "a"})
            received = await answer(running.url, request.replace(b"POST /mcp ", f"POST {path} ".encode()))
            served += "result" in said(received)
        for _ in range(2):
            session = await opened(running.url, BOB, "2025-03-26")
            calls = [message(id, "tools/call", name="odd__echo", arguments={"text": "a"}) for id in range(4)]
            received = await answer(running.url, post(b"[" + b",".join(calls) + b"]", bearer(BOB), session))
            served += len([one for one in said(received) if "result" in one])
        assert served == 5
        _, allowed = await ask(running.url, ANN, "tools/call", name="odd__echo", arguments={"text": "a"})
        assert "result" in allowed


async def test_a_cursor_that_was_made_up_opens_nothing(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        for cursor in ("", "AAAA", "x" * 5000, "../../etc/passwd", "\u0000", "1"):
            _, refused = await ask(running.url, BOB, "tools/list", cursor=cursor)
            assert "error" in refused, cursor


async def test_metrics_name_no_upstream_to_a_caller_that_is_no_operator(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        for shown, status in ((b"", 401), (bearer(BOB) + b"\r\n", 403)):
            received = await answer(running.url, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + shown + b"\r\n")
            assert code(received) == status
            assert b"mcproxy_upstream_up" not in received


async def test_r51_only_operators_learn_which_servers_the_gateway_waits_for(tmp_path: Path) -> None:
    async with guarded(tmp_path, missing={"command": "/nowhere", "required": True}) as running:
        told = {}
        for who, shown in (("nobody", b""), ("a guess", bearer(make())), ("bob", bearer(BOB)), ("ann", bearer(ANN))):
            head = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n" + shown + (b"\r\n" if shown else b"") + b"\r\n"
            received = await answer(running.url, head)
            assert code(received) == 503
            told[who] = received.partition(b"\r\n\r\n")[2]
        assert told == {**dict.fromkeys(("nobody", "a guess", "bob"), b"not ready\n"), "ann": b"waiting for missing\n"}
        await running.log.says(lambda entry: entry.get("reason") == "unknown_key")
        refused = [entry["reason"] for entry in running.log.entries if entry.get("event") == "credentials refused"]
        assert refused == ["unknown_key"], "a guess is noticed, and a probe is none"


async def test_nothing_of_the_gateways_environment_reaches_a_client(tmp_path: Path) -> None:
    async with guarded(tmp_path) as running:
        assert not any(key in str(running.log) for key in (ANN, BOB))
        for path in (b"/metrics", b"/healthz", b"/readyz", b"/.well-known/oauth-protected-resource", b"/ui", b"/"):
            received = await answer(running.url, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not any(word in received for word in (COMMAND.encode(), ANN.encode(), BOB.encode(), b"Traceback"))
