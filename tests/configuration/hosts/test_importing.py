"""Importing hosts' files: what is carried over, and that no secret is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.configuration.hosts.importing import Imported, import_servers
from mcproxy.configuration.hosts.locations import HOSTS
from mcproxy.configuration.loading import load
from mcproxy.configuration.problems import ConfigurationError
from tests.configuration.hosts.examples import EXAMPLES, lay_out

TOKEN = "ghp_" + "a1B2c3D4e5" * 3


def imported(path: Path, servers: dict[str, object], key: str = "mcpServers") -> Imported:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: servers}))
    return import_servers(str(path), path.parent)


def test_r44_secrets_become_variables_and_appear_nowhere(tmp_path: Path) -> None:
    found = imported(
        tmp_path / "mcp.json",
        {
            "my gh": {
                "command": "npx",
                "args": ["-y", "@x/server-github@2025.1.14", "--api-key", "hunter2hunter2", f"--token={TOKEN}", TOKEN],
                "env": {"GITHUB_TOKEN": TOKEN, "LOG_LEVEL": "debug", "DB": "postgres://u:hunter2@h/db"},
            },
            "web": {
                "url": f"https://h/mcp?api_key={TOKEN}&region=eu",
                "headers": {"Authorization": f"Bearer {TOKEN}", "X-Region": "eu"},
            },
        },
    )
    text = found.render()
    assert TOKEN not in text + repr(found.variables)
    assert "hunter2" not in text + repr(found.variables)
    gh, web = found.servers["my gh"], found.servers["web"]
    assert gh["args"] == [
        "-y",
        "@x/server-github@2025.1.14",
        "--api-key",
        "${MCPROXY_MY_GH_API_KEY}",
        "--token=${MCPROXY_MY_GH_TOKEN}",
        "${MCPROXY_MY_GH_SECRET}",
    ]
    assert gh["env"] == {
        "GITHUB_TOKEN": "${MCPROXY_MY_GH_GITHUB_TOKEN}",
        "LOG_LEVEL": "debug",
        "DB": "${MCPROXY_MY_GH_DB}",
    }
    assert web["url"] == "https://h/mcp?api_key=${MCPROXY_WEB_API_KEY}&region=eu"
    assert web["headers"] == {"Authorization": "Bearer ${MCPROXY_WEB_AUTHORIZATION}", "X-Region": "eu"}
    assert found.variables["MCPROXY_WEB_AUTHORIZATION"] == "web: headers.Authorization"


def test_r44_secrets_in_headers_and_variables_among_arguments_become_variables(tmp_path: Path) -> None:
    args = ["-H", "Authorization: Bearer abc-123-def", "-e", "A_TOKEN=hunter2hunter2", "--auth", "none"]
    found = imported(tmp_path / "mcp.json", {"x": {"command": "x", "args": args}})
    assert found.servers["x"]["args"] == [
        "-H",
        "Authorization: Bearer ${MCPROXY_X_AUTHORIZATION}",
        "-e",
        "A_TOKEN=${MCPROXY_X_A_TOKEN}",
        "--auth",
        "none",
    ]
    output = tmp_path / "mcproxy.yaml"
    output.write_text(found.render())
    (tmp_path / ".env").write_text(found.render_env())
    assert load(output, {}).upstreams[0].args == tuple(args)


def test_what_is_imported_loads_with_its_variables_set(tmp_path: Path) -> None:
    servers: dict[str, object] = {
        "a": {"command": "x", "env": {"TOKEN": TOKEN}, "disabledTools": ["t"], "alwaysAllow": ["u"]},
        "b": {"serverUrl": "https://b", "disabled": True},
    }
    found = imported(tmp_path / "mcp.json", servers)
    output = tmp_path / "mcproxy.yaml"
    output.write_text(found.render())
    a, b = load(output, {"MCPROXY_A_TOKEN": TOKEN}).upstreams
    assert (a.env, a.tools.exclude, b.url, b.enabled) == ({"TOKEN": TOKEN}, ("t",), "https://b", False)


def test_two_places_that_would_share_a_variable_get_one_each(tmp_path: Path) -> None:
    found = imported(
        tmp_path / "mcp.json",
        {"a": {"command": "x", "env": {"B_KEY": TOKEN}}, "a_b": {"command": "x", "env": {"KEY": TOKEN}}},
    )
    assert found.servers["a_b"]["env"] == {"KEY": "${MCPROXY_A_B_KEY_2}"}
    assert found.variables == {"MCPROXY_A_B_KEY": "a: env.B_KEY", "MCPROXY_A_B_KEY_2": "a_b: env.KEY"}


@pytest.mark.parametrize("place", ["mcp.json", ".mcp.json", ".vscode/mcp.json", ".cursor/mcp.json"])
def test_a_command_that_names_a_file_of_the_project_is_started_in_its_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("server.py", "bin/run"):
        (tmp_path / name).write_text("")
    servers: dict[str, object] = {
        "a": {"command": "python3", "args": ["server.py"]},
        "b": {"command": "bin/run"},
        "c": {"command": "bin", "args": ["", "other.py", "/server.py"]},
        "d": {"command": "python3", "args": ["server.py"], "cwd": "/srv"},
    }
    found = imported(tmp_path / place, servers).servers
    here = str(tmp_path)
    assert [found[name].get("cwd") for name in "abcd"] == [here, here, None, "/srv"]


def test_what_depends_on_the_place_of_the_hosts_file_is_resolved(tmp_path: Path) -> None:
    (tmp_path / ".vscode").mkdir()
    (tmp_path / ".vscode" / ".env").write_text("A=1\n")
    found = imported(
        tmp_path / ".vscode" / "mcp.json",
        {"x": {"command": "${workspaceFolder}/run", "cwd": "sub", "args": ["${input:the-key}"], "envFile": ".env"}},
        key="servers",
    )
    assert found.servers["x"] == {
        "command": f"{tmp_path}/run",
        "cwd": f"{tmp_path}/.vscode/sub",
        "args": ["${MCPROXY_INPUT_THE_KEY}"],
        "envFile": f"{tmp_path}/.vscode/.env",
    }
    assert found.variables == {"MCPROXY_INPUT_THE_KEY": "the input the-key"}


def test_gemini_s_bare_variables_get_braces(tmp_path: Path) -> None:
    found = imported(tmp_path / ".gemini" / "settings.json", {"x": {"httpUrl": "https://x", "headers": {"A": "$KEY"}}})
    assert found.servers["x"]["headers"] == {"A": "${KEY}"}


def test_a_project_of_claude_code_comes_over_the_user_s(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    own = {"projects": {str(project): {"mcpServers": {"local": {"command": "l"}}}}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"both": {"command": "user"}}, **own}))
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"both": {"command": "project"}}}))
    found = import_servers("claude-code", project, {"HOME": str(home)})
    assert found.servers == {"both": {"command": "project"}, "local": {"command": "l"}}
    assert found.sources == [home / ".claude.json", project / ".mcp.json"]


def test_servers_of_other_projects_are_told_of_with_their_folders(tmp_path: Path) -> None:
    file, servers = tmp_path / ".claude.json", {"mcpServers": {"local": {"command": "l"}}}
    projects = {"/work/a": servers, "/work/b": servers, "/work/none": {"mcpServers": {}}}
    file.write_text(json.dumps({"mcpServers": {"x": {"command": "x"}}, "projects": projects}))
    found = import_servers("claude-code", tmp_path, {"HOME": str(tmp_path)})
    assert found.notes == ["servers of projects were left out: import them in /work/a or /work/b"]
    file.write_text(json.dumps({"projects": projects}))
    with pytest.raises(ConfigurationError, match="names no servers; servers of projects were left out: import them in"):
        import_servers("claude-code", tmp_path, {"HOME": str(tmp_path)})


def test_a_file_that_is_the_user_s_and_the_project_s_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"x": {"command": "x"}}}))
    assert import_servers("cursor", tmp_path, {"HOME": str(tmp_path)}).sources == [file]


@pytest.mark.parametrize(
    ("source", "hint"), [("curso", "; did you mean 'cursor'?"), ("notepad", ": antigravity, claude-code")]
)
def test_r87_a_source_that_is_nothing_names_the_host_that_is_meant(tmp_path: Path, source: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        import_servers(source, tmp_path)
    assert f"is no file, and no host that mcproxy knows{hint}" in str(caught.value)


def test_a_host_that_is_not_here_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\.cursor/mcp\.json"):
        import_servers("cursor", tmp_path, {"HOME": str(tmp_path)})


def test_r44_a_hosts_oauth_becomes_ours_and_its_secret_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    oauth = {"clientId": "me", "clientSecret": "hunter2", "scopes": "read write", "callbackPort": 8080}
    found = imported(path, {"web": {"url": "https://a.example/mcp", "oauth": oauth}})
    assert found.servers["web"]["oauth"] == {
        "client": {"id": "me", "secret": "${MCPROXY_WEB_CLIENT_SECRET}"},
        "scopes": ["read", "write"],
    }
    assert found.variables == {"MCPROXY_WEB_CLIENT_SECRET": "web: oauth.clientSecret"}


def test_what_check_would_refuse_is_left_out_with_a_note_and_the_rest_is_valid(tmp_path: Path) -> None:
    servers: dict[str, object] = {
        "good": {"command": "x", "surprise": 1, "tools": ["*"], "type": "local", "timeout": 5, "alwaysAllow": ["t"]},
        "bad": {"command": "x", "url": "https://also"},
        "worse": {"args": ["no command"]},
    }
    found = imported(tmp_path / "mcp.json", servers)
    assert found.servers == {"good": {"command": "x", "tools": {"include": ["*"]}, "type": "stdio"}}
    notes = "\n".join(found.notes)
    expected = ("good: `surprise`", "good: `timeout`", "good: `alwaysAllow`", "bad was left out", "worse was left out")
    assert [part for part in expected if part not in notes] == []
    (tmp_path / "mcproxy.yaml").write_text(found.render())
    assert [spec.name for spec in load(tmp_path / "mcproxy.yaml", {}).upstreams] == ["good"]


def test_servers_of_two_sources_are_both_kept_and_equal_ones_are_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"mcpServers": {"same": {"command": "s"}, "other": {"command": "1"}}}')
    two.write_text('{"mcpServers": {"same": {"command": "s"}, "other": {"command": "2"}}}')
    found = import_servers([str(one), str(two)], tmp_path)
    assert found.servers == {"same": {"command": "s"}, "other": {"command": "1"}, "other-2": {"command": "2"}}
    assert any("other-2" in note for note in found.notes)


def test_the_values_of_secrets_are_the_lines_of_env_and_read_back_from_it(tmp_path: Path) -> None:
    values = {"A_TOKEN": TOKEN, "B_TOKEN": f"with 'quotes\" # and {TOKEN}", "C_KEY": "two\n" + TOKEN}
    found = imported(tmp_path / "mcp.json", {"a": {"command": "x", "env": values}})
    (tmp_path / ".env").write_text(found.render_env())
    (tmp_path / "mcproxy.yaml").write_text(found.render())
    assert list(found.missing) == ["MCPROXY_A_C_KEY"], "a value of two lines is for people to set"
    (spec,) = load(tmp_path / "mcproxy.yaml", {"MCPROXY_A_C_KEY": values["C_KEY"]}).upstreams
    assert spec.env == values


def test_a_variable_that_env_has_with_another_value_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "x", "env": {"TOKEN": TOKEN}}}}))
    found = import_servers(str(path), tmp_path, existing={"MCPROXY_A_TOKEN": "another"})
    assert found.servers["a"]["env"] == {"TOKEN": "${MCPROXY_A_TOKEN_2}"}
    assert import_servers(str(path), tmp_path, existing={"MCPROXY_A_TOKEN": TOKEN}).render_env() == ""


def test_the_gateway_itself_is_not_imported(tmp_path: Path) -> None:
    own = {"command": "/venv/bin/mcproxy", "args": ["serve", "--stdio", "--config", "/x.yaml"]}
    found = imported(tmp_path / "mcp.json", {"mcproxy": own, "a": {"command": "x"}})
    assert list(found.servers) == ["a"]
    assert found.notes == ["mcproxy was left out: it is this gateway"]


def test_there_is_an_example_of_each_host() -> None:
    assert set(EXAMPLES) == set(HOSTS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_documented_file_of_each_host_is_imported_and_valid_and_what_is_dropped_is_said(
    name: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]
    lay_out(name, tmp_path)
    found = import_servers(name, tmp_path / "elsewhere", {"HOME": str(tmp_path)})
    assert json.loads(json.dumps(found.servers).replace(str(tmp_path), "{home}")) == example.servers
    assert [note.partition(" was left out: ")[0] for note in found.notes] == list(example.dropped)
    output = tmp_path / "mcproxy.yaml"
    output.write_text(found.render())
    loaded = load(output, dict.fromkeys(example.variables, "value"))
    assert [spec.name for spec in loaded.upstreams] == list(example.servers)
