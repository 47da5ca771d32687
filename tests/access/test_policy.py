"""The twin of `mcproxy.access.policy`."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from mcproxy.access.policy import Policy, PolicyItem
from mcproxy.call.calls import Decision, RuleName
from mcproxy.call.identity import ANONYMOUS, Principal
from mcproxy.catalog.uri_matching import matcher, readings
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access import policy as settings
from tests.steps import functions_called

ANN = Principal("ann")


def policy(text: dict[str, Any], *others: str) -> Policy:
    return Policy(settings.PolicySettings.model_validate(text), readings=readings, matcher=matcher, others=others)


def of_everyone(default: str = "deny", **rules: list[dict[str, Any]]) -> Policy:
    return policy({"default": default, "roles": {"everyone": rules}})


def tool(name: str, upstream: str = "gh", *, read_only: bool = False, destructive: bool = True) -> PolicyItem:
    return PolicyItem(upstream, Kind.TOOLS, name, read_only, destructive)


def resource(uri: str, upstream: str = "files") -> PolicyItem:
    return PolicyItem(upstream, Kind.RESOURCES, uri)


def allowed(policy: Policy, item: PolicyItem, arguments: dict[str, object] | None = None, who: Principal = ANN) -> bool:
    given: Params = {key: raw(value) for key, value in (arguments or {}).items()}
    return policy.decide(policy.roles_of(who), item, given).allowed


def shown(policy: Policy, item: PolicyItem, who: Principal = ANN) -> bool:
    return policy.decide_listing(policy.roles_of(who), item).allowed


# Defaults and roles


def test_without_a_policy_everybody_may_use_everything() -> None:
    assert policy({}).open
    assert allowed(policy({}), tool("x"))


def test_where_there_are_roles_what_no_rule_speaks_of_is_denied() -> None:
    roles = {"roles": {"reader": {"allow": [{"tools": ["get_*"]}]}}}
    assert not allowed(policy(roles), tool("other"))
    assert allowed(policy({"default": "allow", **roles}), tool("other"))


def test_roles_come_with_the_principal_and_from_the_policy() -> None:
    rules = policy({"roles": {"reader": {"allow": [{}]}}, "principals": {"bot": ["reader"], "anonymous": ["reader"]}})
    assert not allowed(rules, tool("x"), who=ANN)
    assert allowed(rules, tool("x"), who=Principal("ann", roles=frozenset({"reader"})))
    assert allowed(rules, tool("x"), who=Principal("bot"))
    assert allowed(rules, tool("x"), who=ANONYMOUS)


def test_everyone_is_a_role_of_everyone() -> None:
    assert allowed(of_everyone(allow=[{"tools": ["x"]}]), tool("x"), who=ANONYMOUS)


def test_roles_that_make_no_difference_make_no_standing() -> None:
    rules = policy({"roles": {"reader": {}}}, "ops")
    standing = rules.roles_of(Principal("ann", roles=frozenset({"reader", "ops", "unheard-of"})))
    assert standing == {"reader", "ops"}


def test_deny_wins_over_every_allow() -> None:
    rules = policy(
        {
            "roles": {
                "admin": {"allow": [{}]},
                "intern": {"deny": [{"tools": ["delete_*"]}]},
            }
        }
    )
    both = Principal("ann", roles=frozenset({"admin", "intern"}))
    assert allowed(rules, tool("delete_x"), who=Principal("bob", roles=frozenset({"admin"})))
    assert not allowed(rules, tool("delete_x"), who=both)
    assert allowed(rules, tool("other"), who=both)


# What rules speak of


def test_a_rule_that_names_nothing_is_about_all_of_its_upstreams() -> None:
    rules = of_everyone(allow=[{"upstreams": ["g*"]}])
    assert all(allowed(rules, PolicyItem("gh", kind, "x:y")) for kind in Kind)
    assert not allowed(rules, tool("x", "other"))


def test_a_rule_that_names_tools_is_about_tools_alone() -> None:
    rules = of_everyone(allow=[{"tools": ["*"]}])
    assert allowed(rules, tool("x"))
    assert not allowed(rules, PolicyItem("gh", Kind.PROMPTS, "x"))


def test_a_rule_that_names_no_tool_at_all_denies_none() -> None:
    rules = of_everyone("allow", deny=[{"tools": []}])
    assert allowed(rules, tool("x"))


def test_globs_are_held_against_the_whole_name_and_its_case() -> None:
    rules = of_everyone(allow=[{"tools": ["get_?"]}])
    assert allowed(rules, tool("get_x"))
    assert not any(allowed(rules, tool(name)) for name in ("get_xy", "Get_x", "a get_x", "get_x\n"))


def test_templates_are_resources() -> None:
    rules = of_everyone(allow=[{"resources": ["file:///srv/*"]}])
    assert allowed(rules, PolicyItem("files", Kind.TEMPLATES, "file:///srv/{path}"))
    assert not allowed(rules, PolicyItem("files", Kind.TEMPLATES, "file:///{path}"))


# What tools say of themselves


def test_only_tools_that_say_so_are_read_only() -> None:
    rules = of_everyone(allow=[{"read_only": True}])
    assert allowed(rules, tool("x", read_only=True, destructive=False))
    assert not allowed(rules, tool("x"))
    assert not allowed(rules, resource("file:///x"))


def test_a_tool_that_says_nothing_counts_as_destructive() -> None:
    rules = of_everyone("allow", deny=[{"destructive": True}])
    assert not allowed(rules, tool("x"))
    assert allowed(rules, tool("x", destructive=False))


# Arguments


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        ({"equals": 1}, [1, 1.0], [2, 1.5]),
        ({"equals": True}, [True], [False]),
        ({"equals": 2**53 - 1}, [2**53 - 1], [2**53 - 2, -(2**53) + 1, 10**400]),
        ({"one_of": ["a", "b"]}, ["a", "b"], ["c", ""]),
        ({"one_of": ["a", 1]}, ["a", 1], ["1", 2]),
        ({"matches": "[a-z]+"}, ["abc"], ["abc1", "", "ABC", "abc\n"]),
        ({"at_most": 10}, [10, -5, 9.5], [11, 1e300]),
        ({"matches": "a.*", "one_of": ["ab", "b"]}, ["ab"], ["b", "ac"]),
    ],
)
def test_conditions_on_an_argument(condition: dict[str, Any], yes: list[object], no: list[object]) -> None:
    allow = of_everyone(allow=[{"arguments": {"a": condition}}])
    deny = of_everyone("allow", deny=[{"arguments": {"a": condition}}])
    for value in yes:
        assert allowed(allow, tool("x"), {"a": value})
        assert not allowed(deny, tool("x"), {"a": value})
    for value in no:
        assert not allowed(allow, tool("x"), {"a": value})
        assert allowed(deny, tool("x"), {"a": value})


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ({"matches": "a*"}, ["a"]),
        ({"at_most": 1}, "1"),
        ({"equals": True}, "true"),
        ({"equals": True}, 1),
        ({"equals": 7}, " 7 "),
        ({"equals": 7}, True),
        ({"equals": 7}, [7]),
        ({"equals": 7}, None),
        ({"equals": "7"}, 7),
        ({"one_of": ["a", "b"]}, ["a"]),
        ({"one_of": [1, 2]}, {"a": 1}),
        ({"one_of": [1, True]}, "1"),
        ({"equals": 1234567890123456789}, 1234567890123456788),
        ({"one_of": ["a", 2**53]}, 2**53 + 1),
        ({"equals": 10**400}, 10**401),
    ],
)
def test_what_a_condition_cannot_judge_is_not_allowed_and_is_denied(condition: dict[str, Any], value: object) -> None:
    assert not allowed(of_everyone(allow=[{"arguments": {"a": condition}}]), tool("x"), {"a": value})
    assert not allowed(of_everyone("allow", deny=[{"arguments": {"a": condition}}]), tool("x"), {"a": value})


@pytest.mark.parametrize("value", ["rm -rf /", "ls\nrm -rf /", "rm -rf /\n", "\r\nrm -rf /"])
def test_a_line_break_leads_neither_past_a_denial_nor_into_what_is_allowed(value: str) -> None:
    deny = of_everyone("allow", deny=[{"arguments": {"command": {"matches": ".*rm -rf.*"}}}])
    assert not allowed(deny, tool("x"), {"command": value})
    allow = of_everyone(allow=[{"arguments": {"command": {"matches": "ls.*"}}}])
    assert not allowed(allow, tool("x"), {"command": value})
    assert allowed(allow, tool("x"), {"command": "ls -l"})


def test_a_text_that_is_too_long_is_not_matched() -> None:
    rules = of_everyone(allow=[{"arguments": {"a": {"matches": "a*"}}}])
    assert allowed(rules, tool("x"), {"a": "a" * 4096})
    assert not allowed(rules, tool("x"), {"a": "a" * 4097})


def test_no_pattern_takes_time_that_blows_up() -> None:
    rules = of_everyone(allow=[{"arguments": {"a": {"matches": "(a*)*(a|a)*b"}}, "tools": ["*a*a*a*a*a*a*a*b"]}])
    began = time.thread_time()
    assert not allowed(rules, tool("a" * 4000), {"a": "a" * 4000})
    assert time.thread_time() - began < 1


def test_r78_a_list_or_object_is_not_read_and_cannot_be_judged() -> None:
    rules = of_everyone("allow", deny=[{"tools": ["x"], "arguments": {"a": {"equals": value}}} for value in (1, "2")])
    for sent in (raw([{}] * 200_000), raw({"a": [1] * 200_000})):
        arguments: Params = {"a": sent}
        tracemalloc.start()
        try:
            assert not rules.decide(rules.roles_of(ANN), tool("x"), arguments).allowed
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < len(sent)


def test_r78_an_argument_is_read_once_however_many_rules_speak_of_it() -> None:
    rules = of_everyone(allow=[{"tools": ["x"], "arguments": {"a": {"equals": number}}} for number in range(100)])
    arguments: Params = {"a": raw("x" * 100_000)}

    def judge() -> None:
        assert not rules.decide(rules.roles_of(ANN), tool("x"), arguments).allowed

    judge()
    assert functions_called(judge, of=msgspec.json.decode) == 1


def test_an_argument_that_is_not_given_meets_no_condition() -> None:
    assert not allowed(of_everyone(allow=[{"arguments": {"a": {"equals": 1}}}]), tool("x"))
    assert allowed(of_everyone("allow", deny=[{"arguments": {"a": {"equals": 1}}}]), tool("x"))


def test_a_tool_is_shown_where_some_arguments_may_be_given() -> None:
    condition = {"arguments": {"a": {"equals": 1}}}
    assert shown(of_everyone(allow=[condition]), tool("x"))
    assert shown(of_everyone("allow", deny=[condition]), tool("x"))
    assert not shown(of_everyone(allow=[condition], deny=[{"tools": ["x"]}]), tool("x"))


# URIs


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/public/../secret",
        "file:///srv/public/%2e%2e/secret",
        "file:///srv/public/%2E./secret",
        "file:///srv/public/%252e%252e/secret",
        "file:///srv/public/%25252e%25252e%25252fsecret",
        "file:///srv/public/..%2fsecret",
        "file:///srv/public/..\\secret",
        "file:///srv/public/..%5csecret",
        "file:///srv/public/..%255csecret",
        "file:///srv/public//../secret",
        "file:///srv/public/./../secret",
        "file:///srv/public/x/../../secret",
        "file:///srv/public/%2e%2e/../../srv/public/x",
        "file:///srv/public%2f../secret",
        "file:///srv/public/?/../../secret",
        "file:///srv/public/%3f/../../../secret",
        "file:///srv/public/%00/../../secret",
        "file:///srv/public/%c0%ae%c0%ae/secret",
        "file://elsewhere/srv/public/x",
        "file:///srv/publicity",
        "FILE:///srv/secret",
        " file:///srv/public/x",
        "file:///srv/public/x\n",
    ],
)
def test_no_spelling_of_a_uri_leads_out_of_an_allowed_tree(uri: str) -> None:
    rules = of_everyone(allow=[{"resources": ["file:///srv/public/*"]}])
    assert not allowed(rules, resource(uri))


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file:/etc/passwd",
        "file:etc/passwd",
        "file://LOCALHOST/etc/passwd",
        "file://127.0.0.1/etc/passwd",
        "file:////etc//passwd",
        "file:///%65tc/passwd",
        "file:///%2565tc/passwd",
        "file:///srv/../etc/passwd",
        "file:///srv/..%2f/etc/passwd",
        "file:\\\\\\etc\\passwd",
        "file:///./etc/passwd",
    ],
)
def test_no_spelling_of_a_uri_leads_past_a_denial(uri: str) -> None:
    rules = of_everyone("allow", deny=[{"resources": ["file:///etc/*"]}])
    assert allowed(rules, resource("file:///srv/x"))
    assert not allowed(rules, resource(uri))


@pytest.mark.parametrize(
    "uri",
    [
        "http://inside/x",
        "HTTP://INSIDE/x",
        "http://inside:80/x",
        "http://inside:/x",
        "http://inside./x",
        "http://me@inside/x",
        "http://me:secret@inside/x",
        "http://%69nside/x",
        "http:/inside/x",
        "http:////inside/x",
        "http:\\\\inside\\x",
        "http://inside\\@outside/x",
    ],
)
def test_no_spelling_of_a_host_leads_past_a_denial(uri: str) -> None:
    rules = of_everyone("allow", deny=[{"resources": ["http://inside/*"]}])
    assert allowed(rules, resource("http://outside/x"))
    assert not allowed(rules, resource(uri))


@pytest.mark.parametrize("uri", ["http://inside%2f@outside/x", "http://inside@outside/x", "http://outside#@inside/x"])
def test_what_looks_like_a_host_is_none(uri: str) -> None:
    assert not allowed(of_everyone(allow=[{"resources": ["http://inside/*"]}]), resource(uri))


@pytest.mark.parametrize(
    ("glob", "uri"),
    [
        ("file:///srv/*", "FILE:///srv/a/../b"),
        ("file:///srv/a b", "file:///srv/a%20b"),
        ("file:///srv/a%20b", "file:///srv/a b"),
        ("http://h/a%2Fb", "http://h/a%2fb"),
        ("http://H:80/x?q=*", "http://h/x?q=a%26b"),
        ("memo:*", "memo:100%"),
        ("file:///ü*", "file:///%C3%BCx"),
        ("*", "anything:at%2Fall"),
    ],
)
def test_what_is_allowed_is_allowed_in_its_usual_spellings(glob: str, uri: str) -> None:
    assert allowed(of_everyone(allow=[{"resources": [glob]}]), resource(uri))


@pytest.mark.parametrize(
    "uri",
    [
        "notes://public/../private/s.md",
        "notes://public/%2e%2e/private/s.md",
        "notes://public/..%2Fprivate/s.md",
        "notes://public%2f../private/s.md",
        "notes:///private/s.md",
        "notes:private/s.md",
        "ui://public/../private/s.md",
    ],
)
def test_no_spelling_leads_out_of_a_folder_that_stands_as_authority(uri: str) -> None:
    allow = of_everyone(allow=[{"resources": ["notes://public/*", "ui://public/*"]}])
    deny = of_everyone("allow", deny=[{"resources": ["notes://private/*", "ui://private/*"]}])
    for rules in (allow, deny):
        assert allowed(rules, resource("notes://public/a/b.md"))
        assert not allowed(rules, resource(uri))
        assert not allowed(rules, PolicyItem("files", Kind.TEMPLATES, uri))


def test_a_wildcard_in_the_host_matches_no_other_host() -> None:
    rules = of_everyone(allow=[{"resources": ["https://*.good.example/*"]}])
    assert allowed(rules, resource("https://a.good.example/x/y"))
    assert not allowed(rules, resource("https://evil/x.good.example/"))


# What there may be


def test_an_upstream_of_which_nothing_may_be_used_is_told_apart() -> None:
    rules = of_everyone(allow=[{"upstreams": ["gh"], "tools": ["x"]}])
    everyone = rules.roles_of(ANN)
    assert rules.reaches(everyone, "gh")
    assert not rules.reaches(everyone, "files")


@pytest.mark.parametrize(
    "deny", [[{"upstreams": ["gh"]}], [{"tools": ["*"]}, {"resources": ["*"]}, {"prompts": ["a", "*"]}]]
)
def test_what_is_denied_altogether_is_out_of_reach(deny: list[dict[str, Any]]) -> None:
    rules = of_everyone("allow", deny=deny)
    assert not rules.reaches(rules.roles_of(ANN), "gh")


@pytest.mark.parametrize("deny", [[{"tools": ["*"]}], [{"upstreams": ["gh"], "destructive": True}]])
def test_what_is_denied_in_part_is_within_reach(deny: list[dict[str, Any]]) -> None:
    rules = of_everyone("allow", deny=deny)
    assert rules.reaches(rules.roles_of(ANN), "gh")


# The rule that decided


def test_a_decision_names_its_rule_and_where_it_stands() -> None:
    text = {"roles": {"ops": {"allow": [{"tools": ["a"]}, {"tools": ["b"]}], "deny": [{"tools": ["c"]}]}}}
    placed = settings.PolicySettings.model_validate(text).placed({("ops", "allow", 1): "mcproxy.yaml:41"})
    rules = Policy(placed, readings=readings, matcher=matcher)
    ops = frozenset({"ops"})
    allow = RuleName("ops", "allow", 2, "mcproxy.yaml:41")
    assert rules.decide(ops, tool("b"), {}) == Decision(True, allow)
    assert str(allow) == "roles.ops.allow, rule 2 (mcproxy.yaml:41)"
    assert rules.decide(ops, tool("c"), {}) == Decision(False, RuleName("ops", "deny", 1))
    assert rules.decide(ops, tool("d"), {}) == Decision(False, None)


def test_a_decision_costs_the_same_whatever_the_number_of_rules() -> None:
    few = of_everyone(allow=[{"tools": ["x"]}])
    many = of_everyone(allow=[*({"tools": [f"{n}_*"]} for n in range(2000)), {"tools": ["x"]}])
    assert cost(many) < 5 * cost(few) + 1e-4


def cost(policy: Policy) -> float:
    """Seconds of the fastest of some decisions about what was decided before."""
    standing = policy.roles_of(ANN)
    found = []
    for _ in range(50):
        began = time.thread_time()
        assert policy.decide(standing, tool("x"), {}).allowed
        found.append(time.thread_time() - began)
    return min(found)


# Settings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ({"principals": {"bot": ["reader"]}}, "the role 'reader' is not defined"),
        ({"roles": {"r": {"allow": [{"resources": ["*"], "read_only": True}]}}}, "conditions, which cover tools"),
        ({"roles": {"r": {"allow": [{"arguments": {"a": {}}}]}}}, "should have equals"),
        ({"roles": {"r": {"allow": [{"arguments": {"a": {"matches": "(?=x)"}}}]}}}, "RE2"),
        ({"roles": {"r": {"allow": [{"arguments": {"a": {"matches": "("}}}]}}}, "RE2"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(text: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match="1 validation error") as error:
        settings.PolicySettings.model_validate(text)
    assert sentence in str(error.value)
