"""`oauth` of an upstream: what it says, what a host's own says, and what excludes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configuration.reading import problems, upstream

KEYS = "access: {authentication: {keys: {bot: [{sha256: " + "ab" * 32 + "}]}}}\n"


def server(oauth: str, more: str = "") -> str:
    return f"mcpServers: {{web: {{url: 'https://a.example/mcp', oauth: {oauth}{more}}}}}\n"


def test_an_empty_block_finds_everything_out(tmp_path: Path) -> None:
    oauth = upstream(tmp_path, server("{}")).oauth
    assert oauth is not None
    assert (oauth.grant, oauth.issuer, oauth.client.id) == ("authorization_code", None, None)


def test_without_a_block_there_is_none(tmp_path: Path) -> None:
    assert upstream(tmp_path, "mcpServers: {web: {url: 'https://a.example/mcp'}}\n").oauth is None


def test_a_hosts_block_is_read_as_ours(tmp_path: Path) -> None:
    block = "{clientId: me, clientSecret: s, callbackPort: 8080, scopes: 'read write'}"
    oauth = upstream(tmp_path, server(block)).oauth
    assert oauth is not None
    assert (oauth.client.id, oauth.client.secret, oauth.scopes) == ("me", "s", ("read", "write"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mcpServers: {kid: {command: x, oauth: {}}}\n", "is for a server with a url"),
        (server("{}", ", headers: {authorization: Bearer x}"), "exclude each other"),
        (server("{}", ", credentials: {forward: {X-Token: Authorization}}"), "exclude each other"),
        (server("{grant: client_credentials}"), "needs client"),
        (server("{grant: workload}"), "go together"),
        (server("{workload: {token_file: /x}}"), "go together"),
        (server("{client: {secret: s}}"), "no id"),
        (server("{grant: token_exchange}"), "needs issuer"),
        (server("{grant: token_exchange, issuer: 'https://as.example', per: gateway}"), "per: gateway"),
        (server("{grant: token_exchange, issuer: 'https://as.example'}"), "access.authentication.oauth.issuers"),
        (server("{grant: enterprise, enterprise: {issuer: 'https://idp.example'}}"), "authentication.oauth.issuers"),
        (server("{client: {id: me, secret: s, key: k}}"), "both a secret and a key"),
        (server("{scopes: ['two words']}"), "scopes"),
    ],
)
def test_what_cannot_be_meant_is_a_problem_at_its_place(tmp_path: Path, text: str, says: str) -> None:
    [problem] = problems(tmp_path, text)
    assert says in problem


def test_r39_where_callers_authenticate_each_logs_in_for_itself_unless_one_for_all_is_meant(
    tmp_path: Path,
) -> None:
    mine = upstream(tmp_path, KEYS + server("{}"))
    assert mine.has_own_logins
    assert mine.connection == "principal"
    for shared in (upstream(tmp_path, KEYS + server("{per: gateway}")), upstream(tmp_path, server("{}"))):
        assert not shared.has_own_logins
        assert shared.connection == "shared"
    own = "{grant: client_credentials, client: {id: me, secret: s}}"
    assert not upstream(tmp_path, KEYS + server(own)).has_own_logins


@pytest.mark.parametrize("connection", ["shared", "session"])
def test_a_login_of_each_principal_has_a_connection_of_each_principal(tmp_path: Path, connection: str) -> None:
    [problem] = problems(tmp_path, KEYS + server("{}", f", connection: {connection}"))
    assert "each principal has a connection" in problem
    assert upstream(tmp_path, KEYS + server("{}", ", connection: principal")).has_own_logins


def test_exchanged_tokens_are_each_callers_own(tmp_path: Path) -> None:
    issuers = "access: {authentication: {oauth: {issuers: [{issuer: 'https://login.example'}]}}}\n"
    web = upstream(tmp_path, issuers + server("{grant: token_exchange, issuer: 'https://as.example'}"))
    assert web.oauth is not None
    assert (web.oauth.per, web.connection) == ("principal", "principal")
