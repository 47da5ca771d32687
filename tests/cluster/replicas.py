"""Three gateways, a real Redis between them and nginx before them: what the tests of a whole cluster start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tests.deploy.needs import DEPLOY, need
from tests.system.running import Gateway, Json, configuration, gateway, web_server
from tests.timeouts import GUARD

SECRET = "the same on every replica"
MEMBER_TTL = 10
"""Seconds: no replica may count as frozen or dead because the machine is busy, nor may Redis count as away. A test in
which they do sets less."""


@dataclass
class Cluster:
    """The replicas, and the URL of nginx, which sends each request to the next of them."""

    replicas: list[Gateway]
    url: str
    nginx: Path
    """The folder of nginx, for `reload`."""


def replica_settings(upstreams: Json, redis: str, cluster: Json | None = None, **proxy: object) -> Json:
    settings = configuration(upstreams, secret=SECRET, **proxy)
    shared = {"redis": redis, "listen": "127.0.0.1:0", "timeout": GUARD, "member_ttl": MEMBER_TTL}
    return {**settings, "cluster": {**shared, **(cluster or {})}}


@asynccontextmanager
async def replica(folder: Path, settings: Json, *, ends_well: bool = True) -> AsyncIterator[Gateway]:
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 it returns at once
    async with gateway(folder, settings, ends_well=ends_well) as running:
        yield running


@asynccontextmanager
async def cluster(
    folder: Path,
    upstreams: Json,
    redis: str,
    *,
    size: int = 3,
    more: Json | None = None,
    access: Json | None = None,
    ends_well: bool = True,
    **proxy: object,
) -> AsyncIterator[Cluster]:
    """Replicas that know each other, behind nginx."""
    settings = {**replica_settings(upstreams, redis, more, **proxy), "access": access or {}}
    async with AsyncExitStack() as stack:
        replicas = [
            await stack.enter_async_context(replica(folder / f"replica{number}", settings, ends_well=ends_well))
            for number in range(size)
        ]
        for one in replicas:
            await knows(one, size - 1)
        front = folder / "nginx"
        front.mkdir()
        command = nginx(front, [port_of(one) for one in replicas])
        url = await stack.enter_async_context(web_server(*command))
        # All at once: each waits at its end until the others have heard of it.
        for one in replicas:
            stack.callback(one.stop)
        yield Cluster(replicas, url.removesuffix("/mcp"), front)


def nginx_homes(folder: Path, ports: Sequence[int]) -> list[str]:
    """As `nginx`, on the sample that sends the requests of a session to its home."""
    text = (DEPLOY / "replicas" / "nginx-homes.conf").read_text().replace("listen 8000;", "listen LISTEN;")
    for number, port in enumerate(ports, 1):
        text = text.replace(f"127.0.0.1:800{number}", f"127.0.0.1:{port}")
    return _command(folder, text)


async def knows(one: Gateway, others: int) -> None:
    """Returns once a replica has heard of so many others."""
    came = 0

    def is_last(entry: dict[str, Any]) -> bool:
        nonlocal came
        came += entry.get("event") == "a replica came"
        return came >= others

    if others:
        with anyio.fail_after(GUARD):
            await one.log.says(is_last)


def port_of(one: Gateway) -> int:
    return int(one.url.rpartition(":")[2])


def nginx(folder: Path, ports: Sequence[int]) -> list[str]:
    """The command of nginx, which takes the port to listen on as its last argument."""
    return _command(folder, _in_turn(ports))


def _command(folder: Path, sites: str) -> list[str]:
    """Writes the configuration of an nginx with these sites; where they listen is written LISTEN."""
    (folder / "nginx.conf").write_text(f"{_preamble(folder)}\n{sites}\n}}")
    script = (
        f'sed -i "s/LISTEN/127.0.0.1:$1/" {folder}/nginx.conf; exec {need("nginx")} -p {folder} -c {folder}/nginx.conf'
    )
    return ["sh", "-c", script, "nginx"]


def configure(folder: Path, ports: Sequence[int], listen: str = "LISTEN") -> None:
    """Writes the configuration of an nginx that sends each request to the next replica."""
    (folder / "nginx.conf").write_text(f"{_preamble(folder)}\n{_in_turn(ports, listen)}\n}}")


def _preamble(folder: Path) -> str:
    """What stands before the sites of a server with nothing outside its folder; a brace is left open."""
    places = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn; events {{}}\n"
        f"http {{ access_log off; {places}"
    )


def _in_turn(ports: Sequence[int], listen: str = "LISTEN") -> str:
    """A site that sends each request to the next of the ports."""
    servers = "".join(f"server 127.0.0.1:{port} max_fails=0; " for port in ports)
    return (
        f"upstream replicas {{ {servers} keepalive 32; }}\n"
        f"server {{ listen {listen}; location / {{ proxy_pass http://replicas; proxy_http_version 1.1;"
        ' proxy_set_header Connection ""; proxy_set_header Host $http_host; proxy_buffering off;'
        " proxy_request_buffering off; proxy_read_timeout 1h; } }"
    )
