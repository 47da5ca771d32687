"""`access.authentication` and HTTPS in a configuration: what is let through, and what is refused, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from mcproxy.access.keys import key_digest
from mcproxy.settings.access.authentication import ApiKeySettings, Certificates, Forwarded, Issuer, OAuth
from tests.configuration.reading import SENTINEL, configure, problems
from tests.configuration.test_schema import CONFIG
from tests.fakes.certificates import Authority

HASH, OTHER = key_digest("a").hex(), key_digest("b").hex()
KEYS = f"{{keys: {{bot: [{{sha256: {HASH}}}]}}}}"
ISSUER = "{issuer: 'https://a.example'}"
OAUTH = f"{{oauth: {{issuers: [{ISSUER}]}}}}"


def access(authentication: str, proxy: str = "{}") -> str:
    return f"proxy: {proxy}\naccess:\n  authentication: {authentication}\n"


@pytest.mark.parametrize(
    "authentication",
    [
        KEYS,
        "{forwarded: {trusted: [10.0.0.0/8]}}",
        OAUTH,
    ],
)
def test_r42_with_authentication_the_gateway_may_bind_elsewhere(tmp_path: Path, authentication: str) -> None:
    proxy = "{host: 0.0.0.0, public_url: 'https://gw.example'}"
    settings = configure(tmp_path, access(authentication, proxy)).settings
    assert settings.access.authentication.required
    assert not settings.proxy.insecure


@pytest.mark.parametrize("authentication", ["{}", "{keys: {}}", "{key_header: X-API-Key}", "{stdio: {name: me}}"])
def test_r42_what_authenticates_no_caller_over_http_does_not_count(tmp_path: Path, authentication: str) -> None:
    (problem,) = problems(tmp_path, access(authentication, "{host: 0.0.0.0}"))
    assert problem.startswith("mcproxy.yaml:1:9: proxy.host: is not loopback, and callers are not authenticated")


@pytest.mark.parametrize("proxy", ["{host: 0.0.0.0}", "{allowed_hosts: [gw.example]}", "{allowed_hosts: ['*']}"])
def test_tokens_are_for_a_url_that_no_host_header_decides(tmp_path: Path, proxy: str) -> None:
    (problem,) = problems(tmp_path, access(OAUTH, proxy))
    assert problem.startswith("mcproxy.yaml:3:20: access.authentication.oauth: needs proxy.public_url")


@pytest.mark.parametrize(
    ("authentication", "sentence"),
    [
        ("{keys: {bot: [{sha256: abc}]}}", "keys.bot.0.sha256: should be 64 hexadecimal digits"),
        (f"{{keys: {{bot: {{sha256: {HASH}}}}}}}", "keys.bot: should be a list"),
        (
            f"{{keys: {{anonymous: [{{sha256: {HASH}}}]}}}}",
            "keys.anonymous: is the name of callers",
        ),
        (f"{{keys: {{a: [{{sha256: {HASH}}}], b: [{{sha256: {HASH}}}]}}}}", "keys.b.0.sha256: is already a key of 'a'"),
        (f"{{keys: {{'oidc:ann': [{{sha256: {HASH}}}]}}}}", 'keys."oidc:ann": the name of a caller should be letters'),
        (f"{{keys: {{a: [{{sha256: {HASH}, expires: 2027-01-01}}]}}}}", "expires: should be a time with its zone"),
        (f"{{keys: {{a: [{{sha256: {HASH}, expires: '2027-01-01T00:00:00'}}]}}}}", "expires: should be a time"),
        ("{oauth: {issuers: [{issuer: 'http://a.example'}]}}", "issuer: should be an https URL"),
        ("{oauth: {issuers: [{issuer: 'https://a.example?x'}]}}", "without user, query and fragment"),
        ("{oauth: {issuers: [{issuer: 'https://u:p@a.example'}]}}", "without user, query and fragment"),
        ("{oauth: {issuers: [{issuer: 'https://a.example', algorithms: [HS256]}]}}", "algorithms.0: should be 'RS256'"),
        ("{oauth: {issuers: [{issuer: 'https://a.example', algorithms: [none]}]}}", "algorithms.0: should be 'RS256'"),
        ("{oauth: {issuers: [{issuer: 'https://a.example', algorithms: []}]}}", "at least 1 item"),
        (
            f"{{oauth: {{issuers: [{ISSUER}, {ISSUER}]}}}}",
            "issuers.1.issuer: is already the identifier",
        ),
        (
            f"{{oauth: {{issuers: [{ISSUER}, {{issuer: 'https://b.example'}}]}}}}",
            "issuers.1.prefix: is the prefix of another source of names too",
        ),
        ("{oauth: {issuers: [{issuer: 'https://b.example', prefix: 'b'}]}}", "prefix: should be lower-case letters"),
        (
            f"{{keys: {{a: [{{sha256: {HASH}}}]}}, forwarded: {{trusted: [10.0.0.1], prefix: ''}}}}",
            "prefix: is empty beside another source of names",
        ),
        ("{forwarded: {trusted: [proxy.internal]}}", "trusted.0: should be an address, such as 10.1.2.3"),
        ("{forwarded: {trusted: [10.0.0.1/8]}}", "or a whole network, such as 10.0.0.0/8"),
        ("{forwarded: {trusted: [10]}}", "trusted.0: should be an address"),
        ("{forwarded: {trusted: [10.0.0.1], user_header: Authorization}}", "user_header: the header Authorization has"),
        ("{key_header: x-forwarded-user}", "key_header: the header x-forwarded-user has"),
        ("{key_header: 'X-Key: a'}", "key_header: should be the name of a header"),
        ("{certificates: {enabled: true}}", "needs proxy.tls.client_ca"),
        ("{oauth: {required_scopes: ['a b']}}", "required_scopes.0: should be one scope"),
        ("{autentication: {}}", "unknown key"),
    ],
)
def test_r50_what_cannot_be_is_refused_with_its_place(tmp_path: Path, authentication: str, sentence: str) -> None:
    (problem,) = problems(tmp_path, access(authentication))
    assert problem.startswith("mcproxy.yaml:3:")
    assert sentence in problem


def test_one_source_of_names_needs_no_prefix(tmp_path: Path) -> None:
    text = access("{oauth: {issuers: [{issuer: 'https://a.example', prefix: ''}]}}")
    assert configure(tmp_path, text).settings.access.authentication.oauth.issuers[0].prefix == ""


def test_a_rotated_key_and_its_end(tmp_path: Path) -> None:
    text = access(f"{{keys: {{bot: [{{sha256: {HASH}, expires: 2027-01-01T00:00:00Z}}, {{sha256: {OTHER}}}]}}}}")
    old, new = configure(tmp_path, text).settings.access.authentication.keys["bot"]
    assert old.expires is not None
    assert (old.expires.year, new.expires) == (2027, None)


def test_r44_what_a_variable_brings_into_access_is_known_as_a_secret_and_shown_in_no_error(tmp_path: Path) -> None:
    good = access("{oauth: {issuers: [{issuer: 'https://a.example', audience: ['${AUD}']}]}}")
    assert SENTINEL in configure(tmp_path, good, {"AUD": SENTINEL}).secrets
    bad = access("{keys: {bot: [{sha256: '${K}', expires: '${K}'}]}, oauth: {issuers: [{issuer: '${K}'}]}}")
    found = problems(tmp_path, bad, {"K": SENTINEL})
    assert len(found) == 3
    assert SENTINEL not in "\n".join(found)


# HTTPS


def test_files_of_tls_are_relative_to_the_configuration_and_watched_with_it(tmp_path: Path) -> None:
    Authority(tmp_path, "ca").issue("server", "gateway")
    text = "proxy: {tls: {certificate: server.pem, key: ./server.key, client_ca: ca.pem}}"
    configuration = configure(tmp_path, text)
    tls = configuration.settings.proxy.tls
    files = [str(tmp_path / name) for name in ("server.pem", "server.key", "ca.pem")]
    assert [tls.certificate, tls.key, tls.client_ca] == files
    assert {*map(Path, files)} <= configuration.files


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        (
            "{certificate: a.pem, key: b.key}",
            "29: proxy.tls.key: is not the private key of the certificate in {}/a.pem",
        ),
        ("{certificate: a.pem}", "9: proxy.tls.certificate: holds no private key that can be used: set proxy.tls.key"),
        ("{certificate: a.key, key: a.key}", "9: proxy.tls.certificate: holds no certificate in PEM format"),
        ("{certificate: a.pem, key: a.pem}", "29: proxy.tls.key: holds no private key in PEM format"),
        ("{certificate: a.pem, key: a.key, client_ca: a.key}", "41: proxy.tls.client_ca: holds no certificate"),
    ],
)
def test_r87_tls_files_that_cannot_be_used_together_are_refused(tmp_path: Path, tls: str, expected: str) -> None:
    for name in ("a", "b"):
        Authority(tmp_path).issue(name, "gateway")
    (problem,) = problems(tmp_path, f"proxy:\n  tls: {tls}\n")
    assert problem.startswith(f"mcproxy.yaml:2:{expected.format(tmp_path)}")


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ("{certificate: missing.pem}", "proxy.tls.certificate: there is no file"),
        ("{key: server.key}", "proxy.tls.key: needs a certificate"),
        ("{certificate: server.pem, minimum_version: '1.1'}", "proxy.tls.minimum_version: should be '1.2' or '1.3'"),
    ],
)
def test_tls_that_cannot_be_is_refused_with_its_place(tmp_path: Path, tls: str, sentence: str) -> None:
    Authority(tmp_path).issue("server", "gateway")
    (problem,) = problems(tmp_path, f"proxy:\n  tls: {tls}\n")
    assert problem.startswith("mcproxy.yaml:2:")
    assert sentence in problem


@pytest.mark.parametrize(
    ("given", "kept"), [("https://gw.example/", "https://gw.example"), ("http://gw:8/x/", "http://gw:8/x")]
)
def test_a_public_url_is_kept_without_its_last_slash(tmp_path: Path, given: str, kept: str) -> None:
    assert configure(tmp_path, f"proxy: {{public_url: '{given}'}}").settings.proxy.public_url == kept


@pytest.mark.parametrize(
    "url", ["gw.example", "ftp://x", "https://", "https://u@x", "https://x?y", "https://x:y", "https://["]
)
def test_a_public_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    (problem,) = problems(tmp_path, f"proxy: {{public_url: '{url}'}}")
    assert "proxy.public_url: should" in problem


def test_the_reference_names_every_key_of_what_lists_hold() -> None:
    text = (CONFIG / "reference.yaml").read_text()
    keys = [key for model in (ApiKeySettings, Issuer) for key in model.model_fields]
    assert [key for key in keys if f"{key}: " not in text] == []
    authentication = yaml.safe_load(text)["access"]["authentication"]
    for section in (OAuth(), Forwarded(), Certificates()):
        assert set(type(section).model_fields) in [set(value) for value in authentication.values() if value]
