"""Who asks, by all that a request may show: what goes first, and what is never believed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from mcproxy.access.identity import Fault, Identity, NotIdentified, anonymous_from
from mcproxy.access.keys import key_digest
from mcproxy.access.refusals import RefusalReason
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.settings.access.authentication import Authentication
from tests.access.oauth.test_issuers import ISSUER, JWKS, Clock, Web, jwks
from tests.access.oauth.test_tokens import HERE, NOW, signed
from tests.fakes.issuer import pair
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

KEY = {"sha256": key_digest("the-key").hex(), "roles": ["reader"]}
KEYS = {"keys": {"bot": [KEY]}}
TOKENS = {"oauth": {"issuers": [{"issuer": ISSUER, "jwks_url": JWKS}]}}
PROXY = {"forwarded": {"trusted": ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"], "roles_header": "X-Forwarded-Groups"}}
CERTIFICATES = {"certificates": {"enabled": True, "roles": ["device"]}}


Headers = Sequence[tuple[str, str]]


@dataclass
class Shown:
    """Implements `Presented`."""

    headers: Headers
    peer: str | None = None
    names: Collection[tuple[str, str]] = ()

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def certificate(self) -> Collection[tuple[str, str]]:
        return self.names

    def is_audience(self, audience: str) -> bool:
        return audience == HERE

    @property
    def resource(self) -> str:
        return HERE


async def ask(
    settings: dict[str, Any],
    *headers: tuple[str, str],
    peer: str | None = "198.51.100.1",
    certificate: Collection[tuple[str, str]] = (),
    fetch: Web | None = None,
) -> Principal:
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            web = fetch or Web({JWKS: jwks(pair())})
            known = Authentication.model_validate(settings)
            identity = Identity(known, tasks.start_soon, web, lambda: NOW)
            try:
                return (await identity.identify(Shown(headers, peer, certificate))).principal
            except NotIdentified as refusal:
                found = refusal
    raise found


async def fault(settings: dict[str, Any], *headers: tuple[str, str], **more: Any) -> Fault:
    with pytest.raises(NotIdentified) as caught:
        await ask(settings, *headers, **more)
    return caught.value.fault


def bearer(secret: str, scheme: str = "Bearer") -> tuple[str, str]:
    return "Authorization", f"{scheme} {secret}"


async def test_where_nothing_is_configured_everybody_is_anonymous() -> None:
    assert await ask({}) == Principal("anonymous", address="198.51.100.1")
    found = await ask({}, bearer("whatever"), ("X-Forwarded-User", "root"), peer="10.0.0.1")
    assert found == Principal("anonymous", address="10.0.0.1")


def test_callers_of_many_addresses_are_told_apart_by_their_hashes() -> None:
    callers = [anonymous_from(f"203.0.113.{number}") for number in range(256)]
    assert len({hash(caller) for caller in callers}) == len(callers)
    assert hash(anonymous_from("203.0.113.7")) == hash(callers[7])


@pytest.mark.parametrize(
    ("peer", "account"),
    [
        ("203.0.113.7", "anonymous at 203.0.113.7"),
        ("::ffff:203.0.113.7", "anonymous at 203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "anonymous at 2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "anonymous at 2001:db8:1:2::/64"),
        ("fe80::1%eth0", "anonymous at fe80::/64"),
        ("127.0.0.1", "anonymous"),
        ("127.8.9.10", "anonymous"),
        ("::1", "anonymous"),
        ("::ffff:127.0.0.1", "anonymous"),
        (None, "anonymous"),
    ],
)
async def test_callers_without_authentication_are_told_apart_by_their_address(peer: str | None, account: str) -> None:
    principal = await ask({}, peer=peer)
    assert (principal.name, principal.account) == ("anonymous", account)
    assert principal.is_several == (account == "anonymous")


@pytest.mark.parametrize("settings", [KEYS, TOKENS, PROXY, CERTIFICATES], ids=["keys", "tokens", "proxy", "cert"])
async def test_where_anything_is_nobody_is(settings: dict[str, Any]) -> None:
    assert await fault(settings) is Fault.MISSING


# Keys and tokens


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
async def test_a_key_is_a_bearer_token_however_its_scheme_is_spelt(scheme: str) -> None:
    principal = await ask(KEYS, bearer("the-key", scheme))
    assert (principal.name, principal.roles) == ("bot", frozenset({"reader"}))


async def test_a_key_may_have_a_header_of_its_own_where_that_is_configured() -> None:
    assert await fault(KEYS, ("X-API-Key", "the-key")) is Fault.MISSING
    assert (await ask({**KEYS, "key_header": "X-API-Key"}, ("x-api-key", "the-key"))).name == "bot"


async def test_an_expired_key_is_invalid() -> None:
    past, future = {**KEY, "expires": "2027-01-15T07:59:59Z"}, {**KEY, "expires": "2027-01-15T08:00:01Z"}
    assert await fault({"keys": {"bot": [past]}}, bearer("the-key")) is Fault.INVALID
    assert (await ask({"keys": {"bot": [future]}}, bearer("the-key"))).name == "bot"


async def test_keys_and_tokens_go_together() -> None:
    both = {**KEYS, **TOKENS}
    assert (await ask(both, bearer("the-key"))).name == "bot"
    assert (await ask(both, bearer(signed()))).name == "oidc:ann"
    assert await fault(both, bearer("another-key")) is Fault.INVALID


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        "the-key",
        "Basic dGhlLWtleQ==",
        "Bearer the-key x",
        "Bearer the-key, Bearer the-key",
        "Bearer the-kéy",
        "Bearer the-key\udcff",
        "Bearer\tthe-key",
        "Bearer the key",
        "BearerX the-key",
        "Bearer the-key\x00",
        "Bearer THE-KEY",
        "Bearer the-ke",
        "Bearer ＴＨＥ-key",
        "Bearer " + "a" * 100_000,
    ],
)
async def test_what_is_not_a_scheme_and_a_key_is_invalid(value: str) -> None:
    assert await fault(KEYS, ("Authorization", value)) is Fault.INVALID
    assert await fault(TOKENS, ("Authorization", value)) is Fault.INVALID


@pytest.mark.parametrize(
    "headers",
    [
        [bearer("the-key"), bearer("the-key")],
        [bearer("the-key"), bearer("another")],
        [bearer("the-key"), ("X-API-Key", "the-key")],
        [("X-API-Key", "the-key"), ("X-API-Key", "another")],
    ],
)
async def test_two_of_them_are_refused_whichever_is_good(headers: Headers) -> None:
    assert await fault({**KEYS, "key_header": "X-API-Key"}, *headers) is Fault.MALFORMED


async def test_a_token_whose_keys_cannot_be_had_is_not_called_invalid() -> None:
    assert await fault(TOKENS, bearer(signed()), fetch=Web({})) is Fault.UNAVAILABLE


async def test_a_token_that_lacks_a_scope_is_told_so() -> None:
    settings = {"oauth": {**TOKENS["oauth"], "required_scopes": ["mcp"]}}
    assert await fault(settings, bearer(signed(scope="other"))) is Fault.INSUFFICIENT


# The word of a proxy


USER = ("X-Forwarded-User", "ann")


@pytest.mark.parametrize("peer", ["10.1.2.3", "192.0.2.7", "::ffff:10.1.2.3", "2001:db8::1", "2001:db8::1%eth0"])
async def test_a_trusted_proxy_is_believed(peer: str) -> None:
    groups = ("X-Forwarded-Groups", "dev, ops,,dev")
    principal = await ask(PROXY, USER, groups, peer=peer)
    assert principal == Principal("proxy:ann", frozenset({"dev", "ops"}))


@pytest.mark.parametrize("peer", ["11.0.0.1", "192.0.2.8", "127.0.0.1", "::1", "::ffff:11.0.0.1", "2001:db9::1", None])
async def test_nobody_else_is(peer: str | None) -> None:
    assert await fault(PROXY, USER, ("X-Forwarded-For", "10.1.2.3"), peer=peer) is Fault.MISSING


async def test_the_header_of_a_stranger_takes_nothing_from_its_own_key() -> None:
    assert (await ask({**PROXY, **KEYS}, USER, bearer("the-key"))).name == "bot"


@pytest.mark.parametrize(
    "headers",
    [
        [USER, USER],
        [USER, ("x-forwarded-user", "root")],
        [("X-Forwarded-User", "")],
        [("X-Forwarded-User", "a\x1bb")],
        [("X-Forwarded-User", "a" * 257)],
        [("X-Forwarded-User", "\udcff")],
    ],
)
async def test_a_proxy_that_names_no_user_or_two_is_refused(headers: Headers) -> None:
    assert await fault({**PROXY, **KEYS}, *headers, bearer("the-key"), peer="10.0.0.1") is Fault.MALFORMED


async def test_a_proxy_without_a_name_leaves_it_to_the_caller() -> None:
    assert (await ask({**PROXY, **KEYS}, bearer("the-key"), peer="10.0.0.1")).name == "bot"


async def test_a_role_header_without_a_setting_gives_no_roles() -> None:
    plain = {"forwarded": {"trusted": ["10.0.0.0/8"]}}
    principal = await ask(plain, USER, ("X-Forwarded-Groups", "admin"), peer="10.0.0.1")
    assert principal.roles == frozenset()


# Certificates


async def test_a_certificate_names_its_principal() -> None:
    names = [("common_name", "sensor"), ("dns", "a.example"), ("dns", "b.example"), ("uri", "spiffe://x/sensor")]
    assert await ask(CERTIFICATES, certificate=names) == Principal("cert:sensor", frozenset({"device"}))
    by_uri = {"certificates": {"enabled": True, "name": "uri", "prefix": ""}}
    assert (await ask(by_uri, certificate=names)).name == "spiffe://x/sensor"


@pytest.mark.parametrize("names", [["a", "b"], ["a\nb"], ["a" * 257]])
async def test_a_certificate_with_two_names_or_none_that_can_be_one_is_refused(names: list[str]) -> None:
    certificate = [("common_name", name) for name in names]
    assert await fault(CERTIFICATES, certificate=certificate) is Fault.INVALID


async def test_no_source_can_name_a_caller_anonymous() -> None:
    bare = {"certificates": {"enabled": True, "prefix": ""}}
    assert await fault(bare, certificate=[("common_name", "anonymous")]) is Fault.INVALID


async def test_a_key_goes_before_a_certificate_and_a_bad_one_is_not_made_good_by_it() -> None:
    both = {**KEYS, **CERTIFICATES}
    certificate = [("common_name", "sensor")]
    assert (await ask(both, bearer("the-key"), certificate=certificate)).name == "bot"
    assert (await ask(both, certificate=certificate)).name == "cert:sensor"
    assert await fault(both, bearer("stolen"), certificate=certificate) is Fault.INVALID


# Reload


async def test_other_settings_count_from_the_next_request_on() -> None:
    with anyio.fail_after(GUARD):
        async with anyio.create_task_group() as tasks:
            identity = Identity(Authentication.model_validate(KEYS), tasks.start_soon)
            shown = Shown([bearer("the-key")])
            assert (await identity.identify(shown)).principal.name == "bot"
            another = {"keys": {"bot": [{"sha256": key_digest("another").hex()}]}}
            identity.reconfigure(Authentication.model_validate(another))
            with pytest.raises(NotIdentified):
                await identity.identify(shown)


async def test_an_identity_stands_until_any_reload() -> None:
    async with anyio.create_task_group() as tasks:
        identity = Identity(Authentication.model_validate(KEYS), tasks.start_soon)
        found = await identity.identify(Shown([bearer("the-key")]))
        assert identity.vouches(found)
        identity.reconfigure(Authentication.model_validate(KEYS))
        assert not identity.vouches(found)
        assert identity.vouches(await identity.identify(Shown([bearer("the-key")])))


async def test_an_identity_stands_until_its_credentials_expire() -> None:
    clock = Clock(NOW)
    keys = {"keys": {"bot": [{**KEY, "expires": "2027-01-15T08:00:01Z"}]}}
    async with anyio.create_task_group() as tasks:
        settings = Authentication.model_validate({**keys, **TOKENS})
        identity = Identity(settings, tasks.start_soon, Web({JWKS: jwks(pair())}), clock)
        key = await identity.identify(Shown([bearer("the-key")]))
        token = await identity.identify(Shown([bearer(signed(nbf=NOW, exp=NOW + 100))]))
        leeway = settings.oauth.issuers[0].leeway
        for passed, good in (
            (0, (True, True)),
            (1, (False, True)),
            (99, (False, True)),
            (100 + leeway, (False, False)),
        ):
            clock.now = NOW + passed
            assert (identity.vouches(key), identity.vouches(token)) == good
        clock.now = NOW - leeway - 1
        assert not identity.vouches(token)


async def test_a_token_is_vouched_for_until_its_issuer_has_other_keys() -> None:
    async with anyio.create_task_group() as tasks:
        web = Web({JWKS: jwks(pair())})
        settings = Authentication.model_validate({"oauth": {**TOKENS["oauth"], "keys_cooldown": 1e-9}})
        identity = Identity(settings, tasks.start_soon, web, lambda: NOW)
        found = await identity.identify(Shown([bearer(signed())]))
        assert identity.vouches(found)
        web.pages[JWKS] = jwks(pair("another"))
        with pytest.raises(NotIdentified):
            await identity.identify(Shown([bearer(signed(pair("stolen")))]))
        assert not identity.vouches(found)


async def test_the_caller_over_stdio_is_configured() -> None:
    async with anyio.create_task_group() as tasks:
        settings = Authentication.model_validate({"stdio": {"name": "me", "roles": ["dev"]}})
        assert Identity(settings, tasks.start_soon).local == Principal("me", frozenset({"dev"}))
        assert Identity(Authentication(), tasks.start_soon).local == ANONYMOUS


# Why


@pytest.mark.parametrize(
    ("settings", "headers", "reason"),
    [
        (KEYS, (), RefusalReason.MISSING),
        (KEYS, (bearer("another-key"),), RefusalReason.UNKNOWN_KEY),
        (KEYS, (("Authorization", "Basic abc"),), RefusalReason.MALFORMED),
        (KEYS, (bearer("the-key"), bearer("the-key")), RefusalReason.SEVERAL),
        (TOKENS, (bearer("no.token"),), RefusalReason.MALFORMED),
        (TOKENS, (bearer(signed(iss="https://evil.example")),), RefusalReason.UNTRUSTED_ISSUER),
        (TOKENS, (bearer(signed(exp=NOW - 100)),), RefusalReason.EXPIRED),
        (TOKENS, (bearer(signed(nbf=NOW + 100)),), RefusalReason.NOT_YET_VALID),
        (TOKENS, (bearer(signed(aud="https://other.example")),), RefusalReason.AUDIENCE),
        (TOKENS, (bearer(signed(sub="")),), RefusalReason.NAME),
        (TOKENS, (bearer(signed()[:-8] + "AAAAAAAA"),), RefusalReason.SIGNATURE),
    ],
)
async def test_r88_a_refusal_says_why(
    settings: dict[str, Any], headers: tuple[tuple[str, str], ...], reason: RefusalReason
) -> None:
    with pytest.raises(NotIdentified) as caught:
        await ask(settings, *headers)
    assert caught.value.reason is reason


async def test_r88_a_token_for_another_audience_is_told_which_was_expected() -> None:
    issuer = {"issuer": ISSUER, "jwks_url": JWKS, "audience": ["api://gateway"]}
    with pytest.raises(NotIdentified) as caught:
        await ask({"oauth": {"issuers": [issuer]}}, bearer(signed(aud="https://other.example")))
    assert caught.value.sentence == f"the token is for another audience: expected {HERE} or api://gateway"
