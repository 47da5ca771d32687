"""Keys and a certificate that are changed while a gateway runs, and what its log says of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest

from mcproxy.access.keys import key_digest, make
from tests.downstream.client import initialize
from tests.fakes.certificates import Authority
from tests.system.running import Json, configuration, serving, write
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def settings(key: str) -> Json:
    whole = configuration({}, tls={"certificate": "server.pem", "key": "server.key"}, watch=False)
    return {**whole, "access": {"authentication": {"keys": {"bot": [{"sha256": key_digest(key).hex()}]}}}}


async def status(url: str, key: str, tls: Any) -> int:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http,
        http.post(f"{url}/mcp", json=initialize(), ssl=tls) as response,
    ):
        return response.status


async def test_r49_a_reload_changes_keys_and_the_certificate_and_r44_the_log_holds_none(tmp_path: Path) -> None:
    old, new = make(), make()
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    first.issue("server", "gateway")
    file = write(tmp_path, settings(old))
    with anyio.fail_after(GUARD):
        async with serving(tmp_path, file) as gateway:
            assert gateway.url.startswith("https://")
            assert await status(gateway.url, old, first.client()) == 200
            assert await status(gateway.url, new, first.client()) == 401
            second.issue("server", "gateway")
            write(tmp_path, settings(new))
            gateway.process.send_signal(signal.SIGHUP)
            await gateway.log.says(lambda entry: "access.authentication.keys" in json.dumps(entry))
            assert await status(gateway.url, new, second.client()) == 200
            assert await status(gateway.url, old, second.client()) == 401
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await status(gateway.url, new, first.client())
            assert not any(secret in str(gateway.log) for secret in (old, new))
