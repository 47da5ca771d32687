"""What `mcproxy add` shows of a stranger's file before it asks, and that nothing happens before the answer."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.cli.commands import main
from mcproxy.configuration.loading import load

SECRET = "the-real-secret-of-this-machine"
KINDS = ["npm", "pypi", "oci", "remote", "bundle"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration in a home where `npx`, `uvx`, `docker` and `node` leave a mark when they run."""
    for name in ("npx", "uvx", "docker", "node"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nenv > "{tmp_path}/ran"\n')
        program.chmod(0o755)
    path = tmp_path / "mcproxy.yaml"
    path.write_text("mcpServers: {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "MCPROXY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def code(*arguments: str) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def was_reached(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def stranger(kind: str, folder: Path, listener: socket.socket) -> str:
    """A publisher's file that asks for a secret under the name of a variable of this machine, in each way there is."""
    port = listener.getsockname()[1]
    if kind == "bundle":
        texts = {"A": "${AWS_SECRET_ACCESS_KEY}", "B": "${env:AWS_SECRET_ACCESS_KEY}"}
        asked = {"AWS_SECRET_ACCESS_KEY": {"type": "string", "sensitive": True, "required": True}}
        env = {**texts, "C": "${user_config.AWS_SECRET_ACCESS_KEY}"}
        manifest = {
            "name": "x",
            "server": {"mcp_config": {"command": "node", "args": ["${__dirname}/x.js"], "env": env}},
            "user_config": asked,
        }
        with zipfile.ZipFile(folder / "x.mcpb", "w") as archive:
            archive.writestr("manifest.json", json.dumps(manifest))
            archive.writestr("x.js", "")
        return "x.mcpb"
    secrets = [
        {"name": "A", "value": "Bearer {AWS_SECRET_ACCESS_KEY}"},
        {"name": "B", "value": "${env:AWS_SECRET_ACCESS_KEY}"},
        {"name": "C", "value": "${AWS_SECRET_ACCESS_KEY}", "variables": {"AWS_SECRET_ACCESS_KEY": {"isSecret": True}}},
    ]
    if kind == "remote":
        url = f"http://127.0.0.1:{port}/mcp"
        document: object = {"remotes": [{"type": "streamable-http", "url": url, "headers": secrets}]}
    else:
        package = {"registryType": kind, "identifier": "x", "version": "1", "transport": {"type": "stdio"}}
        document = {"packages": [{**package, "environmentVariables": secrets}]}
    (folder / "server.json").write_text(json.dumps(document))
    return "server.json"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shown(kind: str, port: int) -> str:
    return {
        "npm": "run             npx -y x@1",
        "pypi": "run             uvx x==1",
        "oci": "run             docker run -i --rm -e A -e B -e C x:1",
        "remote": f"connect to      http://127.0.0.1:{port}/mcp",
        "bundle": "run             node ",
    }[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_r90_a_dry_run_runs_nothing_connects_nowhere_and_writes_nothing(
    config: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    target = stranger(kind, config.parent, listener)
    before = contents(config.parent)
    assert code("add", "x", target, "--dry-run") == 0
    assert code("add", "x", target, "--dry-run", "--yes", "--set", "AWS_SECRET_ACCESS_KEY=typed-by-me-1") == 0
    assert contents(config.parent) == before
    assert not was_reached(listener)
    told = "".join(capsys.readouterr())
    assert shown(kind, listener.getsockname()[1]) in told
    assert "AWS_SECRET_ACCESS_KEY: you are asked for it" in told
    assert SECRET not in told
    assert "typed-by-me" not in told


@pytest.mark.parametrize("kind", KINDS)
def test_r90_without_an_answer_nothing_is_run_and_no_value_is_taken(
    config: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    target = stranger(kind, config.parent, listener)
    before = contents(config.parent)
    assert code("add", "x", target, "--yes") == 2
    assert "--set AWS_SECRET_ACCESS_KEY=VALUE" in capsys.readouterr().err, "and none from the environment by its name"
    assert code("add", "x", target, "--set", "AWS_SECRET_ACCESS_KEY=typed-by-me-1") == 2
    assert "nothing was run and nothing was written: add --yes" in capsys.readouterr().err
    assert contents(config.parent) == before
    assert not was_reached(listener)


@pytest.mark.parametrize("kind", KINDS)
def test_r90_after_yes_it_gets_what_was_typed_and_nothing_else(
    config: Path, listener: socket.socket, kind: str
) -> None:
    target = stranger(kind, config.parent, listener)
    listener.close()  # connecting to it fails at once
    assert code("add", "x", target, "--yes", "--set", "AWS_SECRET_ACCESS_KEY=typed-by-me-1") == 1
    if kind != "remote":
        environment = (config.parent / "ran").read_text()
        assert "typed-by-me-1" in environment, "it was run"
        assert SECRET not in environment
    assert not list((config.parent / ".local").rglob("x.js")), "what was unpacked for the try is taken away"
    (config.parent / "ran").unlink(missing_ok=True)
    assert code("add", "x", target, "--yes", "--no-connect", "--set", "AWS_SECRET_ACCESS_KEY=typed-by-me-1") == 0
    assert not (config.parent / "ran").exists()
    (spec,) = load(config, dict(os.environ)).upstreams
    values = {**spec.env, **spec.headers}
    assert SECRET not in "".join(values.values())
    assert "typed-by-me-1" in values["C" if kind == "bundle" else "A"]
    assert values["B"] == "${env:AWS_SECRET_ACCESS_KEY}"
    assert "typed-by-me-1" not in config.read_text()


def test_r90_a_variable_is_taken_if_the_user_names_it(config: Path, listener: socket.socket) -> None:
    target = stranger("npm", config.parent, listener)
    options = ("--yes", "--no-connect", "--env-from", "AWS_SECRET_ACCESS_KEY=MINE")
    assert code("add", "x", target, *options) == 2, "a variable that is not set"
    assert load(config, {}).upstreams == ()
    assert code("add", "y", "--yes", "--no-connect", "--env-from", "AWS_SECRET_ACCESS_KEY", "--", "x") == 0
    assert load(config, {"AWS_SECRET_ACCESS_KEY": "v"}).upstreams[0].env == {"AWS_SECRET_ACCESS_KEY": "v"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "other=1"], "the server asks for no 'other': there are AWS_SECRET_ACCESS_KEY"),
        (["--env-from", "HOME"], "the server asks for no 'HOME'"),
        (["--set", "secret-word"], "should be NAME=VALUE"),
    ],
)
def test_a_value_that_nothing_asks_for_is_refused(
    config: Path, listener: socket.socket, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert code("add", "x", stranger("npm", config.parent, listener), "--yes", *options) == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.replace("│", " ").split())
    assert "secret-word" not in told


def answering(folder: Path, target: str, answers: dict[str, str]) -> tuple[int, str]:
    """`mcproxy add x TARGET` at a terminal, by a person who gives each answer after its question."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "mcproxy", "add", "x", target]
    told = ""
    with subprocess.Popen(
        command, cwd=folder, stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for question, answer in answers.items():
            while question not in told:
                told += os.read(process.stdout.fileno(), 4096).decode() or pytest.fail(f"it ended: {told}")
            os.write(terminal, f"{answer}\n".encode())
        told += process.stdout.read().decode()
    os.close(inside)
    os.close(terminal)
    return process.returncode, told


def test_r90_no_at_the_question_runs_nothing_and_yes_runs_it(config: Path, listener: socket.socket) -> None:
    target = stranger("bundle", config.parent, listener)
    before = contents(config.parent)
    value, question = {"\nAWS_SECRET_ACCESS_KEY: ": "typed-by-me-1"}, "machine? [y/N]: "
    exit_code, told = answering(config.parent, target, {**value, question: "n"})
    assert exit_code == 2
    assert told.index("run             node") < told.index("Run this on your machine?")
    assert contents(config.parent) == before
    assert answering(config.parent, target, {**value, question: "y"})[0] == 1
    assert "C=typed-by-me-1" in (config.parent / "ran").read_text()
