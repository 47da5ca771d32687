"""Keys of issuers: what is taken for one, and when they are fetched."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from mcproxy.access.oauth.fetching import FetchFailed
from mcproxy.access.oauth.issuers import ALGORITHMS, MAX_KEYS, KeySet, KeysUnavailable, metadata_urls, read_keys
from mcproxy.settings.access.authentication import Issuer, OAuth
from tests.fakes.issuer import Pair, pair
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

ISSUER = "https://login.example"
JWKS = f"{ISSUER}/jwks"


def jwks(*pairs: Pair) -> bytes:
    return json.dumps({"keys": [pair.jwk for pair in pairs]}).encode()


@dataclass
class Web:
    """What `fetch` finds, by URL. An exception is raised."""

    pages: dict[str, bytes | Exception]
    asked: list[tuple[str, bool]] = field(default_factory=list)
    gate: anyio.Event | None = None

    async def __call__(self, url: str, keys_max_bytes: int, *, public: bool = False) -> bytes:
        self.asked.append((url, public))
        if self.gate is not None:
            await self.gate.wait()
        page = self.pages.get(url, FetchFailed(url))
        if isinstance(page, Exception):
            raise page
        return page


@dataclass
class Clock:
    now: float = 0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def key_set(web: Web, clock: Clock | None = None, *, jwks_url: str | None = JWKS) -> AsyncIterator[KeySet]:
    oauth = OAuth(keys_lifetime=1000, keys_cooldown=10, keys_timeout=3600)
    async with anyio.create_task_group() as tasks:
        issuer = Issuer(issuer=ISSUER, jwks_url=jwks_url)
        yield KeySet(issuer, oauth, tasks.start_soon, web, clock or Clock())
        tasks.cancel_scope.cancel()


async def test_many_that_need_the_keys_at_once_are_one_fetch() -> None:
    web = Web({JWKS: jwks(pair())}, gate=anyio.Event())
    found: list[int] = []
    with anyio.fail_after(GUARD):
        async with key_set(web) as keys:

            async def find() -> None:
                found.append(len(await keys.find("one", "RS256")))

            async with anyio.create_task_group() as callers:
                for _ in range(20):
                    callers.start_soon(find)
                await anyio.wait_all_tasks_blocked()
                assert web.gate is not None
                web.gate.set()
    assert found == [1] * 20
    assert len(web.asked) == 1


async def test_a_caller_that_hangs_up_ends_no_others_wait() -> None:
    web = Web({JWKS: jwks(pair())}, gate=anyio.Event())
    with anyio.fail_after(GUARD):
        async with key_set(web) as keys, anyio.create_task_group() as callers:
            with anyio.move_on_after(0):
                await keys.find("one", "RS256")
            callers.start_soon(keys.find, "one", "RS256")
            await anyio.wait_all_tasks_blocked()
            assert web.gate is not None
            web.gate.set()
    assert len(web.asked) == 1


async def test_an_unknown_kid_brings_new_keys_and_no_more_than_one_fetch_in_a_while() -> None:
    web, clock = Web({JWKS: jwks(pair("one"))}), Clock()
    with anyio.fail_after(GUARD):
        async with key_set(web, clock) as keys:
            assert await keys.find("one", "RS256")
            web.pages[JWKS] = jwks(pair("one"), pair("two", "ES256"))
            for _ in range(50):
                assert await keys.find("two", "ES256") == ()
            assert len(web.asked) == 1
            clock.now = 10
            assert [key.kid for key in await keys.find("two", "ES256")] == ["two"]
            for guess in range(50):
                assert await keys.find(f"guess {guess}", "RS256") == ()
            assert len(web.asked) == 2


async def test_known_keys_go_on_while_the_issuer_is_down_and_unknown_ones_are_nobodys_fault() -> None:
    web, clock = Web({JWKS: jwks(pair())}), Clock()
    with anyio.fail_after(GUARD):
        async with key_set(web, clock) as keys:
            await keys.find("one", "RS256")
            web.pages[JWKS] = FetchFailed("down")
            clock.now = 5000
            assert await keys.find("one", "RS256")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(KeysUnavailable, match="down"):
                await keys.find("two", "RS256")
            web.pages[JWKS] = jwks(pair())
            clock.now = 6000
            await keys.find("one", "RS256")
            await anyio.wait_all_tasks_blocked()
            assert await keys.find("two", "RS256") == ()


async def test_old_keys_are_fetched_again_aside_and_a_key_that_is_gone_is_good_no_more() -> None:
    web, clock = Web({JWKS: jwks(pair("one"))}), Clock()
    with anyio.fail_after(GUARD):
        async with key_set(web, clock) as keys:
            await keys.find("one", "RS256")
            before = keys.keys
            web.pages[JWKS] = jwks(pair("two", "ES256"))
            clock.now = 1000
            assert await keys.find("one", "RS256")
            await anyio.wait_all_tasks_blocked()
            assert keys.keys is not before
            assert await keys.find("one", "RS256") == ()


async def test_keys_that_are_the_same_stay_the_same_value() -> None:
    web, clock = Web({JWKS: jwks(pair())}), Clock()
    with anyio.fail_after(GUARD):
        async with key_set(web, clock) as keys:
            await keys.find("one", "RS256")
            before = keys.keys
            clock.now = 1000
            keys.refresh()
            await anyio.wait_all_tasks_blocked()
            assert len(web.asked) == 2
            assert keys.keys is before


async def test_an_issuer_that_does_not_answer_in_time_is_unavailable() -> None:
    web = Web({JWKS: jwks(pair())}, gate=anyio.Event())
    with anyio.fail_after(GUARD):
        async with key_set(web) as keys:
            keys.oauth = OAuth(keys_timeout=0.01)
            with pytest.raises(KeysUnavailable, match="no answer within"):
                await keys.find("one", "RS256")


# Discovery


def metadata(**changes: Any) -> bytes:
    return json.dumps({"issuer": ISSUER, "jwks_uri": JWKS, **changes}).encode()


@pytest.mark.parametrize("name", ["oauth-authorization-server", "openid-configuration"])
async def test_the_metadata_says_where_the_keys_are(name: str) -> None:
    web = Web({f"{ISSUER}/.well-known/{name}": metadata(), JWKS: jwks(pair())})
    with anyio.fail_after(GUARD):
        async with key_set(web, jwks_url=None) as keys:
            assert await keys.find("one", "RS256")
    assert web.asked[-1] == (JWKS, False)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (metadata(issuer="https://evil.example"), "another issuer"),
        (metadata(issuer=ISSUER + "/x"), "another issuer"),
        (b"{}", "no metadata"),
        (b"[" * 100_000, "no metadata"),
        (metadata(jwks_uri=7), "no metadata"),
        (FetchFailed("gone"), "set jwks_url"),
    ],
)
async def test_metadata_that_is_not_the_issuers_own_is_not_used(page: bytes | Exception, why: str) -> None:
    web = Web({f"{ISSUER}/.well-known/oauth-authorization-server": page, JWKS: jwks(pair())})
    with anyio.fail_after(GUARD):
        async with key_set(web, jwks_url=None) as keys:
            with pytest.raises(KeysUnavailable, match=why):
                await keys.find("one", "RS256")
    assert (JWKS, False) not in web.asked


async def test_r43_keys_elsewhere_than_at_the_issuer_are_sought_at_public_addresses_alone() -> None:
    elsewhere = "https://keys.example/jwks"
    found = metadata(jwks_uri=elsewhere)
    web = Web({f"{ISSUER}/.well-known/oauth-authorization-server": found, elsewhere: jwks(pair())})
    with anyio.fail_after(GUARD):
        async with key_set(web, jwks_url=None) as keys:
            assert await keys.find("one", "RS256")
    assert web.asked[-1] == (elsewhere, True)


def test_metadata_is_sought_in_the_order_of_the_specification() -> None:
    assert metadata_urls("https://auth.example.com/tenant1") == (
        "https://auth.example.com/.well-known/oauth-authorization-server/tenant1",
        "https://auth.example.com/.well-known/openid-configuration/tenant1",
        "https://auth.example.com/tenant1/.well-known/openid-configuration",
        "https://auth.example.com/.well-known/oauth-authorization-server",
        "https://auth.example.com/.well-known/openid-configuration",
    )
    assert metadata_urls("https://auth.example.com/") == (
        "https://auth.example.com/.well-known/oauth-authorization-server",
        "https://auth.example.com/.well-known/openid-configuration",
    )


# What is a key


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES384", "EdDSA"])
def test_a_key_may_be_used_as_its_kind_allows(algorithm: str) -> None:
    (key,) = read_keys(jwks(pair("k", algorithm)))
    assert algorithm in key.algorithms
    assert key.algorithms in ALGORITHMS.values()


def test_a_key_that_names_its_algorithm_is_for_that_one_alone() -> None:
    (key,) = read_keys(json.dumps({"keys": [{**pair().jwk, "alg": "PS512"}]}).encode())
    assert key.algorithms == {"PS512"}


def small() -> dict[str, Any]:
    return RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)


@pytest.mark.parametrize(
    "jwk",
    [
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"},
        {"kty": "oct", "crv": "P-256", "k": "c2VjcmV0"},
        {**pair().jwk, "use": "enc"},
        {**pair().jwk, "key_ops": ["sign"]},
        {**pair().jwk, "alg": "HS256"},
        {**pair().jwk, "alg": "none"},
        {**pair().jwk, "alg": "ES256"},
        {**pair().jwk, "kid": 7},
        {**pair().jwk, "kty": ["RSA"]},
        {**pair().jwk, "n": "!"},
        {**pair("e", "ES256").jwk, "crv": "secp256k1"},
        {**pair("e", "ES256").jwk, "x": "AAAA"},
        {**pair("e", "ES256").jwk, "crv": "P-384"},
        small(),
        7,
        None,
        {},
    ],
)
def test_what_is_no_key_for_signatures_is_left_out_and_the_rest_stays(jwk: object) -> None:
    document = json.dumps({"keys": [jwk, pair("good").jwk]}).encode()
    assert [key.kid for key in read_keys(document)] == ["good"]


@pytest.mark.parametrize("document", [b"", b"{}", b"<html>", b'{"keys":{}}', b'{"keys":[' + b"[" * 200_000])
def test_what_is_no_set_of_keys_is_refused(document: bytes) -> None:
    with pytest.raises(FetchFailed):
        read_keys(document)


def test_no_more_keys_are_taken_than_anybody_needs() -> None:
    document = json.dumps({"keys": [pair().jwk] * (MAX_KEYS + 50)}).encode()
    assert len(read_keys(document)) == MAX_KEYS
