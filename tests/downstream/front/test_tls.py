"""HTTPS of the listener, and clients that show certificates."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import aiohttp
import anyio
import pytest

from mcproxy.downstream.front import tls
from mcproxy.settings import Tls
from mcproxy.settings.access.authentication import Authentication
from tests.downstream.client import client_of, initialize
from tests.fakes.certificates import Authority
from tests.fakes.gateway import served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

CERTIFICATES = Authentication.model_validate({"certificates": {"enabled": True, "roles": ["device"]}})


def settings(folder: Path, authority: Authority, **more: object) -> Tls:
    files = authority.issue("server", "gateway")
    return Tls.model_validate({"certificate": files.certificate, "key": files.key, **more})


async def test_with_a_certificate_the_gateway_speaks_https_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with anyio.fail_after(GUARD):
        async with served(tls=tls.context(settings(tmp_path, authority))) as gateway, aiohttp.ClientSession() as http:
            assert gateway.url.startswith("https://127.0.0.1:")
            async with http.post(f"{gateway.url}/mcp", json=initialize(), ssl=authority.client()) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientError):
                await http.post(gateway.url.replace("https", "http") + "/mcp", json=initialize())


@pytest.mark.parametrize(
    ("minimum", "spoken", "accepted"),
    [
        ("1.3", ssl.TLSVersion.TLSv1_2, False),
        ("1.3", ssl.TLSVersion.TLSv1_3, True),
        ("1.2", ssl.TLSVersion.TLSv1_2, True),
    ],
)
async def test_older_tls_than_the_minimum_is_not_spoken(
    tmp_path: Path, minimum: str, spoken: ssl.TLSVersion, accepted: bool
) -> None:
    authority = Authority(tmp_path)
    client = authority.client()
    client.maximum_version = spoken
    context = tls.context(settings(tmp_path, authority, minimum_version=minimum))
    with anyio.fail_after(GUARD):
        async with served(tls=context) as gateway, aiohttp.ClientSession() as http:
            try:
                async with http.post(f"{gateway.url}/mcp", json=initialize(), ssl=client) as response:
                    assert response.status == 200
            except aiohttp.ClientError:
                assert not accepted
            else:
                assert accepted


async def test_a_clients_certificate_names_the_caller(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = tls.context(settings(tmp_path, authority, client_ca=authority.file))
    with anyio.fail_after(GUARD):
        async with served(authentication=CERTIFICATES, tls=context) as gateway, client_of(gateway) as client:
            device = authority.client(authority.issue("device", "sensor-7"))
            async with client.http.post(client.url, json=initialize(), ssl=device) as response:
                assert response.status == 200
            principal = gateway.gateway.calls[0].caller.principal
            assert (principal.name, principal.roles) == ("cert:sensor-7", frozenset({"device"}))


@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
async def test_where_certificates_are_required_no_client_connects_without_a_good_one(
    tmp_path: Path, shown: str
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    files = stranger.issue("forged", "sensor-7") if shown != "nothing" else None
    context = tls.context(settings(tmp_path, authority, client_ca=authority.file))
    with anyio.fail_after(GUARD):
        async with served(authentication=CERTIFICATES, tls=context) as gateway, aiohttp.ClientSession() as http:
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await http.post(f"{gateway.url}/mcp", json=initialize(), ssl=authority.client(files))
            assert gateway.gateway.calls == []


async def test_where_certificates_are_optional_a_client_without_one_has_no_principal(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = tls.context(settings(tmp_path, authority, client_ca=authority.file, client_certificate="optional"))
    with anyio.fail_after(GUARD):
        async with served(authentication=CERTIFICATES, tls=context) as gateway, aiohttp.ClientSession() as http:
            async with http.post(f"{gateway.url}/mcp", json=initialize(), ssl=authority.client()) as response:
                assert response.status == 401
            two = authority.client(authority.issue("two", "a", "b"))
            async with http.post(f"{gateway.url}/mcp", json=initialize(), ssl=two) as response:
                assert response.status == 401


async def test_new_connections_get_the_certificate_that_is_in_the_files_now(tmp_path: Path) -> None:
    first, second = Authority(tmp_path), Authority(tmp_path, "second")
    given = settings(tmp_path, first)
    context = tls.context(given)
    assert context is not None
    with anyio.fail_after(GUARD):
        async with served(tls=context) as gateway:
            second.issue("server", "gateway")
            tls.renew(context, given)
            async with aiohttp.ClientSession() as http:
                async with http.post(f"{gateway.url}/mcp", json=initialize(), ssl=second.client()) as response:
                    assert response.status == 200
                with pytest.raises(aiohttp.ClientConnectorCertificateError):
                    await http.post(f"{gateway.url}/mcp", json=initialize(), ssl=first.client())


@pytest.mark.parametrize("broken", ["certificate", "key"])
async def test_a_certificate_that_does_not_fit_takes_no_place(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    given = settings(tmp_path, authority)
    context = tls.context(given)
    assert context is not None
    another = authority.issue("another", "another")
    shutil.copyfile(another.key if broken == "key" else authority.file, getattr(given, broken))
    with pytest.raises(OSError):  # noqa: PT011  # `ssl` says it in words that differ from version to version
        tls.renew(context, given)
    with anyio.fail_after(GUARD):
        async with (
            served(tls=context) as gateway,
            aiohttp.ClientSession() as http,
            http.post(f"{gateway.url}/mcp", json=initialize(), ssl=authority.client()) as response,
        ):
            assert response.status == 200


def test_without_a_certificate_it_is_plain_http() -> None:
    assert tls.context(Tls()) is None
