"""A configuration file: what loads, what it becomes, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcproxy.settings import Endpoint, Settings
from tests.configuration.reading import SENTINEL, configure, problems, upstream


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert configure(tmp_path, "").settings == Settings()


def test_yaml_json_and_toml_say_the_same(tmp_path: Path) -> None:
    yaml = configure(tmp_path, "mcpServers:\n  time: {command: uvx, args: [mcp-server-time], prefix: t}\n")
    jsonc = configure(
        tmp_path,
        '{\n\t// a comment\n\t"mcpServers": {"time": {"command": "uvx", /* and */ "args": ["mcp-server-time",],'
        ' "prefix": "t",},},\n}',
        name="mcp.json",
    )
    toml = configure(
        tmp_path, '[mcpServers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\nprefix = "t"\n', name="mcproxy.toml"
    )
    assert yaml.settings == jsonc.settings == toml.settings
    assert yaml.settings.upstreams[0].args == ("mcp-server-time",)


def test_durations_and_sizes_take_units(tmp_path: Path) -> None:
    text = "proxy: {keep_alive: 500ms, grace: 0, limits: {max_body_bytes: 16MiB, session_idle: 1h}, write_timeout: '7'}"
    proxy = configure(tmp_path, text).settings.proxy
    assert (proxy.keep_alive, proxy.grace, proxy.write_timeout) == (0.5, 0, 7)
    assert (proxy.limits.max_body_bytes, proxy.limits.session_idle) == (16 * 1024 * 1024, 3600)


def test_a_quantity_that_is_none_is_refused_with_an_example(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "proxy:\n  keep_alive: 5 weeks\n")
    assert problem.startswith("mcproxy.yaml:2:3: proxy.keep_alive: should be a number of seconds")


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("port", "should be a number, not true or false (YAML reads yes, no, on and off as these)"),
        ("grace", "should be a number of seconds, or a text such as"),
    ],
)
def test_yes_is_refused_for_a_number(tmp_path: Path, key: str, sentence: str) -> None:
    (problem,) = problems(tmp_path, f"proxy:\n  {key}: yes\n")
    assert problem.startswith(f"mcproxy.yaml:2:3: proxy.{key}: {sentence}")


def test_a_server_outside_of_the_servers_is_told_where_it_belongs(tmp_path: Path) -> None:
    assert problems(tmp_path, "git:\n  command: uvx\nweb: {url: 'http://x'}\nteam: {}\n")[:2] == [
        "mcproxy.yaml:1:1: git: looks like a server: put it below mcpServers",
        "mcproxy.yaml:3:1: web: looks like a server: put it below mcpServers",
    ]


def test_r50_all_errors_come_at_once_with_file_line_column_and_key(tmp_path: Path) -> None:
    text = """\
mcpServers:
  github:
    comand: npx
  both: {command: x, url: "http://x"}
proxy:
  port: nine
  limits:
    max_sessions: 0
prox: {}
"""
    assert problems(tmp_path, text) == [
        'mcproxy.yaml:3:5: mcpServers.github.comand: unknown key; did you mean "command"?',
        "mcproxy.yaml:4:3: mcpServers.both: has both a command and a url: keep one",
        "mcproxy.yaml:6:3: proxy.port: should be a whole number",
        "mcproxy.yaml:8:5: proxy.limits.max_sessions: should be greater than 0",
        'mcproxy.yaml:9:1: prox: unknown key; did you mean "proxy"?',
    ]


def test_r50_an_unknown_key_deep_inside_names_its_neighbour(tmp_path: Path) -> None:
    text = "mcpServers:\n  x:\n    command: x\n    tools:\n      overrides:\n        old.name: {titel: T}\n"
    (problem,) = problems(tmp_path, text)
    assert problem == (
        'mcproxy.yaml:6:20: mcpServers.x.tools.overrides."old.name".titel: unknown key; did you mean "title"?'
    )


def test_r50_json_and_toml_problems_have_places(tmp_path: Path) -> None:
    text = '{"proxy": {},\n "mcpServers": {\n\t"x": {"command": "x",\n  "cwdd": "/"}}}'
    assert problems(tmp_path, text, name="a.json") == [
        'a.json:4:3: mcpServers.x.cwdd: unknown key; did you mean "cwd"?'
    ]
    text = '[mcpServers."a b"]\ncommand = "x"\n  cwdd = "/"\n'
    assert problems(tmp_path, text, name="a.toml") == [
        'a.toml:3:3: mcpServers."a b".cwdd: unknown key; did you mean "cwd"?'
    ]


def test_yaml_anchors_and_merges_serve_as_templates(tmp_path: Path) -> None:
    text = "mcpServers:\n  a: &a {command: x, args: [one]}\n  b: {<<: *a, args: [two]}\n"
    a, b = configure(tmp_path, text).settings.upstreams
    assert (a.command, a.args, b.command, b.args) == ("x", ("one",), "x", ("two",))


def test_values_for_a_child_are_what_was_written(tmp_path: Path) -> None:
    text = "mcpServers: {x: {command: x, args: [0123, yes, 1.50], env: {DEBUG: on, PORT: 8080}}}"
    only = upstream(tmp_path, text)
    assert only.args == ("0123", "yes", "1.50")
    assert only.env == {"DEBUG": "on", "PORT": "8080"}


@pytest.mark.parametrize("value", ["false", "''", "[]", "0", "deny"])
def test_r50_access_that_is_no_mapping_is_refused_and_never_taken_for_none(tmp_path: Path, value: str) -> None:
    (problem,) = problems(tmp_path, f"access: {value}\n")
    assert problem.startswith("mcproxy.yaml:1:1: access: should be a mapping")


def test_r50_access_is_checked_with_file_line_and_key(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "proxy: {}\naccess:\n  autentication: {}\n")
    assert problem.startswith("mcproxy.yaml:3:3: access.autentication: unknown key")


def test_a_json_file_with_access_is_ours_and_strict(tmp_path: Path) -> None:
    text = '{"theme": 1, "access": {}, "mcpServers": {}}'
    (problem,) = problems(tmp_path, text, name="mcproxy.json")
    assert problem.startswith("mcproxy.json:1:2: theme: unknown key")


# Servers


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("{type: stdio, url: 'http://x'}", "stdio needs a command"),
        ("{type: http, command: x}", "http needs a url"),
        ("{url: 'ftp://x'}", "should be an http or https URL"),
        ("{url: 'http://x', args: [a]}", "is for a server with a command"),
        ("{command: x, headers: {a: b}}", "is for a server with a url"),
        ("{url: 'http://x', start: on_demand}", "is for a server with a command"),
        ("{url: 'http://x', idle_stop: 1m}", "is for a server with a command"),
        ("{url: 'http://x', placement: one}", "is for a server with a command"),
        ("{command: x, connection: session, idle_stop: 1m}", "has no effect with connection: session, which starts"),
        (
            "{command: x, tools: {overrides: {t: {arguments: {a: {default: 1}}}}}}",
            "is for an argument with `hide: true`",
        ),
        ("{command: x, tools: {overrides: {t: {arguments: {a: {value: 1, hide: true}}}}}}", "exclude each other"),
        ("{command: x, tools: {overrides: {t: {arguments: {a: {value: 1, rename: b}}}}}}", "has no effect"),
        ("{command: x, type: carrier-pigeon}", "should be 'auto', 'stdio', 'http' or 'sse'"),
        ("{command: x, args: one}", "should be a list"),
        ("{command: x, timeouts: 3}", "should be a mapping, such as {connect: ...}"),
        ("{command: x, prefix: A_b}", "should be lower-case letters, digits and -"),
        ("{command: x, prefix: [a]}", "should be a text"),
        ("{command: x, prefix: no}", "should be a text: put it in quotes"),
        ("{command: x, idle_stop: -1}", "should be at least 0"),
        ("{url: 'http://x', headers: {'X Key': a}}", "can be no header"),
        ("{url: 'http://x', headers: {X-Key: \"a\\nb\"}}", "can be no header"),
        ("x", "should be a mapping with a command or a url"),
    ],
)
def test_a_server_that_contradicts_itself_is_refused(tmp_path: Path, server: str, sentence: str) -> None:
    (problem,) = problems(tmp_path, f"mcpServers: {{s: {server}}}")
    assert sentence in problem


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "e.env").write_text("A=1\nB=2\n")
    text = "mcpServers: {x: {command: x, cwd: sub/../dir, envFile: e.env, env: {B: own}}}"
    only = upstream(tmp_path, text)
    assert only.cwd == str(tmp_path / "dir")
    assert only.env == {"A": "1", "B": "own"}


def test_equal_prefixes_are_refused_the_empty_one_included(tmp_path: Path) -> None:
    text = "mcpServers:\n  a: {command: x, prefix: ''}\n  b: {command: x, prefix: ''}\n"
    assert problems(tmp_path, text) == [
        "mcproxy.yaml:3:19: mcpServers.b.prefix: is already the prefix of 'a': choose another"
    ]


def test_a_server_needs_a_name_and_has_it_alone(tmp_path: Path) -> None:
    text = "mcpServers: {'': {command: x}, a: {command: x}}\nservers: {a: {command: y}}"
    nameless, twice = problems(tmp_path, text)
    assert "needs a name" in nameless
    assert "servers.a: is already the name of another server" in twice


# The gateway's own side


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://h:99999/mcp", "should have a port from 1 to 65535"),
        ("http://h:0/mcp", "should have a port from 1 to 65535"),
        ("http://h:http/mcp", "should have a port from 1 to 65535"),
        ("http:///mcp", "should name a host"),
        ("https://:443/mcp", "should name a host"),
        ("https://user@/mcp", "should name a host"),
        ("http://[::1/mcp", "its host is malformed"),
        ("http://a b/mcp", "its host is malformed"),
        ("h:80/mcp", "should be an http or https URL"),
    ],
)
def test_r50_a_url_that_nothing_can_be_sent_to_is_told_with_its_place(tmp_path: Path, url: str, sentence: str) -> None:
    (problem,) = problems(tmp_path, f"mcpServers:\n  a:\n    url: '{url}'\n")
    assert problem.startswith("mcproxy.yaml:3:5: mcpServers.a.url: ")
    assert sentence in problem


@pytest.mark.parametrize("url", ["http://h/mcp", "HTTP://127.0.0.1:1/", "https://[::1]:65535/x?y#z", "http://ü.de/x"])
def test_other_urls_are_taken_as_they_are(tmp_path: Path, url: str) -> None:
    assert upstream(tmp_path, f"mcpServers: {{a: {{url: '{url}'}}}}").url == url


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.internal"])
def test_r42_binding_elsewhere_than_to_loopback_is_refused_unless_a_setting_says_so(tmp_path: Path, host: str) -> None:
    (problem,) = problems(tmp_path, f"proxy: {{host: '{host}'}}")
    assert "proxy.host: is not loopback" in problem
    assert "set proxy.insecure to true" in problem
    assert configure(tmp_path, f"proxy: {{host: '{host}', insecure: true}}").settings.proxy.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_loopback_needs_no_flag(tmp_path: Path, host: str) -> None:
    assert configure(tmp_path, f"proxy: {{host: '{host}'}}").settings.proxy.host == host


KEYS = {
    "null": (),
    "0123456789abcdef0123456789abcdef": ("0123456789abcdef0123456789abcdef",),
    "[a long and random one, another that was before]": ("a long and random one", "another that was before"),
}


def test_a_key_that_anybody_could_guess_is_refused(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, "proxy:\n  secret: ${NOTHING:-}\n")
    assert problem.startswith("mcproxy.yaml:2:3: proxy.secret: is shorter than 16 characters")


@pytest.mark.parametrize("weak", ["0123456789abcde", "changeme" * 4, "a" * 64, "abcabcabcabcabcabca"])
def test_a_secret_that_can_be_guessed_is_refused_with_a_remedy_and_not_shown(tmp_path: Path, weak: str) -> None:
    [problem] = problems(tmp_path, f"proxy:\n  secret: ['a long and random one', '{weak}']\n")
    assert problem.startswith("mcproxy.yaml:2:")
    assert "proxy.secret[1]" in problem or "proxy.secret.1" in problem
    assert "openssl rand -hex 32" in problem
    assert weak not in problem


def test_one_secret_is_a_list_of_one(tmp_path: Path) -> None:
    secrets = {text: configure(tmp_path, f"proxy: {{secret: {text}}}").settings.proxy.secret for text in KEYS}
    assert secrets == KEYS


@pytest.mark.parametrize(
    ("host", "operators", "is_refused"),
    [
        ("127.0.0.1", "localhost", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "::1", False),
    ],
)
def test_two_listeners_on_one_port_are_refused_where_they_would_clash(
    tmp_path: Path, host: str, operators: str, is_refused: bool
) -> None:
    text = f"proxy: {{host: '{host}', port: 8000, insecure: true}}\nadmin: {{host: '{operators}', port: 8000}}\n"
    if is_refused:
        (problem,) = problems(tmp_path, text)
        assert problem.endswith("admin.port: is the port of callers too (proxy.port): choose another")
    else:
        assert configure(tmp_path, text).settings.admin.port == 8000


def test_any_free_port_is_none_that_clashes(tmp_path: Path) -> None:
    assert configure(tmp_path, "proxy: {port: 0}\nadmin: {port: 0}\n").settings.admin.port == 0


# Policy and endpoints

POLICY = """
access:
  policy:
    roles:
      reader:
        allow:
          - tools: [get_*]
          - {prompts: ['*']}
      everyone:
    principals: {bot: [reader]}
endpoints:
  team: {upstreams: [time], roles: [reader]}
"""


def test_each_rule_knows_its_file_and_line(tmp_path: Path) -> None:
    policy = configure(tmp_path, POLICY).settings.access.policy
    assert policy.place(("reader", "allow", 0)) == f"{tmp_path}/mcproxy.yaml:7"
    assert policy.place(("reader", "allow", 1)) == f"{tmp_path}/mcproxy.yaml:8"
    assert policy.place(("reader", "deny", 0)) is None


def test_a_role_of_which_nothing_is_said_is_one_nevertheless(tmp_path: Path) -> None:
    policy = configure(tmp_path, "access: {policy: {roles: {everyone: }}}\n").settings.access.policy
    assert not policy.allows_by_default
    assert "everyone" in configure(tmp_path, POLICY).settings.access.policy.roles


def test_endpoints_are_read(tmp_path: Path) -> None:
    (endpoint,) = configure(tmp_path, POLICY).settings.endpoints.items()
    assert endpoint == ("team", Endpoint(upstreams=("time",), roles=("reader",)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/all", "must not begin with `/`"),
        ("/", "must not begin with `/`"),
        (".", "must not be `.` or `..`"),
        ("..", "must not be `.` or `..`"),
        ("a\\tb", "characters that cannot be seen"),
        ("a\\u202eb", "characters that cannot be seen"),
        ("a\\u200bb", "characters that cannot be seen"),
        ("a\\u2028b", "characters that cannot be seen"),
        ("a\\u0000", "characters that cannot be seen"),
    ],
)
def test_r50_a_server_has_no_name_that_stands_for_an_endpoint_or_for_another_one(
    tmp_path: Path, name: str, expected: str
) -> None:
    (problem,) = problems(tmp_path, f'mcpServers: {{"{name}": {{command: x}}}}\nendpoints: {{all: {{}}}}\n')
    assert expected in problem


@pytest.mark.parametrize("name", ["github.com/o/r", "@scope/server", "a b", "...", "Größe", "a?b#c", "a\\\\b"])
def test_a_server_may_have_any_other_name(tmp_path: Path, name: str) -> None:
    assert len(configure(tmp_path, f'mcpServers: {{"{name}": {{command: x}}}}\n').settings.upstreams) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("endpoints: [a]\n", "1:1: endpoints: should be a mapping from names to endpoints"),
        ("endpoints:\n  a/b: {}\n", '2:3: endpoints."a/b": the name of an endpoint should be'),
        ("endpoints:\n  a: {tolls: []}\n", '2:7: endpoints.a.tolls: unknown key; did you mean "tools"?'),
        ("access: {policy: {roles: {r: {deny: {}}}}}\n", "1:31: access.policy.roles.r.deny: should be a list"),
        (
            "access:\n  policy:\n    roles:\n      r:\n        allow:\n        - tool: [x]\n",
            '6:11: access.policy.roles.r.allow.0.tool: unknown key; did you mean "tools"?',
        ),
    ],
)
def test_r50_what_is_wrong_with_a_policy_or_an_endpoint_is_told_with_its_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(f"mcproxy.yaml:{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "access:\n  authentication:\n    keys: {bot: [{role: reader}]}\n",
            '3:19: access.authentication.keys.bot.0.role: unknown key; did you mean "roles"?',
        ),
        (
            "access:\n  authentication:\n    oauth: {issuers: [{isuer: 'https://a.example'}]}\n",
            '3:24: access.authentication.oauth.issuers.0.isuer: unknown key; did you mean "issuer"?',
        ),
        (
            "access:\n  limits:\n    rules: {all: {roles: {r: {rat: 1}}}}\n",
            '3:31: access.limits.rules.all.roles.r.rat: unknown key; did you mean "rate"?',
        ),
        (
            "access:\n  policy:\n    roles: {r: {deny: [{arguments: {a: {equal: 1}}}]}}\n",
            '3:41: access.policy.roles.r.deny.0.arguments.a.equal: unknown key; did you mean "equals"?',
        ),
        (
            "access:\n  policy:\n    principals:\n      bot: [reader]\n",
            "4:13: access.policy.principals.bot.0: the role 'reader' is not defined: "
            "add it to access.policy.roles, or correct the name",
        ),
        (
            "access:\n  authentication:\n    oauth:\n      issuers: ['https://a.example']\n",
            "4:17: access.authentication.oauth.issuers.0: should be a mapping, such as {issuer: ...}",
        ),
        (
            "access:\n  limits:\n    rules:\n      all: {burst: 3}\n",
            "4:13: access.limits.rules.all.burst: needs a rate",
        ),
        (
            "access:\n  authentication:\n    key_header: cookie\n",
            "3:5: access.authentication.key_header: the header cookie has another purpose already",
        ),
    ],
)
def test_r87_a_problem_points_at_its_key_and_suggests_the_one_that_was_meant(
    tmp_path: Path, text: str, expected: str
) -> None:
    found = problems(tmp_path, text)
    assert f"mcproxy.yaml:{expected}" in found


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("npx -y @x/server", 'write command: npx and args: ["-y", "@x/server"]'),
        ("uvx mcp-server-time", 'write command: uvx and args: ["mcp-server-time"]'),
        ("/usr/bin/env --verbose", 'write command: /usr/bin/env and args: ["--verbose"]'),
        ('sh -c "a b"', 'write command: sh and args: ["-c", "a b"]'),
    ],
)
def test_r87_a_whole_command_line_is_told_where_its_parts_go(tmp_path: Path, command: str, remedy: str) -> None:
    found = configure(tmp_path, f"mcpServers:\n  x:\n    command: '{command}'\n").warnings
    assert [str(warning).removeprefix(f"{tmp_path}/") for warning in found] == [
        f"mcproxy.yaml:3:5: mcpServers.x.command: is a whole command line, and no shell reads it: {remedy}"
    ]


def test_r50_keys_of_hosts_that_have_no_effect_are_told_of_in_a_file_of_ours(tmp_path: Path) -> None:
    text = "mcpServers:\n  x:\n    command: x\n    timeout: 60\n    icon: x.png\n"
    assert [str(warning).removeprefix(f"{tmp_path}/") for warning in configure(tmp_path, text).warnings] == [
        "mcproxy.yaml:4:5: mcpServers.x.timeout: has no effect here: its unit differs between hosts; "
        "`timeouts` is the like here"
    ]


def test_unknown_keys_are_told_the_known_ones_in_the_order_of_the_alphabet(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "mcpServers: {s: {command: x, q: 1}}")
    known = problem.partition("known keys: ")[2].split(", ")
    assert known == sorted(known)


@pytest.mark.parametrize("command", ["npx", "/opt/My App/bin/server", "C:\\Program Files\\x.exe", "./run"])
def test_a_program_whose_path_has_spaces_is_no_command_line(tmp_path: Path, command: str) -> None:
    assert configure(tmp_path, f"mcpServers:\n  x:\n    command: '{command}'\n").warnings == ()


BY_OPERATOR = "mcpServers: {}\naccess:\n  policy:\n    roles:\n      everyone:\n        allow:\n          - approve: "


def test_r87_calls_that_no_operator_could_decide_are_told_of(tmp_path: Path) -> None:
    found = configure(tmp_path, BY_OPERATOR + "operator\n").warnings
    assert [str(warning).removeprefix(f"{tmp_path}/") for warning in found] == [
        "mcproxy.yaml:7:13: access.policy.roles.everyone.allow.0.approve: is for operators, "
        "and no operator can decide: set admin.port or access.approvals.webhook"
    ]


@pytest.mark.parametrize(
    "rest",
    [
        "caller\n",
        "operator\nadmin: {port: 9100}\n",
        "operator\n  approvals: {webhook: {url: 'https://ops.example', secret: sixteen characters or more}}\n",
    ],
)
def test_calls_that_somebody_can_decide_are_not(tmp_path: Path, rest: str) -> None:
    assert configure(tmp_path, BY_OPERATOR + rest).warnings == ()


@pytest.mark.parametrize(
    ("approver", "proxy", "sentence"),
    [
        ("caller", "{bridge: {park_ttl: 1m}}", "is longer than proxy.bridge.park_ttl (60 s), when a caller can answer"),
        ("caller", "{ask_timeout: 2m}", "is longer than proxy.ask_timeout (120 s), when a caller can answer no more"),
        ("operator", "{bridge: {hold: 10}}", "is longer than ten times proxy.bridge.hold (10 s), when official SDKs"),
        ("caller", "{bridge: {hold: 10}}", None),
        ("operator", "{bridge: {park_ttl: 1m}}", None),
    ],
)
def test_an_approval_that_may_take_longer_than_its_call_is_told_of(
    tmp_path: Path, approver: str, proxy: str, sentence: str | None
) -> None:
    text = f"{BY_OPERATOR}{approver}\n  approvals: {{timeout: 5m}}\nadmin: {{port: 9100}}\nproxy: {proxy}\n"
    told = [str(warning).removeprefix(f"{tmp_path}/") for warning in configure(tmp_path, text).warnings]
    start = f"mcproxy.yaml:8:15: access.approvals.timeout: {sentence}"
    assert [line[: len(start)] for line in told] == ([] if sentence is None else [start])


@pytest.mark.parametrize(
    ("rest", "sentence"),
    [
        (
            "proxy: {limits: {max_sessions: 10}}",
            "proxy.limits.max_sessions: max_sessions_per_principal (1000) is more than max_sessions (10)",
        ),
        (
            "proxy: {limits: {max_sessions_per_principal: 20000}}",
            "proxy.limits: max_sessions_per_principal (20000) is more than max_sessions (10000)",
        ),
        ("proxy: {bridge: {max_parked: 9}}", "proxy.bridge.max_parked: max_parked_per_principal (100) is more than"),
        ("proxy: {results: {max_bytes: 1MiB}}", "proxy.results.max_bytes: max_bytes_per_principal (16777216) is more"),
        (
            "access: {approvals: {max_waiting: 9}}",
            "access.approvals.max_waiting: max_waiting_per_principal (20) is",
        ),
        ("proxy: {limits: {max_sessions: 10, max_sessions_per_principal: 10}}", None),
    ],
)
def test_a_limit_for_each_caller_above_that_for_all_is_told_of(tmp_path: Path, rest: str, sentence: str | None) -> None:
    told = [str(warning).split(": ", 1)[1] for warning in configure(tmp_path, f"mcpServers: {{}}\n{rest}\n").warnings]
    assert len(told) == (sentence is not None)
    assert sentence is None or told[0].startswith(sentence)


@pytest.mark.parametrize(
    ("tracing", "is_told"),
    [("endpoint: 'http://127.0.0.1:4318'", True), ("endpoint: 'http://127.0.0.1:4318', enabled: false", False)],
)
def test_traces_that_are_set_up_and_not_enabled_are_told_of(tmp_path: Path, tracing: str, is_told: bool) -> None:
    told = configure(tmp_path, f"mcpServers: {{}}\nproxy: {{tracing: {{{tracing}}}}}\n").warnings
    assert [": has no effect: " in str(warning) for warning in told] == [True] * is_told


@pytest.mark.parametrize(
    ("public", "oauth", "is_told"),
    [
        ("http://gw.example", "{}", True),
        ("https://gw.example", "{}", False),
        ("http://localhost:8000", "{}", False),
        ("http://gw.example", "{grant: client_credentials, client: {id: me, secret: s}}", False),
    ],
)
def test_a_public_url_at_which_nobody_can_log_in_is_told_of(
    tmp_path: Path, public: str, oauth: str, is_told: bool
) -> None:
    text = f"mcpServers: {{x: {{url: 'https://x.example/mcp', oauth: {oauth}}}}}\nproxy: {{public_url: '{public}'}}\n"
    told = [str(warning) for warning in configure(tmp_path, text).warnings]
    assert ["proxy.public_url: is not https" in line for line in told] == [True] * is_told


def test_r44_a_warning_shows_no_value_of_a_variable(tmp_path: Path) -> None:
    (warning,) = configure(tmp_path, "mcpServers: {x: {command: 'run --key ${KEY}'}}", {"KEY": SENTINEL}).warnings
    assert SENTINEL not in str(warning)


@pytest.mark.parametrize("argument", ["~", "~/notes", "--root=~/notes"])
def test_a_tilde_in_arguments_is_warned_of(tmp_path: Path, argument: str) -> None:
    text = f"mcpServers: {{x: {{command: run, args: [a, '{argument}', 'a~b', '~user']}}}}"
    (warning,) = configure(tmp_path, text).warnings
    assert warning.path == ("mcpServers", "x", "args", 1)
    assert "${userHome}" in warning.sentence
