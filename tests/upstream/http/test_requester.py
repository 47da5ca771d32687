"""The twin of `mcproxy.upstream.http.requester`: heads, and what is said of servers that cannot be reached."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from errno import ECONNREFUSED
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from prometheus_client import CollectorRegistry
from yarl import URL

from mcproxy.http.client import ClientResponse, ConnectFailed
from mcproxy.settings import UpstreamSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.telemetry.trace_context import departing
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.http.requester import MAX_KEPT_HEAD_BYTES, ExtraHeaders, Requester, connection_pool
from mcproxy.upstream.link import NotAccepted
from tests.fakes.certificates import Authority
from tests.ports import free_port
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def requester() -> AsyncIterator[Requester]:
    spec = UpstreamSettings(name="u", prefix="u", url="http://127.0.0.1/mcp")
    context = LinkContext(spec, Metrics(CollectorRegistry()), lambda change: None)
    async with connection_pool(context) as http:
        yield Requester(http, context)


async def complaint(url: str) -> str:
    """What is said of a request that found nobody."""
    async with requester() as it:
        with pytest.raises(NotAccepted) as refused, anyio.fail_after(GUARD):
            await it.request("POST", URL(url), ())
        return str(refused.value)


async def test_r46_a_refused_connection_is_told_once_and_in_our_words() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await complaint(f"{url}/mcp") == f"no connection to {url}: Connection refused: nothing listens there"


async def test_r46_a_server_without_tls_is_told_as_that() -> None:
    async def greet(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, greet)
        said = await complaint(f"https://127.0.0.1:{port}/mcp")
        tasks.cancel_scope.cancel()
    assert said.startswith(f"no connection to https://127.0.0.1:{port}: it does not speak TLS: correct the port")
    assert said.count("127.0.0.1") == 1


async def test_r87_a_certificate_of_an_unknown_issuer_is_told_with_what_makes_it_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", ssl=context) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        said = await complaint(url)
        assert "its certificate is not accepted: " in said
        assert "set `tls.ca` (or `proxy.egress.ca` for all)" in said
        monkeypatch.setenv("SSL_CERT_FILE", authority.file)
        async with requester() as it:
            with anyio.fail_after(GUARD):
                assert (await it.request("POST", URL(url), ())).status == 204


class Recording:
    """Satisfies `HttpConnections`: notes the heads of requests, and connects to nothing."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []

    async def request(self, method: str, url: URL, head: bytes, body: bytes | None = None) -> ClientResponse:
        self.heads.append(head)
        raise ConnectFailed from OSError(ECONNREFUSED, "refused")


def recorded(headers: dict[str, str]) -> tuple[Recording, Requester]:
    spec = UpstreamSettings(name="u", prefix="u", url="http://127.0.0.1/mcp", headers=headers)
    http = Recording()
    return http, Requester(http, LinkContext(spec, Metrics(CollectorRegistry()), lambda change: None))


async def head_of(http: Recording, it: Requester, headers: ExtraHeaders, varying: Mapping[str, str]) -> bytes:
    with pytest.raises(NotAccepted):
        await it.request("POST", URL("http://127.0.0.1/mcp"), headers, b"{}", varying)
    return http.heads[-1]


OWN = {"X-Key": "1", "mcp-name": "configured", "Traceparent": "configured"}
ALIKE: ExtraHeaders = (("Mcp-Method", "tools/call"),)
REQUESTS: list[tuple[ExtraHeaders, dict[str, str], dict[str, str]]] = [
    (ALIKE, {"Mcp-Name": "a"}, {}),
    (ALIKE, {"Mcp-Name": "b"}, {}),
    (ALIKE, {"Mcp-Name": "b", "Mcp-Param-Region": "eu"}, {}),
    (ALIKE, {}, {}),
    (ALIKE, {"Mcp-Name": "c"}, {"traceparent": "00-1"}),
    (ALIKE, {}, {"traceparent": "00-2"}),
    ((("Mcp-Method", "ping"),), {}, {"traceparent": "00-3"}),
    (ALIKE, {"Mcp-Name": "a"}, {}),
]


async def test_a_head_that_is_kept_in_part_is_what_a_new_link_writes() -> None:
    http, it = recorded(OWN)
    for headers, varying, traced in [*REQUESTS, *reversed(REQUESTS)]:
        token = departing.set(traced)
        try:
            head = await head_of(http, it, headers, varying)
            assert head == await head_of(*recorded(OWN), headers, varying)
        finally:
            departing.reset(token)
        fields = dict(line.split(": ") for line in head.decode().splitlines()[1:])
        assert head.count(b"\r\n") == len(fields) + 1
        expected = {name.lower(): value for name, value in [*OWN.items(), *headers, *varying.items(), *traced.items()]}
        assert {name.lower(): value for name, value in fields.items()}.items() >= expected.items()


async def test_a_field_that_varies_may_hold_no_more_than_another() -> None:
    http, it = recorded({})
    await head_of(http, it, ALIKE, {"Mcp-Name": "a"})
    for varying in ({"Mcp-Name": "a\r\nX: b"}, {"Mcp-Name": "a\0"}, {"Mcp Name": "a"}):
        with pytest.raises(NotAccepted, match="holds characters that no header may"):
            await it.request("POST", URL("http://127.0.0.1/mcp"), ALIKE, b"{}", varying)
    assert len(http.heads) == 1


@pytest.mark.parametrize("where", ["alike", "varying"])
async def test_r78_a_head_with_long_names_is_not_kept(where: str) -> None:
    http, it = recorded({})
    for number in range(10):
        fields = {f"Mcp-Param-{'x' * MAX_KEPT_HEAD_BYTES}{number}": "1"}
        headers = tuple(fields.items()) if where == "alike" else ALIKE
        head = await head_of(http, it, headers, fields if where == "varying" else {})
        assert f"x{number}: 1\r\n".encode() in head
    assert not it._heads


async def test_r54_cookies_without_end_are_not_kept_without_end() -> None:
    """What is kept and sent is bounded by aiohttp: its releases before the one that we require had no such bound."""
    heads: list[bytes] = []

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            heads.append(await stream.receive())
            cookies = b"".join(b"Set-Cookie: c%d-%d=%s\r\n" % (len(heads), n, b"v" * 64) for n in range(100))
            await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n" + cookies + b"\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    url = URL(f"http://localhost:{listener.extra(anyio.abc.SocketAttribute.local_port)}/mcp")
    async with listener, requester() as it, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        with anyio.fail_after(GUARD):
            for _ in range(20):
                (await it.request("GET", url, ())).close()
        tasks.cancel_scope.cancel()
    assert b"Cookie: c" in heads[-1]
    assert len(heads[-1]) <= 10_000
