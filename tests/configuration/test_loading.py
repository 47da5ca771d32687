"""A configuration file: what loads, what it becomes, and what is said of one that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.configuration.documents import ConfigurationError
from mcproxy.configuration.loading import Configuration, find, prefixes, read, slug
from mcproxy.settings import Endpoint, Settings, UpstreamSettings

SENTINEL = "s3ntinel-value-of-a-secret"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def configure(
    folder: Path, text: str, environ: dict[str, str] | None = None, name: str = "mcproxy.yaml"
) -> Configuration:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return read(path, environ or {})


def upstream(
    folder: Path, text: str, environ: dict[str, str] | None = None, name: str = "mcproxy.yaml"
) -> UpstreamSettings:
    (only,) = configure(folder, text, environ, name).settings.upstreams
    return only


def problems(folder: Path, text: str, environ: dict[str, str] | None = None, name: str = "mcproxy.yaml") -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        configure(folder, text, environ, name)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_an_empty_file_is_the_defaults(folder: Path) -> None:
    assert configure(folder, "").settings == Settings()


def test_yaml_json_and_toml_say_the_same(folder: Path) -> None:
    yaml = configure(folder, "mcpServers:\n  time: {command: uvx, args: [mcp-server-time], prefix: t}\n")
    jsonc = configure(
        folder,
        '{\n\t// a comment\n\t"mcpServers": {"time": {"command": "uvx", /* and */ "args": ["mcp-server-time",],'
        ' "prefix": "t",},},\n}',
        name="mcp.json",
    )
    toml = configure(
        folder, '[mcpServers.time]\ncommand = "uvx"\nargs = ["mcp-server-time"]\nprefix = "t"\n', name="mcproxy.toml"
    )
    assert yaml.settings == jsonc.settings == toml.settings
    assert yaml.settings.upstreams[0].args == ("mcp-server-time",)


def test_durations_and_sizes_take_units(folder: Path) -> None:
    text = "proxy: {keep_alive: 500ms, grace: 0, limits: {max_body_bytes: 16MiB, session_idle: 1h}, write_timeout: '7'}"
    proxy = configure(folder, text).settings.proxy
    assert (proxy.keep_alive, proxy.grace, proxy.write_timeout) == (0.5, 0, 7)
    assert (proxy.limits.max_body_bytes, proxy.limits.session_idle) == (16 * 1024 * 1024, 3600)


def test_a_quantity_that_is_none_is_refused_with_an_example(folder: Path) -> None:
    (problem,) = problems(folder, "proxy:\n  keep_alive: 5 weeks\n")
    assert problem.startswith("mcproxy.yaml:2:3: proxy.keep_alive: should be a number of seconds")


def test_r50_all_errors_come_at_once_with_file_line_column_and_key(folder: Path) -> None:
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
    assert problems(folder, text) == [
        "mcproxy.yaml:2:3: mcpServers.github: needs a command or a url",
        'mcproxy.yaml:3:5: mcpServers.github.comand: unknown key; did you mean "command"?',
        "mcproxy.yaml:4:3: mcpServers.both: has both a command and a url: keep one",
        "mcproxy.yaml:6:3: proxy.port: should be a valid integer, unable to parse string as an integer",
        "mcproxy.yaml:8:5: proxy.limits.max_sessions: should be greater than 0",
        'mcproxy.yaml:9:1: prox: unknown key; did you mean "proxy"?',
    ]


def test_r50_an_unknown_key_deep_inside_names_its_neighbour(folder: Path) -> None:
    text = "mcpServers:\n  x:\n    command: x\n    tools:\n      overrides:\n        old.name: {titel: T}\n"
    (problem,) = problems(folder, text)
    assert problem == (
        'mcproxy.yaml:6:20: mcpServers.x.tools.overrides."old.name".titel: unknown key; did you mean "title"?'
    )


def test_r50_json_and_toml_problems_have_places(folder: Path) -> None:
    text = '{"proxy": {},\n "mcpServers": {\n\t"x": {"command": "x",\n  "cwdd": "/"}}}'
    assert problems(folder, text, name="a.json") == ['a.json:4:3: mcpServers.x.cwdd: unknown key; did you mean "cwd"?']
    text = '[mcpServers."a b"]\ncommand = "x"\n  cwdd = "/"\n'
    assert problems(folder, text, name="a.toml") == [
        'a.toml:3:3: mcpServers."a b".cwdd: unknown key; did you mean "cwd"?'
    ]


def test_yaml_anchors_and_merges_serve_as_templates(folder: Path) -> None:
    text = "mcpServers:\n  a: &a {command: x, args: [one]}\n  b: {<<: *a, args: [two]}\n"
    a, b = configure(folder, text).settings.upstreams
    assert (a.command, a.args, b.command, b.args) == ("x", ("one",), "x", ("two",))


def test_values_for_a_child_are_what_was_written(folder: Path) -> None:
    text = "mcpServers: {x: {command: x, args: [0123, yes, 1.50], env: {DEBUG: on, PORT: 8080}}}"
    only = upstream(folder, text)
    assert only.args == ("0123", "yes", "1.50")
    assert only.env == {"DEBUG": "on", "PORT": "8080"}


# References


def test_references_are_expanded_in_every_string(folder: Path) -> None:
    (folder / "token").write_text("from-file\n")
    text = """\
mcpServers:
  x:
    command: ${CMD}
    args: ["${A}-${env:A}", "${UNSET:-fallback}", "$${A}", "$A", "${file:token}"]
    env: {HOME_OF: "${userHome}"}
proxy: {name: "${A}", port: "${PORT}"}
"""
    configuration = configure(folder, text, {"CMD": "run", "A": "aaa", "PORT": "99"})
    (only,) = configuration.settings.upstreams
    assert only.command == "run"
    assert only.args == ("aaa-aaa", "fallback", "${A}", "$A", "from-file")
    assert only.env == {"HOME_OF": str(Path.home())}
    assert (configuration.settings.proxy.name, configuration.settings.proxy.port) == ("aaa", 99)


def test_a_missing_variable_is_an_error_that_names_file_line_and_key(folder: Path) -> None:
    text = "mcpServers:\n  x:\n    command: x\n    env:\n      T: Bearer ${TOKEN}\nproxy:\n  port: ${PORT}\n"
    assert problems(folder, text) == [
        "mcproxy.yaml:5:7: mcpServers.x.env.T: the environment variable TOKEN is not set",
        "mcproxy.yaml:7:3: proxy.port: the environment variable PORT is not set",
    ]


def test_a_missing_file_and_an_unknown_reference_are_errors(folder: Path) -> None:
    text = 'mcpServers: {x: {command: x, args: ["${file:/no/such}", "${what ever}"]}}'
    missing, unknown = problems(folder, text)
    assert "args.0: cannot read /no/such" in missing
    assert "args.1: ${what ever} is no reference" in unknown


def test_a_disabled_server_may_lack_its_variables(folder: Path) -> None:
    only = upstream(folder, "mcpServers: {x: {command: x, enabled: false, env: {T: '${TOKEN}'}}}")
    assert not only.enabled


def test_r44_no_error_shows_an_expanded_value(folder: Path) -> None:
    text = """\
mcpServers:
  a: {command: x, url: "${S}", headers: {A: "${S}"}}
  b: {url: "${S}", prefix: "${S}", type: "${S}", enabled: "${S}", max_in_flight: "${S}"}
  c: {command: x, cwd: ["${S}"], timeouts: {idle: "${S}"}, max_message_bytes: "${S}", envFile: "${file:secret}/x"}
proxy: {host: "${S}", port: "${S}", log_level: "${S}"}
"""
    (folder / "secret").write_text("other")
    found = problems(folder, text, {"S": SENTINEL})
    assert len(found) >= 10
    assert SENTINEL not in "\n".join(found)


def test_r44_the_secrets_of_a_file_are_known(folder: Path) -> None:
    text = 'mcpServers: {x: {url: "http://h/?key=${KEY}", headers: {Authorization: "Bearer tok-123"}}}'
    secrets = configure(folder, text, {"KEY": SENTINEL}).secrets
    assert {SENTINEL, "tok-123", "Bearer tok-123"} <= secrets


# Hosts


def test_the_file_of_claude_desktop_loads_unchanged(folder: Path) -> None:
    text = json.dumps(
        {
            "globalShortcut": "Ctrl+Space",
            "mcpServers": {"filesystem": {"command": "npx", "args": ["-y", "@x/fs", "/tmp"], "env": {"A": "b"}}},
        }
    )
    only = upstream(folder, text, name="claude_desktop_config.json")
    assert (only.name, only.prefix, only.command, only.env) == ("filesystem", "filesystem", "npx", {"A": "b"})


def test_the_file_of_vs_code_loads_unchanged(folder: Path) -> None:
    text = """{
  "inputs": [{"type": "promptString", "id": "github-token", "password": true}], // asked once
  "servers": {
    "gh": {"type": "http", "url": "https://api.x/mcp", "headers": {"Authorization": "Bearer ${input:github-token}"},
           "gallery": true, "version": "1.0"},
    "local": {"type": "stdio", "command": "${workspaceFolder}/run", "envFile": "${workspaceFolder}/.env",
              "dev": {"watch": "**"}},
  },
}"""
    (folder / ".env").write_text("# comment\nexport A=1\nB=\"two words\"\nC=3 # three\nD='#4'\n")
    gh, local = configure(folder, text, {"GITHUB_TOKEN": "t"}, ".vscode/mcp.json").settings.upstreams
    assert (gh.type, gh.headers) == ("http", {"Authorization": "Bearer t"})
    assert local.command == f"{folder}/run"
    assert local.env == {"A": "1", "B": "two words", "C": "3", "D": "#4"}


def test_an_input_without_a_value_says_what_to_set(folder: Path) -> None:
    text = '{"servers": {"gh": {"url": "https://x", "headers": {"A": "${input:gh-token}"}}}}'
    (problem,) = problems(folder, text, name="mcp.json")
    assert problem.endswith("set the environment variable GH_TOKEN")


def test_the_files_of_cursor_windsurf_cline_and_claude_code_load_unchanged(folder: Path) -> None:
    text = json.dumps(
        {
            "mcpServers": {
                "cursor": {"type": "stdio", "command": "${userHome}/x", "env": {"K": "${env:K}"}, "auth": {}},
                "windsurf": {"serverUrl": "https://a/mcp", "disabledTools": ["t"], "disabled": True},
                "cline": {"type": "streamableHttp", "url": "https://b", "autoApprove": ["x"], "timeout": 60},
                "roo": {"type": "streamable-http", "url": "https://c", "alwaysAllow": [], "watchPaths": []},
                "claude": {"type": "sse", "url": "https://d/sse", "headers": {"X": "${V:-w}"}},
            },
            "projects": {"/home/x": {"history": []}},
        }
    )
    cursor, windsurf, cline, roo, claude = configure(folder, text, {"K": "k"}, ".claude.json").settings.upstreams
    assert (cursor.command, cursor.env) == (f"{Path.home()}/x", {"K": "k"})
    assert (windsurf.url, windsurf.tools.exclude, windsurf.enabled) == ("https://a/mcp", ("t",), False)
    assert (cline.type, roo.type, claude.type) == ("http", "http", "sse")
    assert claude.headers == {"X": "w"}


def test_the_file_of_gemini_cli_loads_unchanged(folder: Path) -> None:
    text = json.dumps(
        {
            "theme": "dark",
            "mcpServers": {
                "a": {"httpUrl": "https://a", "headers": {"T": "Bearer $TOK"}, "trust": True, "timeout": 5000},
                "b": {"command": "x", "includeTools": ["one"], "excludeTools": ["two"], "description": "d"},
            },
        }
    )
    a, b = configure(folder, text, {"TOK": "t"}, ".gemini/settings.json").settings.upstreams
    assert (a.url, a.headers) == ("https://a", {"T": "Bearer t"})
    assert (b.tools.include, b.tools.exclude) == (("one",), ("two",))


def test_a_json_file_with_a_proxy_section_is_ours_and_strict(folder: Path) -> None:
    text = '{"theme": 1, "proxy": {}, "mcpServers": {}}'
    (problem,) = problems(folder, text, name="mcproxy.json")
    assert problem.startswith("mcproxy.json:1:2: theme: unknown key")


@pytest.mark.parametrize("value", ["false", "''", "[]", "0", "deny"])
def test_r50_access_that_is_no_mapping_is_refused_and_never_taken_for_none(folder: Path, value: str) -> None:
    (problem,) = problems(folder, f"access: {value}\n")
    assert problem.startswith("mcproxy.yaml:1:1: access: should be a mapping")


def test_r50_access_is_checked_with_file_line_and_key(folder: Path) -> None:
    (problem,) = problems(folder, "proxy: {}\naccess:\n  autentication: {}\n")
    assert problem.startswith("mcproxy.yaml:3:3: access.autentication: unknown key")


def test_a_json_file_with_access_is_ours_and_strict(folder: Path) -> None:
    text = '{"theme": 1, "access": {}, "mcpServers": {}}'
    (problem,) = problems(folder, text, name="mcproxy.json")
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
        ("{command: x, type: carrier-pigeon}", "should be 'auto', 'stdio', 'http' or 'sse'"),
        ("{command: x, args: one}", "should be a list"),
        ("{command: x, timeouts: 3}", "should be a mapping"),
        ("{command: x, prefix: A_b}", "should match pattern"),
        ("x", "should be a mapping with a command or a url"),
    ],
)
def test_a_server_that_contradicts_itself_is_refused(folder: Path, server: str, sentence: str) -> None:
    (problem,) = problems(folder, f"mcpServers: {{s: {server}}}")
    assert sentence in problem


def test_paths_are_relative_to_the_file(folder: Path) -> None:
    (folder / "e.env").write_text("A=1\nB=2\n")
    text = "mcpServers: {x: {command: x, cwd: sub/../dir, envFile: e.env, env: {B: own}}}"
    only = upstream(folder, text)
    assert only.cwd == str(folder / "dir")
    assert only.env == {"A": "1", "B": "own"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("github", "github"),
        ("GitHub (work)", "github-work"),
        ("my_server", "my-server"),
        ("7zip", "s-7zip"),
        ("x" * 50, "x" * 32),
    ],
)
def test_a_prefix_is_the_slug_of_the_name(name: str, expected: str) -> None:
    assert slug(name) == expected


def test_a_name_without_letters_still_has_a_prefix() -> None:
    assert slug("日本") != slug("中国")
    assert slug("日本").startswith("s-")


def test_r29_prefixes_do_not_depend_on_the_order_of_the_file() -> None:
    chosen = {"My Server": None, "my-server": None, "other": None, "taken": "other"}
    forward, backward = prefixes(chosen), prefixes(dict(reversed(chosen.items())))
    assert forward == backward
    assert len(set(forward.values())) == 4
    assert forward["taken"] == "other"


def test_equal_prefixes_are_refused_the_empty_one_included(folder: Path) -> None:
    text = "mcpServers:\n  a: {command: x, prefix: ''}\n  b: {command: x, prefix: ''}\n"
    assert problems(folder, text) == ["mcproxy.yaml:3:19: mcpServers.b.prefix: is the prefix of 'a' already"]


def test_a_server_needs_a_name_and_has_it_alone(folder: Path) -> None:
    text = "mcpServers: {'': {command: x}, a: {command: x}}\nservers: {a: {command: y}}"
    nameless, twice = problems(folder, text)
    assert "needs a name" in nameless
    assert "servers.a: is the name of another server" in twice


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
def test_r50_a_url_that_nothing_can_be_sent_to_is_told_with_its_place(folder: Path, url: str, sentence: str) -> None:
    (problem,) = problems(folder, f"mcpServers:\n  a:\n    url: '{url}'\n")
    assert problem.startswith("mcproxy.yaml:3:5: mcpServers.a.url: ")
    assert sentence in problem


@pytest.mark.parametrize("url", ["http://h/mcp", "HTTP://127.0.0.1:1/", "https://[::1]:65535/x?y#z", "http://ü.de/x"])
def test_other_urls_are_taken_as_they_are(folder: Path, url: str) -> None:
    assert upstream(folder, f"mcpServers: {{a: {{url: '{url}'}}}}").url == url


@pytest.mark.parametrize("key", ["proxi", "Proxy", "porxy", "PROXY", "prxoy"])
def test_r50_what_was_meant_for_us_in_a_hosts_file_is_no_key_of_the_host(folder: Path, key: str) -> None:
    (problem,) = problems(folder, f'{{"mcpServers": {{}}, "{key}": {{"port": 1}}}}', name="mcp.json")
    assert problem == f'mcp.json:1:20: {key}: unknown key; did you mean "proxy"?'


@pytest.mark.parametrize("key", ["proxies", "httpProxy", "prompts", "projects"])
def test_a_hosts_own_keys_are_its_own(folder: Path, key: str) -> None:
    assert configure(folder, f'{{"mcpServers": {{}}, "{key}": 1}}', name="mcp.json").settings == Settings()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.internal"])
def test_r42_binding_elsewhere_than_to_loopback_is_refused_unless_a_setting_says_so(folder: Path, host: str) -> None:
    (problem,) = problems(folder, f"proxy: {{host: '{host}'}}")
    assert "proxy.host: is not loopback" in problem
    assert "set proxy.insecure to true" in problem
    assert configure(folder, f"proxy: {{host: '{host}', insecure: true}}").settings.proxy.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_loopback_needs_no_flag(folder: Path, host: str) -> None:
    assert configure(folder, f"proxy: {{host: '{host}'}}").settings.proxy.host == host


# Where the file is


def test_the_file_is_found_by_variable_then_here_then_in_the_users_folder(folder: Path) -> None:
    here, home = folder / "here", folder / "home"
    (home / "mcproxy").mkdir(parents=True)
    here.mkdir()
    environ = {"XDG_CONFIG_HOME": str(home)}
    (home / "mcproxy" / "mcproxy.yaml").touch()
    assert find(environ, here) == home / "mcproxy" / "mcproxy.yaml"
    (here / "mcproxy.json").touch()
    assert find(environ, here) == here / "mcproxy.json"
    assert find({**environ, "MCPROXY_CONFIG": "/else/where.yaml"}, here) == Path("/else/where.yaml")


def test_where_no_file_is_found_the_error_says_what_to_do(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="--config or MCPROXY_CONFIG"):
        find({"XDG_CONFIG_HOME": str(folder)}, folder)


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        read(folder / "none.yaml", {})
    (folder / "latin.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        read(folder / "latin.yaml", {})


def test_a_key_that_anybody_could_guess_is_refused(folder: Path) -> None:
    [problem] = problems(folder, "proxy:\n  secret: ${NOTHING:-}\n")
    assert problem.startswith("mcproxy.yaml:2:3: proxy.secret:")


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


def test_each_rule_knows_its_file_and_line(folder: Path) -> None:
    policy = configure(folder, POLICY).settings.access.policy
    assert policy.place(("reader", "allow", 0)) == f"{folder}/mcproxy.yaml:7"
    assert policy.place(("reader", "allow", 1)) == f"{folder}/mcproxy.yaml:8"
    assert policy.place(("reader", "deny", 0)) is None


def test_a_role_of_which_nothing_is_said_is_one_nevertheless(folder: Path) -> None:
    policy = configure(folder, "access: {policy: {roles: {everyone: }}}\n").settings.access.policy
    assert not policy.allows_by_default
    assert "everyone" in configure(folder, POLICY).settings.access.policy.roles


def test_endpoints_are_read(folder: Path) -> None:
    (endpoint,) = configure(folder, POLICY).settings.endpoints.items()
    assert endpoint == ("team", Endpoint(upstreams=("time",), roles=("reader",)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("endpoints: [a]\n", "1:1: endpoints: should be a mapping from names to endpoints"),
        ("endpoints:\n  a/b: {}\n", '2:3: endpoints."a/b": should be a name like'),
        ("endpoints:\n  a: {tolls: []}\n", '2:7: endpoints.a.tolls: unknown key; did you mean "tools"?'),
        ("mcpServers: {/a: {command: x}}\nendpoints:\n  a: {}\n", "3:3: endpoints.a: clashes with the server '/a'"),
        ("access: {policy: {roles: {r: {deny: {}}}}}\n", "1:31: access.policy.roles.r.deny: should be a list"),
        (
            "access:\n  policy:\n    roles:\n      r:\n        allow:\n        - tool: [x]\n",
            '6:11: access.policy.roles.r.allow.0.tool: unknown key; did you mean "tools"?',
        ),
    ],
)
def test_r50_what_is_wrong_with_a_policy_or_an_endpoint_is_told_with_its_line(
    folder: Path, text: str, expected: str
) -> None:
    (problem,) = problems(folder, text)
    assert problem.startswith(f"mcproxy.yaml:{expected}")
