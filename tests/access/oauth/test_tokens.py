"""Tokens: whose are good, for what, and the ways to forge one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mcproxy.access.keys import key_digest
from mcproxy.access.oauth.issuers import KeysUnavailable
from mcproxy.access.oauth.tokens import InsufficientScope, InvalidToken, Tokens
from mcproxy.call.identity import Principal
from mcproxy.settings.access.authentication import Issuer, OAuth
from tests.access.oauth.test_issuers import ISSUER, JWKS, Web, jwks
from tests.fakes.issuer import Pair, pair, unsigned
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

NOW = 1_800_000_000
HERE = "https://gw.example/mcp"
OTHER = "https://other.example"


def claims(**changes: Any) -> dict[str, Any]:
    whole = {"iss": ISSUER, "sub": "ann", "aud": HERE, "iat": NOW, "exp": NOW + 600, **changes}
    return {name: value for name, value in whole.items() if value is not None}


def signed(by: Pair | None = None, header: dict[str, Any] | None = None, **changes: Any) -> str:
    return (by or pair()).sign(claims(**changes), **(header or {}))


def issuer(**changes: Any) -> Issuer:
    return Issuer.model_validate({"issuer": ISSUER, "jwks_url": JWKS, **changes})


class Bench:
    def __init__(self, tokens: Tokens, web: Web) -> None:
        self.tokens = tokens
        self.web = web
        self.now = float(NOW)

    async def __call__(self, token: str, here: str = HERE) -> Principal:
        return (await self.tokens.verified(token, key_digest(token), lambda audience: audience == here)).principal


@asynccontextmanager
async def tokens(*issuers: Issuer, keys: tuple[Pair, ...] = (), **settings: Any) -> AsyncIterator[Bench]:
    web = Web({JWKS: jwks(*(keys or (pair(),)))})
    oauth = OAuth.model_validate({"issuers": issuers or (issuer(),), "keys_cooldown": 1e-9, **settings})
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            bench: Bench
            checker = Tokens(oauth, tasks.start_soon, web, lambda: bench.now)
            bench = Bench(checker, web)
            yield bench
            tasks.cancel_scope.cancel()


async def refused(check: Bench, token: str) -> str:
    with pytest.raises(InvalidToken) as caught:
        await check(token)
    assert token not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"])
async def test_a_token_signed_with_a_key_of_its_issuer_names_the_caller(algorithm: str) -> None:
    key = pair(algorithm, algorithm)
    async with tokens(keys=(pair(), key)) as check:
        principal = await check(signed(key, scope="read write", roles=["dev"]))
    assert principal == Principal("oidc:ann", frozenset({"dev"}), frozenset({"read", "write"}))


async def test_an_issuer_may_be_named_with_the_slash_of_an_empty_path() -> None:
    async with tokens() as check:
        assert (await check(signed(iss=f"{ISSUER}/"))).name == "oidc:ann"


async def test_a_token_without_a_kid_is_held_against_every_key_of_its_algorithm() -> None:
    first, second = pair("first"), pair("second")
    async with tokens(keys=(first, second)) as check:
        token = jwt.encode(claims(), second.private, "RS256")
        assert (await check(token)).name == "oidc:ann"


async def test_claims_are_where_the_issuer_has_them() -> None:
    keycloak = issuer(
        name_claim="preferred_username",
        roles_claim="realm_access.roles",
        scopes_claim="https://x.example/scp",
        attribute_claims=["email", "missing", "n"],
        roles=["everybody"],
        prefix="kc:",
    )
    async with tokens(keycloak) as check:
        more: dict[str, Any] = {"https://x.example/scp": ["a", "b c"], "email": "ann@x.example", "n": 7}
        token = signed(preferred_username="Ann", realm_access={"roles": ["dev", 7]}, **more)
        principal = await check(token)
    assert principal == Principal(
        "kc:Ann",
        frozenset({"dev", "everybody"}),
        frozenset({"a", "b", "c"}),
        (("email", "ann@x.example"),),
    )


async def grants(check: Bench, token: str) -> bytes:
    return (await check.tokens.verified(token, key_digest(token), lambda audience: True)).grants


async def test_a_renewed_token_grants_what_the_one_before_granted() -> None:
    async with tokens() as check:
        first = await grants(check, signed(jti="1", at_hash="a", azp="app", scope="read"))
        assert await grants(check, signed(jti="2", at_hash="b", azp="app", scope="read", exp=NOW + 900)) == first


@pytest.mark.parametrize(
    "changes",
    [
        {"scope": "read write"},
        {"azp": "other"},
        {"aud": OTHER},
        {"roles": ["dev"]},
        {"acr": "2"},
        {"act": {"sub": "x"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_token_that_differs_in_any_other_claim_grants_something_else(changes: dict[str, Any]) -> None:
    async with tokens() as check:
        whole: dict[str, Any] = {"azp": "app", "scope": "read"}
        assert await grants(check, signed(**whole)) != await grants(check, signed(**{**whole, **changes}))


async def test_an_identity_token_and_an_access_token_of_the_same_claims_grant_different_things() -> None:
    async with tokens() as check:
        assert await grants(check, signed(header={"typ": "at+jwt"})) != await grants(check, signed())


# Forgeries


def hmac_with_public_key(encoding: Encoding, format: PublicFormat) -> str:
    """RFC 8725, section 2.1: a public key taken for the secret of an HMAC."""
    public = pair().private.public_key().public_bytes(encoding, format)
    token = unsigned({"alg": "HS256", "kid": "one"}, claims())
    signature = hmac.digest(public, token.rsplit(".", 1)[0].encode(), hashlib.sha256)
    return unsigned({"alg": "HS256", "kid": "one"}, claims(), signature)


def with_embedded_key() -> str:
    own = pair("own", "ES256")
    return own.sign(claims(), jwk=own.jwk, jku="https://evil.example/jwks", x5u="https://evil.example/x", x5c=["AAAA"])


FORGERIES: dict[str, Callable[[], str]] = {
    "no signature, alg none": lambda: unsigned({"alg": "none"}, claims()),
    "alg None": lambda: unsigned({"alg": "None", "kid": "one"}, claims()),
    "alg NONE": lambda: unsigned({"alg": "NONE", "kid": "one"}, claims()),
    "alg empty": lambda: unsigned({"alg": "", "kid": "one"}, claims()),
    "no alg": lambda: unsigned({"kid": "one"}, claims()),
    "alg a list": lambda: unsigned({"alg": ["RS256"], "kid": "one"}, claims()),
    "the signature taken off": lambda: signed().rsplit(".", 1)[0] + ".",
    "HMAC with the public key, PEM": lambda: hmac_with_public_key(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    "HMAC with the public key, DER": lambda: hmac_with_public_key(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    "HMAC with a guess": lambda: jwt.encode(claims(), "secret" * 8, "HS256", {"kid": "one"}),
    "a key of its own, embedded and linked": with_embedded_key,
    "another's key under a known kid": lambda: pair("one", "PS512").sign(claims()),
    "a stranger's key": lambda: pair("stranger").sign(claims()),
    "kid a path": lambda: signed(header={"kid": "../../../../dev/null"}),
    "kid a URL": lambda: signed(header={"kid": "https://evil.example/jwks"}),
    "kid SQL": lambda: signed(header={"kid": "one' OR '1'='1"}),
    "kid null bytes": lambda: signed(header={"kid": "one\x00"}),
    "kid a number": lambda: unsigned({"alg": "RS256", "kid": 1}, claims(), b"x"),
    "a critical header": lambda: signed(header={"crit": ["exp"], "exp": 1}),
    "an unencoded payload": lambda: unsigned({"alg": "RS256", "kid": "one", "b64": False, "crit": ["b64"]}, claims()),
    "a payload changed": lambda: ".".join(
        (signed().split(".")[0], unsigned({}, claims(sub="root")).split(".")[1], signed().split(".")[2])
    ),
    "encrypted": lambda: "a.b.c.d.e",
    "one part": lambda: "opaque-token",
    "empty parts": lambda: "..",
    "no base64": lambda: "!.!.!",
    "no text": lambda: "é.é.é",
    "a header that nests without end": lambda: unsigned({}, {}).replace("e30", "W1tbW1tb" * 900, 1),
    "a payload that nests without end": lambda: ".".join((signed().split(".")[0], "W1tbW1tb" * 900, "AAAA")),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
async def test_a_forged_token_is_refused(forge: Callable[[], str]) -> None:
    async with tokens() as check:
        await refused(check, forge())
        assert {url for url, _ in check.web.asked} <= {JWKS}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"exp": NOW - 31}, "expired"),
    "without an end": ({"exp": None}, "claim"),
    "an end that is a text": ({"exp": str(NOW + 600)}, "claim"),
    "an end beyond numbers": ({"exp": 10**400}, "claim"),
    "not good yet": ({"nbf": NOW + 31}, "not valid yet"),
    "from the future": ({"iat": NOW + 31}, "not valid yet"),
    "for another": ({"aud": f"{OTHER}/mcp"}, "audience"),
    "for others": ({"aud": [OTHER, "account"]}, "audience"),
    "for a part of the name": ({"aud": "https://gw.example"}, "audience"),
    "for nobody": ({"aud": None}, "claim"),
    "for nothing": ({"aud": []}, "audience"),
    "for a number": ({"aud": 7}, "claim"),
    "of another issuer": ({"iss": OTHER}, "issuer"),
    "of an issuer with a path": ({"iss": ISSUER + "/x"}, "issuer"),
    "of nobody": ({"iss": None}, "claim"),
    "of two": ({"iss": [ISSUER]}, "claim"),
    "for nobody in particular": ({"sub": None}, "no name"),
    "for an empty name": ({"sub": ""}, "no name"),
    "for a number of a name": ({"sub": 7}, "no name"),
    "for a name that is two lines": ({"sub": "ann\nroot"}, "no name"),
    "for a name without end": ({"sub": "a" * 257}, "no name"),
}


@pytest.mark.parametrize(("changes", "why"), WRONG.values(), ids=WRONG.keys())
async def test_a_signed_token_that_is_not_for_here_and_now_is_refused(changes: dict[str, Any], why: str) -> None:
    async with tokens() as check:
        assert why in await refused(check, signed(**changes))


async def test_clocks_may_be_a_little_apart() -> None:
    async with tokens() as check:
        await check(signed(exp=NOW - 29))
        await check(signed(nbf=NOW + 29, iat=NOW + 29))


async def test_a_token_without_prefix_cannot_be_anonymous() -> None:
    async with tokens(issuer(prefix="")) as check:
        assert "reserved" in await refused(check, signed(sub="anonymous"))
        assert "its claim sub (name_claim) is missing" in await refused(check, signed(sub=None))


async def test_a_token_as_long_as_a_book_is_refused_unread() -> None:
    async with tokens(max_token_bytes=1000) as check:
        assert "max_token_bytes" in await refused(check, signed(pad="x" * 2000))
        assert check.web.asked == []


async def test_an_algorithm_that_is_not_listed_is_refused_though_the_key_could() -> None:
    async with tokens(issuer(algorithms=["PS256"])) as check:
        assert "not accepted" in await refused(check, signed())


async def test_other_audiences_may_be_configured() -> None:
    async with tokens(issuer(audience=["api://mcp"])) as check:
        assert (await check(signed(aud=["x", "api://mcp"]))).name == "oidc:ann"
        assert (await check(signed())).name == "oidc:ann"


async def test_callers_of_two_issuers_never_share_a_name() -> None:
    other = Issuer(issuer=OTHER, jwks_url=f"{OTHER}/jwks", prefix="other:")
    async with tokens(issuer(), other) as check:
        check.web.pages[f"{OTHER}/jwks"] = jwks(pair("theirs"))
        assert (await check(signed())).name == "oidc:ann"
        assert (await check(signed(pair("theirs"), iss=OTHER))).name == "other:ann"
        await refused(check, signed(pair("theirs")))


# What is remembered


async def test_a_signature_is_checked_once_and_time_and_audience_at_every_use() -> None:
    async with tokens() as check:
        token = signed()
        first = await check(token)
        check.web.pages.clear()
        assert await check(token) is first
        with pytest.raises(InvalidToken, match="audience"):
            await check(token, "https://gw.example/servers/a/mcp")
        check.now = NOW + 631
        assert "expired" in await refused(check, token)


async def test_a_key_that_its_issuer_took_back_is_good_no_more_for_a_known_token_either() -> None:
    async with tokens(keys_lifetime=1e-9) as check:
        token = signed()
        await check(token)
        check.web.pages[JWKS] = jwks(pair("two", "ES256"))
        await check(signed(pair("two", "ES256")))
        await refused(check, token)


async def test_known_tokens_go_on_while_the_issuer_is_down() -> None:
    async with tokens() as check:
        token = signed()
        await check(token)
        check.web.pages.clear()
        await check(token)
        await check(signed(jti="another, of a known key"))
        with pytest.raises(KeysUnavailable):
            await check(signed(pair("two", "ES256")))


async def test_remembered_tokens_are_bounded() -> None:
    async with tokens(max_tokens=2) as check:
        for number in range(5):
            await check(signed(jti=str(number)))
        assert len(check.tokens) == 2


# Scopes


async def test_a_token_that_lacks_a_required_scope_is_good_and_not_enough() -> None:
    async with tokens(required_scopes=["mcp:use", "mcp:tools"]) as check:
        with pytest.raises(InsufficientScope, match=r"lacks a scope: mcp:tools$"):
            await check(signed(scope="mcp:use"))
        assert (await check(signed(scope="mcp:tools mcp:use other"))).name == "oidc:ann"


async def test_a_broader_scope_stands_for_the_narrower_ones() -> None:
    implied = {"admin": ["write"], "write": ["read", "admin"]}
    async with tokens(required_scopes=["read"], implied_scopes=implied) as check:
        assert (await check(signed(scope="admin"))).scopes == {"admin", "write", "read"}


async def test_other_settings_are_for_the_next_token_and_known_keys_stay() -> None:
    async with tokens() as check:
        token = signed(email="ann@x.example")
        await check(token)
        check.web.pages.clear()
        check.tokens.reconfigure(OAuth(issuers=(issuer(),), required_scopes=("read",)))
        with pytest.raises(InsufficientScope):
            await check(token)
        check.tokens.reconfigure(OAuth())
        assert "issuer" in await refused(check, token)
