"""Names in a configuration that name nothing: warnings, and errors for deny rules that can deny nothing (R86)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.settings.access.policy import RulePath
from tests.configuration.reading import configure, problems

HASH = "a" * 64
SERVERS = "mcpServers: {github: {command: x}, git: {command: x, enabled: false}}\n"


def warnings(folder: Path, text: str) -> list[str]:
    found = configure(folder, SERVERS + text).warnings
    return [str(warning).removeprefix(f"{folder}/mcproxy.yaml:") for warning in found]


@pytest.mark.parametrize(
    "rule", ["{upstreams: [gihub], tools: [x]}", "{upstreams: [gitlab, other]}", "{upstreams: []}"]
)
def test_r86_a_deny_rule_that_selects_no_server_is_an_error(tmp_path: Path, rule: str) -> None:
    text = f"access:\n  policy:\n    roles:\n      everyone:\n        deny:\n        - {rule}\n"
    (problem,) = problems(tmp_path, SERVERS + text)
    assert problem.startswith("mcproxy.yaml:7:12: access.policy.roles.everyone.deny.0.upstreams: can deny nothing: ")


def test_r86_the_error_suggests_the_server_that_was_meant(tmp_path: Path) -> None:
    text = "access: {policy: {roles: {everyone: {deny: [{upstreams: [gihub]}]}}}}"
    (problem,) = problems(tmp_path, SERVERS + text)
    assert problem.endswith("can deny nothing: no server matches 'gihub'; did you mean 'github'?")


@pytest.mark.parametrize(
    "rule", ["{tools: []}", "{tools: [], resources: [], prompts: []}", "{read_only: true, tools: []}"]
)
def test_r86_a_deny_rule_that_selects_no_entry_is_an_error(tmp_path: Path, rule: str) -> None:
    (problem,) = problems(tmp_path, SERVERS + f"access: {{policy: {{roles: {{everyone: {{deny: [{rule}]}}}}}}}}")
    assert "deny.0: can deny nothing: it selects no tools" in problem


@pytest.mark.parametrize(
    "rule", ["{}", "{upstreams: ['*']}", "{upstreams: [git*]}", "{upstreams: [git]}", "{tools: [x]}"]
)
def test_a_deny_rule_for_a_server_that_exists_is_no_error(tmp_path: Path, rule: str) -> None:
    text = f"access: {{policy: {{default: allow, roles: {{everyone: {{deny: [{rule}]}}}}}}}}"
    assert warnings(tmp_path, text) == []
    place: RulePath = ("everyone", "deny", 0)
    assert configure(tmp_path, SERVERS + text).settings.access.policy.place(place)


def test_a_rule_for_every_server_stands_before_there_is_one(tmp_path: Path) -> None:
    text = "access: {policy: {roles: {everyone: {deny: [{tools: [x]}]}}}}"
    assert configure(tmp_path, text).warnings == ()


def test_r86_names_that_name_nothing_are_warnings_with_their_places(tmp_path: Path) -> None:
    text = f"""\
access:
  authentication:
    keys:
      bot: [{{sha256: {HASH}, roles: [raeder]}}]
  policy:
    roles:
      reader:
        allow: [{{upstreams: [github, gihub]}}]
        deny: [{{upstreams: [github, gitlab]}}]
    principals:
      bto: [reader]
  limits:
    rules:
      all: {{upstreams: [nothing], rate: 1/s, roles: {{vip: {{rate: 2/s}}}}}}
endpoints:
  team:
    upstreams: [git-hub]
    roles: [reader, ops]
"""
    assert warnings(tmp_path, text) == [
        "5:96: access.authentication.keys.bot.0.roles.0: the role 'raeder' is defined nowhere; did you mean 'reader'?",
        "9:38: access.policy.roles.reader.allow.0.upstreams.1: no server matches 'gihub'; did you mean 'github'?",
        "10:37: access.policy.roles.reader.deny.0.upstreams.1: no server matches 'gitlab'; did you mean 'github'?",
        "12:7: access.policy.principals.bto: no caller is called 'bto'; did you mean 'bot'?",
        "15:25: access.limits.rules.all.upstreams.0: no server matches 'nothing'; there are 'git', 'github'",
        "15:54: access.limits.rules.all.roles.vip: no caller can have the role 'vip'; "
        "there are 'everyone', 'raeder', 'reader'",
        "18:17: endpoints.team.upstreams.0: no server matches 'git-hub'; did you mean 'github'?",
        "19:21: endpoints.team.roles.1: no caller can have the role 'ops'; there are 'everyone', 'raeder', 'reader'",
    ]


def test_where_tokens_name_callers_and_roles_these_may_be_any(tmp_path: Path) -> None:
    text = """\
access:
  authentication: {oauth: {issuers: [{issuer: 'https://login.example'}]}}
  policy: {roles: {reader: {allow: [{}]}}, principals: {'oidc:ann': [reader]}}
endpoints: {team: {roles: [ops]}}
"""
    assert warnings(tmp_path, text) == []


def test_a_role_of_the_key_that_only_an_endpoint_or_the_page_asks_for_is_used(tmp_path: Path) -> None:
    text = f"""\
access: {{authentication: {{keys: {{bot: [{{sha256: {HASH}, roles: [ops, operator, everyone]}}]}}}}}}
endpoints: {{team: {{roles: [ops]}}}}
"""
    assert warnings(tmp_path, text) == []


HOOK = "url: 'https://ops.example/', secret: sixteen-characters-or-more"


@pytest.mark.parametrize(
    ("selection", "why"),
    [
        ("upstreams: [gihub]", "no server matches 'gihub'; did you mean 'github'?"),
        ("upstreams: []", "it selects no upstream"),
        ("prompts: [x]", "it selects no tools (`on`)"),
        ("on: [tools/call, prompts/get], resources: [x]", "it selects no tools or prompts (`on`)"),
        ("on: []", "`on` names no method"),
    ],
)
def test_r86_a_hook_that_is_asked_about_nothing_is_an_error_where_it_enforces(
    tmp_path: Path, selection: str, why: str
) -> None:
    text = f"access:\n  hooks:\n  - {{{HOOK}, {selection}"
    (problem,) = problems(tmp_path, SERVERS + text + "}\n")
    assert problem.startswith("mcproxy.yaml:4:")
    assert ": access.hooks.0" in problem
    assert problem.endswith(f": is never asked: {why}")
    (warning,) = warnings(tmp_path, text + ", mode: audit}\n")
    assert warning.endswith(f": is never asked: {why}")


def test_r86_of_a_hook_that_selects_something_each_further_name_is_a_warning(tmp_path: Path) -> None:
    text = f"access: {{hooks: [{{{HOOK}, upstreams: [git*, nix]}}, {{{HOOK}}}]}}"
    (warning,) = warnings(tmp_path, text)
    assert warning.endswith("access.hooks.0.upstreams.1: no server matches 'nix'; there are 'git', 'github'")


def test_r86_approvals_of_operators_are_told_where_no_caller_can_be_one(tmp_path: Path) -> None:
    keys = f"authentication: {{keys: {{bot: [{{sha256: {HASH}, roles: [ROLE]}}]}}}}"
    rules = "policy: {roles: {everyone: {allow: [{approve: caller}, {approve: operator}]}}}"
    text = f"access: {{{keys}, {rules}}}\nadmin: {{port: 9001, role: chief}}"
    (warning,) = warnings(tmp_path, text.replace("ROLE", "everyone"))
    place = "access.policy.roles.everyone.allow.1.approve"
    assert warning.endswith(f": {place}: no caller can have the role 'chief' (admin.role), and decide")
    assert warnings(tmp_path, text.replace("ROLE", "chief")) == []
    webhook = f"approvals: {{webhook: {{{HOOK}}}}}, policy"
    assert warnings(tmp_path, text.replace("ROLE", "everyone").replace("policy", webhook)) == []
    assert warnings(tmp_path, text.replace(f"{keys}, ", "")) == []
