"""Requests over HTTP: who is refused and how, and which requests are told apart."""

from __future__ import annotations

import json
from collections.abc import Mapping

import aiohttp
import anyio
import anyio.to_thread
import pytest

from mcproxy.call.identity import Principal
from mcproxy.http import server
from mcproxy.settings import LimitSettings, Proxy
from tests.downstream.client import client_of, initialize, notification, request
from tests.fakes.gateway import IdentifiedBy, quick, served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def allowing(setting: str, value: str) -> Proxy:
    return Proxy.model_validate({**quick().model_dump(), setting: [value]})


@pytest.mark.parametrize(
    ("header", "value", "status", "setting"),
    [
        ("Host", "evil.example", 421, "allowed_hosts"),
        ("Origin", "http://evil.example", 403, "allowed_origins"),
    ],
)
async def test_r42_a_foreign_host_or_origin_is_named_with_its_setting(
    header: str, value: str, status: int, setting: str
) -> None:
    async with served() as gateway, client_of(gateway) as client:
        async with client.post(initialize(), **{header: value}) as response:
            assert response.status == status
            sentence = (await response.json())["error"]["message"]
            assert value in sentence
            assert setting in sentence
        assert gateway.gateway.calls == []


@pytest.mark.parametrize(
    ("header", "value", "setting", "status"),
    [
        ("Host", "good.example", "allowed_hosts", 421),
        ("Origin", "https://good.example", "allowed_origins", 403),
    ],
)
async def test_r49_a_reload_judges_hosts_and_origins_anew_on_connections_that_go_on(
    header: str, value: str, setting: str, status: int
) -> None:
    async with served(proxy=allowing(setting, value)) as gateway, client_of(gateway) as client:
        await client.open()
        client.headers[header] = value
        for proxy, expected in (
            (gateway.context.proxy, 202),
            (quick(), status),
            (allowing(setting, "*"), 202),
            (allowing(setting, "other.example"), status),
        ):
            gateway.reconfigure(proxy)
            for _ in range(2):
                assert await client.tell(notification("notifications/initialized")) == expected


async def test_the_same_fields_with_another_method_or_target_are_another_request() -> None:
    async with served() as gateway:
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        body = json.dumps(request(1, "ping")).encode()
        asked = [
            ("POST", "/mcp", 400),
            ("POST", "/nowhere", 404),
            ("PUT", "/mcp", 405),
            ("POST", "/servers/down/mcp", 404),
            ("DELETE", "/mcp", 400),
            ("POST", "/mcp", 400),
        ]
        with anyio.fail_after(GUARD):
            async with await anyio.connect_tcp(host, int(port)) as connection:
                for method, path, status in asked:
                    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                    await connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                    assert int((await connection.receive()).split()[1]) == status


async def test_r39_a_header_that_identifies_callers_tells_them_apart_whatever_its_name() -> None:
    identified: list[str] = []

    async def by_header(request: server.Request) -> Principal:
        identified.append(request.fields["x-request-id"])
        return Principal(request.fields["x-request-id"])

    asked = ["ann", "bob", "bob", "ann"]
    for names, expected in ((frozenset({"x-request-id"}), asked[:2]), (frozenset[str](), asked[:1])):
        identified.clear()
        async with (
            served(identify=IdentifiedBy(by_header, names)) as gateway,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http,
        ):
            for who in asked:
                headers = {"Content-Type": "application/json", "X-Request-Id": who}
                await answer(http, "POST", gateway.url + "/mcp", headers)
        # Each once on this connection; a field that identifies nobody varies among requests with the same head.
        assert identified == expected


async def test_r57_a_preflight_is_answered_before_authentication() -> None:
    async def nobody(request: server.Request) -> Principal:
        raise AssertionError

    async with served(identify=IdentifiedBy(nobody)) as gateway, aiohttp.ClientSession() as http:
        headers = {
            "Origin": "http://localhost:6274",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "mcp-session-id",
        }
        async with http.options(f"{gateway.url}/mcp", headers=headers) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:6274"
            assert "Mcp-Session-Id" in response.headers["Access-Control-Allow-Headers"]


async def test_r57_a_page_may_read_why_it_was_refused_too() -> None:
    async with served() as gateway, aiohttp.ClientSession() as http:
        for path in ("/nowhere", "/servers/down/mcp", "/mcp"):
            for _ in range(2):
                async with http.post(gateway.url + path, headers={"Origin": "http://localhost:6274"}) as response:
                    assert response.status >= 400
                    assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:6274"


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_r57_responses_expose_the_session_id_to_pages(accept: str) -> None:
    async with (
        served() as gateway,
        client_of(gateway) as client,
        client.post(initialize(), accept=accept, Origin="http://localhost:6274") as response,
    ):
        assert "Mcp-Session-Id" in response.headers["Access-Control-Expose-Headers"]
        assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:6274"


@pytest.mark.parametrize(
    ("body", "type", "status", "code"),
    [
        (b"{", "application/json", 400, -32700),
        (b"\xff", "application/json", 400, -32700),
        (b"[]", "application/json", 400, -32600),
        (b"7", "application/json", 400, -32600),
        (b'{"jsonrpc":"1.0"}', "application/json", 400, -32600),
        (b"{}", "text/plain", 415, -32600),
        (b" " * 2000, "application/json", 413, -32600),
    ],
)
async def test_what_is_no_message_is_refused_in_json_rpc(body: bytes, type: str, status: int, code: int) -> None:
    async with (
        served(proxy=quick(LimitSettings(max_body_bytes=1000))) as gateway,
        client_of(gateway) as client,
        client.post(body, **{"Content-Type": type}) as response,
    ):
        assert response.status == status
        error = (await response.json())["error"]
        assert error["code"] == code
        assert error["message"]


@pytest.mark.parametrize("value", [rb'"\ud800"', b"NaN", b'"\xff"', b"[" * 100_000])
async def test_a_request_that_is_not_json_is_refused_at_once_with_its_id(value: bytes) -> None:
    body = b'{"jsonrpc":"2.0","id":"seven","method":"tools/call","params":{"a":%b}}' % value
    with anyio.fail_after(GUARD):
        async with served() as gateway, client_of(gateway) as client, client.post(body) as response:
            assert response.status == 400
            answer = await response.json()
    assert (answer["id"], answer["error"]["code"]) == ("seven", -32700)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("PUT", "/mcp", 405), ("GET", "/.well-known/x", 404), ("GET", "/%FF%00", 404)],
)
async def test_what_is_not_there_is_refused_in_json_rpc(method: str, path: str, status: int) -> None:
    async with (
        served() as gateway,
        aiohttp.ClientSession() as http,
        http.request(method, gateway.url + path) as response,
    ):
        assert response.status == status
        assert "error" in await response.json()


async def test_a_body_that_does_not_end_is_given_up() -> None:
    async def endless() -> object:
        yield b"{"
        await anyio.sleep_forever()

    with anyio.fail_after(GUARD):
        async with served(proxy=quick(read_timeout=0.05)) as gateway, aiohttp.ClientSession() as http:
            headers = {"Content-Type": "application/json"}
            async with http.post(f"{gateway.url}/mcp", data=endless(), headers=headers) as response:
                assert response.status == 408


@pytest.mark.parametrize(
    "header",
    [
        "Host",
        "Origin",
        "Accept",
        "Content-Type",
        "Mcp-Session-Id",
        "MCP-Protocol-Version",
        "Last-Event-ID",
        "Mcp-Method",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
async def test_bytes_that_are_no_text_in_a_header_are_no_crash(method: str, header: str) -> None:
    body = json.dumps(request(1, "ping")).encode()
    headers = {"Host": b"localhost", "Content-Type": b"application/json", "Content-Length": str(len(body)).encode()}
    lines = [f"{method} /mcp HTTP/1.1".encode()]
    lines += [name.encode() + b": " + value for name, value in {**headers, header: b"\xff\xfe"}.items()]
    with anyio.fail_after(GUARD):
        async with served() as gateway:
            host, _, port = gateway.url.removeprefix("http://").partition(":")
            async with await anyio.connect_tcp(host, int(port)) as connection:
                await connection.send(b"\r\n".join([*lines, b"", b""]) + body)
                status = int((await connection.receive()).split()[1])
    assert 400 <= status < 500


async def test_extra_routes_are_served() -> None:
    async def healthy(request: server.Request, _: Mapping[str, str]) -> server.Response:
        return server.Response(200, b"ok")

    async with (
        served(extra_routes=[server.Route("GET", "/healthz", healthy)]) as gateway,
        aiohttp.ClientSession() as http,
        http.get(f"{gateway.url}/healthz") as response,
    ):
        assert await response.text() == "ok"


async def test_a_compressed_body_is_refused_with_what_would_do() -> None:
    async with served() as gateway, client_of(gateway) as client:
        async with client.http.post(
            client.url, data=b"{}", headers={"Content-Type": "application/json", "Content-Encoding": "gzip"}
        ) as response:
            assert response.status == 415
            assert response.headers["Accept-Encoding"] == "identity"
            assert "error" in await response.json()
        assert gateway.gateway.calls == []


async def test_a_client_of_a_later_era_is_told_which_versions_there_are() -> None:
    async with served() as gateway, client_of(gateway) as client:
        prefix = "io.modelcontextprotocol"
        meta = {f"{prefix}/protocolVersion": "2099-01-01", f"{prefix}/clientCapabilities": {}}
        probe = request(1, "server/discover", {"_meta": meta})
        headers = {"MCP-Protocol-Version": "2099-01-01", "Mcp-Method": "server/discover"}
        async with client.post(probe, **headers) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == -32022


async def test_r38_an_endpoint_that_one_may_not_see_is_refused_as_one_that_is_not_there() -> None:
    async def by_header(request: server.Request) -> Principal:
        return Principal(request.fields["x-user"])

    def exists(endpoint: str, principal: Principal) -> bool:
        return endpoint == "" or (endpoint in ("up", "/team") and principal.name == "ann")

    async with served(identify=IdentifiedBy(by_header), exists=exists) as gateway, aiohttp.ClientSession() as http:
        for path in ("/mcp/team", "/mcp/team/", "/servers/up/mcp"):
            for method, headers in (("POST", {"Content-Type": "application/json"}), ("GET", {}), ("DELETE", {})):
                ann, eve, nowhere = [
                    await answer(http, method, gateway.url + where, {**headers, "X-User": who})
                    for who, where in (
                        ("ann", path),
                        ("eve", path),
                        ("eve", path.replace("team", "nil").replace("up", "nil")),
                    )
                ]
                assert eve == nowhere
                assert eve[0] == 404
                assert ann[0] != 404 or method != "POST"


async def test_an_endpoint_of_a_selection_is_served_to_both_transports_of_its_era() -> None:
    seen: list[str] = []

    def exists(endpoint: str, principal: Principal) -> bool:
        seen.append(endpoint)
        return True

    async with served(exists=exists) as gateway, aiohttp.ClientSession() as http:
        await answer(http, "POST", gateway.url + "/mcp/team", {"Content-Type": "application/json"})
        async with http.get(gateway.url + "/sse/team") as response:
            assert response.status == 200
    assert seen == ["/team", "/team"]


async def answer(http: aiohttp.ClientSession, method: str, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    async with http.request(method, url, headers=headers, data=b"{}" if method == "POST" else None) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("spelled", ["/servers/%2Fteam/mcp", "/servers/%2fteam/mcp", "/servers/%2Fteam/sse"])
async def test_an_upstream_of_any_spelling_never_leads_to_the_endpoint_of_a_selection(spelled: str) -> None:
    def exists(endpoint: str, principal: Principal) -> bool:
        return endpoint in ("", "/team")

    async with served(exists=exists) as gateway, aiohttp.ClientSession() as http:
        method = "GET" if spelled.endswith("sse") else "POST"
        status, body = await answer(http, method, gateway.url + spelled, {"Content-Type": "application/json"})
        absent = await answer(
            http, method, gateway.url + spelled.replace("team", "x"), {"Content-Type": "application/json"}
        )
    assert (status, body) == absent
    assert status == 404
