"""Each host's references in its own file, read as configuration and imported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.configuration.hosts.importing import Imported, import_servers
from mcproxy.configuration.hosts.locations import HOSTS, host_of
from mcproxy.configuration.hosts.references import BRACES, Rewriting
from mcproxy.configuration.loading import load
from mcproxy.configuration.problems import ConfigurationError
from tests.configuration.reading import configure

TEXTS = (
    "${A}",
    "${A:-b}",
    "${env:A}",
    "$A",
    "{env:A}",
    "${{ secrets.A }}",
    "${file:secret}",
    "{file:secret}",
    "${input:a}",
    "$${A}",
    "$$${env:A}",
    "${command:x}",
    "a${}b",
    "${what ever}",
    "$",
    "$$",
    "${",
)
ENVIRON = {"A": "aaa", "MCPROXY_INPUT_A": "iii"}
EXPANDED = {
    ".mcp.json": {"${A}": "aaa", "${A:-b}": "aaa", "$${A}": "$aaa"},
    "unknown.json": {"${A}": "aaa", "${A:-b}": "aaa", "$${A}": "$aaa"},
    ".cursor/mcp.json": {"${env:A}": "aaa", "$$${env:A}": "$$aaa"},
    ".vscode/mcp.json": {"${env:A}": "aaa", "${input:a}": "iii", "$$${env:A}": "$$aaa"},
    ".codeium/windsurf/mcp_config.json": {"${env:A}": "aaa", "${file:secret}": "s3cret", "$$${env:A}": "$$aaa"},
    ".cline/data/settings/cline_mcp_settings.json": {"${env:A}": "aaa", "$$${env:A}": "$$aaa"},
    ".gemini/settings.json": {"${A}": "aaa", "${A:-b}": "aaa", "$A": "aaa", "$${A}": "$aaa"},
    "claude_desktop_config.json": {},
    "opencode.json": {
        "{env:A}": "aaa",
        "${env:A}": "$aaa",
        "$$${env:A}": "$$$aaa",
        "{file:secret}": "s3cret",
        "${file:secret}": "$s3cret",
    },
    ".codex/config.toml": {},
    ".zed/settings.json": {},
    ".continue/config.yaml": {"${{ secrets.A }}": "aaa"},
}
"""The texts that the host of each file expands, and to what; every other text is literal."""
DIRECT = [name for name in EXPANDED if name.endswith(".json") and name not in {"opencode.json", ".zed/settings.json"}]


def laid_out(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "secret").write_text("s3cret\n")
    server: dict[str, object] = {"command": "x", "args": [*TEXTS]}
    match name:
        case "opencode.json":
            document: object = {"mcp": {"x": {"type": "local", "command": ["x", *TEXTS]}}}
        case ".zed/settings.json":
            document = {"context_servers": {"x": server}}
        case ".continue/config.yaml":
            document = {"mcpServers": [{"name": "x", **server}]}
        case ".codex/config.toml":
            path.write_text(f'[mcp_servers.x]\ncommand = "x"\nargs = {json.dumps(TEXTS)}\n')
            return path
        case _:
            document = {"servers" if "vscode" in name else "mcpServers": {"x": server}}
    path.write_text(json.dumps(document))
    return path


def imported(path: Path, environ: dict[str, str] | None = None) -> Imported:
    return import_servers(str(path), path.parent, environ or {})


@pytest.mark.parametrize("name", DIRECT)
def test_a_host_s_own_file_has_the_references_of_that_host_alone(tmp_path: Path, name: str) -> None:
    path = laid_out(tmp_path, name)
    assert load(path, ENVIRON).upstreams[0].args == tuple(EXPANDED[name].get(text, text) for text in TEXTS)


@pytest.mark.parametrize("name", EXPANDED)
def test_what_is_imported_means_what_it_means_to_the_host(tmp_path: Path, name: str) -> None:
    found = imported(laid_out(tmp_path, name), {"A": "a secret that is not to be copied"})
    assert "not to be copied" not in found.render() + found.render_env()
    output = tmp_path / "mcproxy.yaml"
    output.write_text(found.render())
    assert load(output, ENVIRON).upstreams[0].args == tuple(EXPANDED[name].get(text, text) for text in TEXTS)


def test_copilot_and_goose_expand_references_in_some_places_alone(tmp_path: Path) -> None:
    copilot = tmp_path / ".copilot" / "mcp-config.json"
    copilot.parent.mkdir()
    server = {"command": "$A", "args": ["${A}"], "env": {"X": "$A", "Y": "${A:-b}", "Z": "${env:A}"}}
    copilot.write_text(json.dumps({"mcpServers": {"x": server}}))
    assert imported(copilot).servers["x"] == {
        "command": "$A",
        "args": ["$${A}"],
        "env": {"X": "${A}", "Y": "${A:-b}", "Z": "$${env:A}"},
    }
    goose = tmp_path / "goose" / "config.yaml"
    goose.parent.mkdir()
    http = {"type": "streamable_http", "uri": "https://x.example/mcp", "headers": {"X": "Bearer ${ A }"}}
    stdio = {"type": "stdio", "cmd": "x", "args": ["$A"]}
    goose.write_text(json.dumps({"extensions": {"web": http, "run": stdio}}))
    found = imported(goose).servers
    assert (found["web"]["headers"], found["run"]["args"]) == ({"X": "Bearer ${A}"}, ["$A"])


def test_a_name_of_a_variable_that_is_none_refers_to_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('[mcp_servers.x]\nurl = "https://x.example"\nbearer_token_env_var = "file:/etc/passwd"\n')
    found = imported(path)
    assert "passwd" not in found.render()
    assert found.notes == [
        "x: `headers.Authorization` was left out: 'file:/etc/passwd' is not the name of a variable",
    ]


def test_a_file_chooses_no_variable_that_the_environment_has_for_another_use(tmp_path: Path) -> None:
    path = tmp_path / ".vscode" / "mcp.json"
    path.parent.mkdir()
    env = {"AWS_SECRET_ACCESS_KEY": "hunter2hunter2", "A": "${input:aws-secret-access-key}"}
    path.write_text(json.dumps({"servers": {"aws": {"command": "x", "env": env}}}))
    secrets = {"AWS_SECRET_ACCESS_KEY": "the real one", "MCPROXY_AWS_AWS_SECRET_ACCESS_KEY": "of another server"}
    found = imported(path, secrets)
    assert found.servers["aws"]["env"] == {
        "AWS_SECRET_ACCESS_KEY": "${MCPROXY_AWS_AWS_SECRET_ACCESS_KEY_2}",
        "A": "${MCPROXY_INPUT_AWS_SECRET_ACCESS_KEY}",
    }
    with pytest.raises(ConfigurationError, match="MCPROXY_INPUT_AWS_SECRET_ACCESS_KEY"):
        load(path, secrets)


def test_what_servers_take_from_the_environment_is_said(tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"x": {"url": "https://x", "headers": {"A": "${AWS_SECRET:-}"}}}}))
    assert imported(path).inherited == {"AWS_SECRET": ["x"]}


def test_the_host_of_a_file_elsewhere_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"x": {"command": "x", "args": ["${env:A}"]}}}))
    left = imported(path)
    assert left.servers["x"]["args"] == ["$${env:A}"]
    assert left.notes == ["x: ${env:A} stays plain text, as it is to its host"]
    assert import_servers(str(path), tmp_path, {}, host="cursor").servers["x"]["args"] == ["${A}"]
    with pytest.raises(ConfigurationError, match="is no host that mcproxy knows; did you mean 'cursor'"):
        import_servers(str(path), tmp_path, {}, host="curso")


def test_a_reference_of_another_host_is_warned_of(tmp_path: Path) -> None:
    text = '{"mcpServers": {"x": {"command": "x", "env": {"T": "${env:A}"}}}}'
    (warning,) = configure(tmp_path, text, name=".mcp.json").warnings
    assert "mcpServers.x.env.T: ${env:A} is plain text in this host's own file" in str(warning)


@pytest.mark.parametrize("name", HOSTS)
def test_connect_refers_to_variables_as_the_host_does(name: str) -> None:
    host = HOSTS[name]
    if host.variable is not None:
        written = host.variable.replace("%s", "A")
        assert Rewriting(host.references, Path("/")).text(f"x{written}") == "x${A}"


def test_the_host_of_a_file_is_told_by_its_place() -> None:
    for path, name in {
        "/p/.mcp.json": "claude-code",
        "/h/.config/Code/User/mcp.json": "vscode",
        "/h/.copilot/mcp-config.json": "copilot",
        "/h/.gemini/config/mcp_config.json": "antigravity",
        "/downloads/claude_desktop_config.json": "claude-desktop",
    }.items():
        assert host_of(Path(path)) is HOSTS[name]
    for path in ("/p/mcp.json", "/p/settings.json", "/p/mcp_config.json", "/p/servers.json"):
        assert host_of(Path(path)) is None


def test_a_default_and_what_is_near_a_reference_are_kept() -> None:
    text = Rewriting(BRACES, Path("/")).text
    assert text("${userHome}") == "${env:userHome}"
    assert text("$$$${A}$") == "${:-$$$}${A}$"
    assert text("${A:-x$y}") == "${A:-x$y}"
