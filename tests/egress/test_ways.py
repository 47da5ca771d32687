"""Requests that leave through proxies, with private authorities and client certificates, over real connections."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry
from yarl import URL

from mcproxy.access.oauth.fetching import fetch
from mcproxy.access.outgoing.webhooks import SignedWebhook
from mcproxy.egress.client import NotAnswered, OutgoingClient
from mcproxy.egress.egress import Egress, ProxyChoice, ServerTls, from_environment
from mcproxy.http.client import ConnectFailed, Pool, Way, write_head
from mcproxy.pending_requests import PeerGone
from mcproxy.settings import UpstreamSettings
from mcproxy.settings.access.webhook import WebhookSettings
from mcproxy.telemetry.metrics import Metrics
from mcproxy.upstream.context import LinkContext
from mcproxy.upstream.http.requester import Requester, connection_pool
from mcproxy.upstream.link import NotAccepted
from mcproxy.upstream.oauth.endpoints import Endpoints
from tests.egress.proxies import needs_tinyproxy, proxying, tinyproxy
from tests.fakes.certificates import Authority, Files
from tests.ports import free_port
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


class Served:
    """What a server was sent, and which client certificates it saw."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.clients: list[str] = []
        self.port = 0


@asynccontextmanager
async def serving(
    tls: ssl.SSLContext | None = None, path: str | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[Served]:
    """A server that answers `{}` to everything, and keeps its connections."""
    it = Served()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate = writer.get_extra_info("peercert") or {}
        it.clients += [value for part in certificate.get("subject", ()) for _, value in part]
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                it.heads.append(head)
                for line in head.split("\r\n"):
                    if line.lower().startswith("content-length:"):
                        await reader.readexactly(int(line.partition(":")[2]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    if path is not None:
        server = await asyncio.start_unix_server(answer, path)
    else:
        server = await asyncio.start_server(answer, host, ssl=tls)
        it.port = server.sockets[0].getsockname()[1]
    async with server:
        yield it


def server_tls(files: Files, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    if clients is not None:
        context.load_verify_locations(clients.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def upstream(url: str, **settings: object) -> UpstreamSettings:
    return UpstreamSettings.model_validate({"name": "u", "prefix": "u", "url": url, **settings})


@asynccontextmanager
async def requester(spec: UpstreamSettings) -> AsyncIterator[Requester]:
    context = LinkContext(spec, Metrics(CollectorRegistry()), lambda change: None)
    async with connection_pool(context) as http:
        yield Requester(http, context)


async def status(spec: UpstreamSettings, times: int = 1) -> int:
    with anyio.fail_after(GUARD):
        async with requester(spec) as it:
            for _ in range(times):
                response = await it.request("POST", URL(spec.endpoint.url), (), b"{}")
                assert await response.body.read(100) == b"{}"
            return response.status


async def complaint(spec: UpstreamSettings) -> str:
    with pytest.raises((NotAccepted, PeerGone)) as refused:
        await status(spec)
    return str(refused.value)


async def test_http_goes_through_the_proxy_by_absolute_targets_and_the_name_is_not_looked_up() -> None:
    async with serving() as it, proxying({"only-the-proxy.test": it.port}) as proxy:
        assert await status(upstream("http://only-the-proxy.test/mcp?x=1", egress=proxy.url)) == 200
        assert proxy.lines == ["POST http://only-the-proxy.test/mcp?x=1 HTTP/1.1"]
        assert "Host: only-the-proxy.test\r\n" in it.heads[0]


async def test_https_goes_through_a_tunnel_with_a_private_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server_tls(authority.issue("server", dns=["inside.test"]))
    async with serving(tls) as it, proxying({"inside.test": it.port}) as proxy:
        spec = upstream("https://inside.test/mcp", egress=proxy.url, tls={"ca": authority.file})
        assert await status(spec, times=3) == 200
        assert proxy.lines == ["CONNECT inside.test:443 HTTP/1.1"], "one tunnel for three requests"
        assert "Proxy-Authorization" not in "".join(it.heads)


async def test_the_proxy_gets_decoded_credentials_and_no_error_shows_them(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server_tls(authority.issue("server", dns=["inside.test"]))
    async with serving(tls) as it, proxying({"inside.test": it.port}, "me@x:p/w d:very") as proxy:
        right = f"http://me%40x:p%2Fw%20d%3Avery@127.0.0.1:{proxy.port}"
        assert await status(upstream("https://inside.test/", egress=right, tls={"ca": authority.file})) == 200
        wrong = f"http://me:wrong-word@127.0.0.1:{proxy.port}"
        for url in ("https://inside.test/", "http://inside.test/"):
            said = await complaint(upstream(url, egress=wrong))
            assert f"the proxy {proxy.url} (mcpServers.u.egress)" in said
            assert "HTTP 407" in said
            assert "other credentials" in said
            assert "wrong-word" not in said


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_fails_is_named(scheme: str) -> None:
    url = f"{scheme}://inside.test/"
    async with proxying({}, resets=True) as proxy:
        assert f"the proxy {proxy.url}" in await complaint(upstream(url, egress=proxy.url))
    port = free_port()
    said = await complaint(upstream(url, egress=f"http://127.0.0.1:{port}"))
    assert f"the proxy http://127.0.0.1:{port} (mcpServers.u.egress) fails: Connection refused" in said


async def test_a_tunnel_that_the_proxy_cannot_open_names_the_proxy() -> None:
    async with proxying({}) as proxy:
        said = await complaint(upstream("https://nowhere.test/", egress=proxy.url))
    assert f"the proxy {proxy.url} (mcpServers.u.egress) fails: it answers HTTP 502" in said


async def test_one_upstream_has_no_proxy_by_its_own_setting_and_loopback_never_has() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    general = Egress(http=ProxyChoice(dead, "HTTP_PROXY"))
    assert (
        upstream("http://inside.test/", egress="direct").leaving_by(general).leaving.proxy(URL("http://inside.test/"))
        is None
    )
    async with serving() as it:
        assert await status(upstream(f"http://127.0.0.1:{it.port}/").leaving_by(general)) == 200
        assert await status(upstream(f"http://localhost:{it.port}/", egress=dead)) == 200


async def test_a_proxy_of_another_kind_is_refused_by_name() -> None:
    general = from_environment({"ALL_PROXY": "socks5://user:secret@127.0.0.1:1080"})
    said = await complaint(upstream("http://inside.test/").leaving_by(general))
    assert "ALL_PROXY names a proxy of the kind socks5" in said
    assert "secret" not in said


async def test_tls_to_the_proxy_itself(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server_tls(authority.issue("server", dns=["inside.test"]))
    async with serving(tls) as it, proxying({"inside.test": it.port}) as proxy:

        async def encrypted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner, outer = await asyncio.open_connection("127.0.0.1", proxy.port)

            async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    target.write(data)
                target.close()

            await asyncio.gather(pump(reader, outer), pump(inner, writer), return_exceptions=True)

        async with await asyncio.start_server(encrypted, "127.0.0.1", ssl=tls) as front:
            port = front.sockets[0].getsockname()[1]
            spec = upstream("https://inside.test/", egress=f"https://127.0.0.1:{port}", tls={"ca": authority.file})
            assert await status(spec) == 200
    assert proxy.lines == ["CONNECT inside.test:443 HTTP/1.1"]


async def test_a_certificate_is_replaced_while_calls_run(tmp_path: Path) -> None:
    authority, clients = Authority(tmp_path), Authority(tmp_path, "clients")
    files = clients.issue("client", "first")
    async with serving(server_tls(authority.issue("server"), clients)) as it:
        tls = {"ca": authority.file, "certificate": files.certificate, "key": files.key}
        spec = upstream(f"https://127.0.0.1:{it.port}/", tls=tls)
        async with requester(spec) as link:
            first = await link.request("POST", URL(spec.url or ""), (), b"{}")
            other = clients.issue("next", "second")
            os.replace(other.certificate, files.certificate)
            # The key is not there yet: the old pair still serves.
            assert await status(spec) == 200
            os.replace(other.key, files.key)
            assert await status(spec) == 200
            first.close()
            assert (await link.request("POST", URL(spec.url or ""), (), b"{}")).status == 200
    assert it.clients == ["first", "first", "second"]


async def test_a_server_that_wants_a_client_certificate_is_told_as_that(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with openssl_server(authority.issue("server"), "-Verify", "1") as port:
        said = await complaint(upstream(f"https://127.0.0.1:{port}/", tls={"ca": authority.file}))
    assert "it wants a client certificate: set `tls.certificate` and `tls.key`" in said


async def test_each_refused_certificate_is_told_with_the_setting_that_helps(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with serving(server_tls(authority.issue("server"))) as it:
        url = f"https://127.0.0.1:{it.port}/"
        unknown = await complaint(upstream(url, tls={"ca": other.file}))
        assert "set `tls.ca` (or `proxy.egress.ca` for all) to a file with the authority" in unknown
        named = await complaint(upstream(f"https://localhost:{it.port}/", tls={"ca": authority.file}))
        assert "set `tls.server_name`" in named
        by_name = {"ca": authority.file, "server_name": "127.0.0.1"}
        assert await status(upstream(f"https://localhost:{it.port}/", tls=by_name)) == 200
        assert await status(upstream(url, tls={"verify": False})) == 200
    async with serving(server_tls(authority.issue("old", expired=True))) as it:
        said = await complaint(upstream(f"https://127.0.0.1:{it.port}/", tls={"ca": authority.file}))
        assert "certificate has expired: renew it at the server" in said
    lone = authority.self_signed("lone")
    async with serving(server_tls(lone)) as it:
        url = f"https://127.0.0.1:{it.port}/"
        assert "set `tls.ca` to a file with this certificate" in await complaint(upstream(url))
        assert await status(upstream(url, tls={"ca": lone.certificate})) == 200


async def test_client_certificate_and_lenience_are_for_the_server_alone(tmp_path: Path) -> None:
    tls = ServerTls("ca.pem", "c.pem", "k.pem", "name", verify=False)
    egress = Egress(tls=tls, origin="https://api.test:443")
    own, issuer = (egress.certificates(URL(url)) for url in ("https://api.test/mcp", "https://login.test/token"))
    assert (own.certificate, own.verify) == ("c.pem", False)
    assert (issuer.ca, issuer.certificate, issuer.verify) == (("ca.pem",), None, True)


async def test_a_unix_socket_is_reached(tmp_path: Path) -> None:
    path = str(tmp_path / "x.sock")
    async with serving(path=path) as it:
        assert await status(upstream(f"http+unix://{path}:/mcp?a=b")) == 200
        assert it.heads[0].startswith("POST /mcp?a=b HTTP/1.1\r\nHost: localhost\r\n")
    assert "No such file" in await complaint(upstream(f"http+unix://{path}.not:/mcp"))


@pytest.mark.parametrize(
    "first", [bytes.fromhex("000000040000000000"), bytes.fromhex("000012040000000000") + bytes(18)]
)
async def test_a_server_of_http_2_alone_is_told_as_that(first: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        assert "it speaks only HTTP/2" in await complaint(upstream(f"http://127.0.0.1:{port}/"))


async def test_a_server_that_accepts_only_h2_in_tls_is_told_as_that(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("server")
    with openssl_server(files, "-alpn", "h2") as port:
        said = await complaint(upstream(f"https://127.0.0.1:{port}/", tls={"ca": authority.file}))
    assert "it speaks only HTTP/2" in said


@contextmanager
def openssl_server(files: Files, *options: str) -> Iterator[int]:
    port = free_port()
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-cert", files.certificate, "-key", files.key]
    with subprocess.Popen([*command, *options, "-quiet"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as it:
        while True:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
        yield port
        it.terminate()


async def test_webhook_keys_and_metadata_go_through_the_proxy(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = server_tls(authority.issue("server", dns=["inside.test"]))
    async with serving(tls) as it, proxying({"inside.test": it.port}) as proxy:
        egress = Egress(ProxyChoice(proxy.url, "HTTPS_PROXY"), ca=authority.file)
        settings = WebhookSettings(url="https://inside.test/hook", secret="0123456789abcdef", public=True)
        webhook = SignedWebhook(settings.leaving_by(egress))
        with anyio.fail_after(GUARD):
            assert await webhook({}) == {}
            await webhook.aclose()
            assert await fetch("https://inside.test/keys", 100, public=True, egress=egress) == b"{}"
            assert (await Endpoints((), egress).get("https://inside.test/metadata")).body == b"{}"
        assert proxy.lines == ["CONNECT inside.test:443 HTTP/1.1"] * 3
        for address in ("https://10.0.0.1/", "https://localhost/", "https://127.1/", "https://[::ffff:10.0.0.1]/"):
            with pytest.raises(NotAnswered):
                async with OutgoingClient(egress, public=True).request("GET", address, {}):
                    pass
        assert len(proxy.lines) == 3, "an address that is not public is not asked of the proxy"


async def test_r43_of_the_addresses_of_a_name_only_permitted_ones_are_connected_to() -> None:
    async with serving() as it:

        def look_up(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, it.port))
                for address in ("127.0.0.9", "127.0.0.1")
            ]

        permitted = {"127.0.0.1"}
        with closing(Pool(GUARD, 1, ways=lambda _: Way(permits=permitted.__contains__), look_up=look_up)) as pool:  # type: ignore[arg-type]
            url = URL("http://mixed.test/")
            response = await pool.request("GET", url, write_head("GET", url, {}))
            assert response.head.status == 200
            permitted.clear()
            other = URL("http://private.test/")
            with pytest.raises(ConnectFailed) as refused:
                await pool.request("GET", other, write_head("GET", other, {}))
    assert "private.test has no public address" in str(refused.value.__cause__)


def own_address() -> str | None:
    """An address of this machine that is not loopback, which is never proxied. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return None if address.startswith("127.") else address


@needs_tinyproxy
async def test_tinyproxy_carries_both_schemes_with_credentials(tmp_path: Path) -> None:
    here = own_address()
    if here is None:
        pytest.skip("this machine has only loopback addresses")
    authority = Authority(tmp_path)
    files = authority.issue("server", dns=["inside.test"])
    async with tinyproxy(tmp_path, "BasicAuth me secret-word") as port:
        for scheme, tls in (("http", None), ("https", server_tls(files))):
            async with serving(tls, host=here) as served:
                spec = upstream(
                    f"{scheme}://{here}:{served.port}/mcp",
                    egress=f"http://me:secret-word@127.0.0.1:{port}",
                    tls={"ca": authority.file, "server_name": "inside.test"},
                )
                assert await status(spec, times=2) == 200
                assert len(served.heads) == 2
                wrong = upstream(spec.url or "", egress=f"http://me:other-word@127.0.0.1:{port}")
                if tls is not None:
                    assert f"the proxy http://127.0.0.1:{port} (mcpServers.u.egress) fails: it wants other" in (
                        await complaint(wrong)
                    )
