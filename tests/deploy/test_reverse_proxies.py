"""The samples for nginx and Caddy, in front of real gateways: streams at once and for long, both eras, a restart.

Debian has no Traefik: its sample is not run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web

from mcproxy.protocol.eras import LATEST
from tests.deploy.needs import DEPLOY, need
from tests.fakes.clients.raw import RawClient, over_http
from tests.fakes.servers.web import serving
from tests.ports import free_port
from tests.system.running import ODD_SERVER, Gateway, Json, configuration, gateway, web_server
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

COMMAND, *ARGUMENTS = ODD_SERVER
ODD: Json = {"odd": {"command": COMMAND, "args": ARGUMENTS}}
META: Json = {
    "io.modelcontextprotocol/protocolVersion": LATEST,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
}


def nginx(folder: Path, *ports: int) -> list[str]:
    """The command of nginx on the sample, TLS left out; it takes the port to listen on as its last argument."""
    text = (DEPLOY / "reverse-proxy" / "nginx.conf").read_text()
    servers = "".join(f"server {address} max_fails=0; " for address in addresses(ports))
    text = text.replace("server 127.0.0.1:8000 max_fails=0;", servers)
    text = "\n".join(line for line in text.splitlines() if "ssl_certificate" not in line)
    places = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn; events {{}}"
    file = folder / "nginx.conf"
    file.write_text(f"{main} http {{ access_log off; {places}\n{text}\n}}")
    script = f'sed -i "s/listen 443 ssl/listen 127.0.0.1:$1/" {file}; exec {need("nginx")} -p {folder} -c {file}'
    return ["sh", "-c", script, "nginx"]


def caddy(folder: Path, *ports: int) -> list[str]:
    """The command of Caddy on the sample, TLS left out; it takes the port to listen on as its last argument."""
    text = (DEPLOY / "reverse-proxy" / "Caddyfile").read_text()
    text = text.replace("reverse_proxy 127.0.0.1:8000", " ".join(["reverse_proxy", *addresses(ports)]))
    text = text.replace("mcp.example.com", "http://127.0.0.1:{$PORT}").replace("interval 1s", "interval 100ms")
    file = folder / "Caddyfile"
    file.write_text(f"{{\n\tadmin off\n\tstorage file_system {folder}\n}}\n\n{text}")
    script = f"PORT=$1 exec {need('caddy')} run --config {file} --adapter caddyfile"
    return ["env", f"XDG_CONFIG_HOME={folder}", "sh", "-c", script, "caddy"]


def addresses(ports: Sequence[int]) -> list[str]:
    return [f"127.0.0.1:{port}" for port in ports]


def settings(**proxy: object) -> Json:
    return configuration(ODD, secret="the same on every replica", **proxy)


Front = Callable[..., list[str]]


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def front(request: pytest.FixtureRequest) -> Front:
    """What stands before the gateway: its command, by a folder of its own and the ports of gateways."""
    found: Front = request.param
    return found


@asynccontextmanager
async def behind(front: Front, folder: Path, **proxy: object) -> AsyncIterator[str]:
    async with (
        gateway(folder, settings(**proxy)) as running,
        web_server(*front(folder, port_of(running))) as url,
    ):
        yield url


def port_of(running: Gateway) -> int:
    return int(running.url.rpartition(":")[2])


@asynccontextmanager
async def stateless(url: str, method: str, **params: object) -> AsyncIterator[aiohttp.ClientResponse]:
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": LATEST, "Mcp-Method": method}
    if "name" in params:
        headers["Mcp-Name"] = str(params["name"])
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
    async with aiohttp.ClientSession() as http, http.post(url, json=message, headers=headers) as response:
        assert response.status == 200, await response.text()
        yield response


async def echoes(client: RawClient) -> bool:
    return "result" in await client.call("odd__echo", {"text": "through it"})


async def test_r59_an_event_passes_before_the_answer(front: Front, tmp_path: Path) -> None:
    async with behind(front, tmp_path) as url, over_http(url) as client, anyio.create_task_group() as tasks:
        await client.initialize()
        answers: list[Json] = []

        async def call() -> None:
            answers.append(await client.call("odd__linger", progressToken="t"))

        with anyio.fail_after(GUARD):
            tasks.start_soon(call)
            await client.hears("notifications/progress")
            assert answers == []


async def test_r7_a_stream_of_keep_alives_alone_stays_open(front: Front, tmp_path: Path) -> None:
    async with behind(front, tmp_path, keep_alive=0.05) as url:
        wanted = {"toolsListChanged": True}
        with anyio.fail_after(GUARD):
            async with stateless(url, "subscriptions/listen", notifications=wanted) as response:
                comments = 0
                while comments < 20:
                    comments += (await response.content.readline()).startswith(b":")


async def test_r7_what_happens_between_calls_comes_at_once(front: Front, tmp_path: Path) -> None:
    async with behind(front, tmp_path) as url, over_http(url) as client:
        await client.initialize()
        with anyio.fail_after(GUARD):
            await client.result("resources/subscribe", {"uri": "odd+odd:memo"})
            await client.call("odd__touch", {"uri": "odd:memo"})
            await client.hears("notifications/resources/updated")


async def test_r4_a_call_that_was_sent_is_not_sent_again(front: Front, tmp_path: Path) -> None:
    sent: list[bytes] = []

    async def dies(request: web.Request) -> web.Response:
        if request.method == "POST":
            sent.append(await request.read())
            assert request.transport is not None
            request.transport.abort()
        return web.Response()

    async with serving(dies) as one, serving(dies) as other, aiohttp.ClientSession() as http:
        ports = [int(url.rpartition(":")[2]) for url in (one, other)]
        async with web_server(*front(tmp_path, *ports)) as url, http.post(url, data=b"a call") as response:
            assert (response.status, sent) == (502, [b"a call"])


async def test_r58_the_stateless_era_passes(front: Front, tmp_path: Path) -> None:
    arguments = {"text": "through it"}
    async with (
        behind(front, tmp_path) as url,
        stateless(url, "tools/call", name="odd__echo", arguments=arguments) as response,
    ):
        assert "through it" in json.dumps(json.loads(await response.read())["result"])


async def test_r56_a_session_goes_on_while_each_replica_is_restarted(front: Front, tmp_path: Path) -> None:
    ports = free_port(), free_port()
    async with AsyncExitStack() as stack:

        async def started(port: int, generation: str) -> Gateway:
            folder = tmp_path / f"{port}-{generation}"
            folder.mkdir()
            return await stack.enter_async_context(gateway(folder, settings(port=port, shutdown_delay=1)))

        replicas = [await started(port, "old") for port in ports]
        url = await stack.enter_async_context(web_server(*front(tmp_path, *ports)))
        client = await stack.enter_async_context(over_http(url))
        await client.initialize()
        assert await echoes(client)
        for port, replica in zip(ports, replicas, strict=True):
            replica.process.terminate()
            assert await replica.process.wait() == 0
            assert await echoes(client)
            await started(port, "new")
            assert await echoes(client)


async def test_r51_nginx_lets_who_watches_from_its_own_machine_ask_whether_the_gateway_is_ready(tmp_path: Path) -> None:
    async with behind(nginx, tmp_path) as url, aiohttp.ClientSession() as http:
        for path in ("/healthz", "/readyz", "/metrics"):
            async with http.get(url.removesuffix("/mcp") + path, ssl=False) as response:
                assert (path, response.status) == (path, 200)


async def test_r51_caddy_shows_no_client_what_is_for_operators(tmp_path: Path) -> None:
    async with behind(caddy, tmp_path) as url, aiohttp.ClientSession() as http:
        for path, status in {"/healthz": 200, "/metrics": 404, "/readyz": 404}.items():
            async with http.get(url.removesuffix("/mcp") + path) as response:
                assert response.status == status
