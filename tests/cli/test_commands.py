"""The commands as a user runs them: their output, and their exit codes."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from mcproxy import __version__
from mcproxy.cli.commands import commands, main
from tests.processes import command_line, descendants
from tests.timeouts import GUARD

SECRET = "ghp_" + "a1B2c3D4e5" * 3


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A gateway in front of one server."""
    odd = {
        "command": sys.executable,
        "args": ["-m", "tests.system.odd_server"],
        "cwd": str(Path(__file__).parents[2]),
    }
    path = tmp_path / "mcproxy.json"
    path.write_text(json.dumps({"proxy": {"port": 0}, "mcpServers": {"odd": odd}}))
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text("mcpServers: {gone: {command: /no/such/command, env: {TOKEN: " + SECRET + "}}}")
    return path


def run(*arguments: str | Path, input: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mcproxy", *map(str, arguments)]
    return subprocess.run(command, input=input, capture_output=True, text=True, timeout=GUARD, check=False)


def code(*arguments: str | Path) -> object:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("--version") == 0
    assert capsys.readouterr().out == f"mcproxy {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "told", "by_typer"),
    [
        (["--version"], __version__, set[str]()),
        (["--help"], "Commands", set[str]()),
        (["call", "--help"], "--json-args", {"pydantic"}),
        ([], "serve", {"pydantic"}),  # what a shell asks to complete `mcproxy ser`
    ],
)
def test_version_help_and_completion_import_nothing_that_only_commands_need(
    arguments: list[str], told: str, by_typer: set[str]
) -> None:
    script = "import sys; sys.argv[0] = 'mcproxy'; from mcproxy.cli.commands import main; main()"
    command = [sys.executable, "-X", "importtime", "-c", script, *arguments]
    completion = {"_MCPROXY_COMPLETE": "complete_bash", "COMP_WORDS": "mcproxy ser", "COMP_CWORD": "1"}
    environment = os.environ | ({} if arguments else completion)
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=True, env=environment)
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert told in done.stdout
    assert "mcproxy" in imported
    heavy = {"aiohttp", "anyio", "asyncio", "jinja2", "msgspec", "pydantic", "rich", "structlog", "yaml"}
    assert (imported & heavy) - by_typer == set()


def test_no_type_of_an_option_is_a_text_that_every_start_would_compile() -> None:
    groups = [commands, *(group.typer_instance for group in commands.registered_groups if group.typer_instance)]
    runs = [command.callback for group in groups for command in group.registered_commands if command.callback]
    assert len(runs) > 20
    assert [run.__name__ for run in runs if any(isinstance(type, str) for type in run.__annotations__.values())] == []


def test_other_packages_get_no_say_in_how_settings_are_read(tmp_path: Path, broken: Path) -> None:
    described = tmp_path / "meddler-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: meddler\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[pydantic]\nmeddler = meddler:plugin\n")
    (tmp_path / "meddler.py").write_text("raise SystemExit('the plugin was imported')")
    command = [sys.executable, "-m", "mcproxy", "check", "--config", str(broken)]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False, env=environment)
    assert (done.returncode, "is valid" in done.stdout) == (0, True), done.stderr


def test_the_help_says_in_a_line_what_each_command_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("--help") == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) > 20
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert code("schema") == 0
    assert "mcpServers" in json.loads(capsys.readouterr().out)["properties"]


def test_check_without_connecting_reads_the_file_alone(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("check", "--config", broken, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["valid"], told["upstreams"]) == (True, ["gone"])
    (warning,) = told["warnings"]
    assert warning == {
        "file": str(broken),
        "line": 1,
        "column": 21,
        "key": "mcpServers.gone.command",
        "sentence": "the command /no/such/command does not exist, or cannot be executed: "
        "install it, or correct the path",
    }


def test_r86_a_warning_is_an_error_where_check_is_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text(f"mcpServers: {{x: {{command: {sys.executable}}}}}\nendpoints: {{team: {{upstreams: [y]}}}}\n")
    assert code("check", "-c", path) == 0
    warning = f"warning: {path}:2:32: endpoints.team.upstreams.0: no server matches 'y'"
    told = capsys.readouterr()
    assert warning in told.err
    assert told.out == f"{path} is valid: 1 server, 1 warning\n"
    assert code("check", "-c", path, "--strict") == 2
    told = capsys.readouterr()
    assert (told.out, warning in told.err) == ("", True)
    assert code("check", "-c", path, "--strict", "--connect") == 2


def test_r87_check_prints_json_of_one_shape_whatever_it_found(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    invalid = tmp_path / "invalid.yaml"
    invalid.write_text("prosy: {}\n")
    warned = tmp_path / "warned.yaml"
    warned.write_text("mcpServers: {}\nendpoints: {team: {upstreams: [y]}}\n")
    told = []
    for arguments in ([broken], [warned, "--strict", "--connect"], [invalid, "--connect"], [broken, "--connect"]):
        code("check", "--json", "-c", *arguments)
        told.append(json.loads(capsys.readouterr().out))
    assert [set(each) for each in told] == [{"valid", "problems", "warnings", "upstreams", "reports"}] * 4
    assert [len(each["reports"]) for each in told] == [0, 0, 0, 1]


def test_a_configuration_without_servers_is_told_how_to_add_some(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("")
    assert code("check", "-c", path) == 0
    assert capsys.readouterr().out == f"{path} is valid: 0 servers; `mcproxy add` or `mcproxy import` adds some\n"


def test_r87_problems_are_json_where_that_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("prosy: {}\n")
    assert code("check", "-c", path, "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert told["valid"] is False
    (problem,) = told["problems"]
    assert (problem["line"], problem["key"]) == (1, "prosy")


def test_r50_a_wrong_configuration_is_told_whole_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("mcpServers: {x: {comand: y}}\nprosy: {}\n")
    assert code("check", "-c", path) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert f'{path}:1:18: mcpServers.x.comand: unknown key; did you mean "command"?' in output.err
    assert f'{path}:2:1: prosy: unknown key; did you mean "proxy"?' in output.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["list", "nothing"],
        ["list", "tool"],
        ["list", "tools", "--url", "127.0.0.1:8000/mcp"],
        ["connect", "cursor", "--url", "localhost"],
        ["call", "t", "--json-args", "[]"],
        ["call", "t", "--json-args", "{"],
        ["call", "t", "--arg", "no-equals-sign"],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert code(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err


@pytest.mark.parametrize("command", [["serve"], ["login", "x"]])
@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_r87_what_is_no_port_is_told_with_what_is_one(
    command: list[str], port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(*command, "--port", port) == 2
    told = capsys.readouterr().err
    assert f"'--port': {port if port != 'http' else repr(port)} is no port: " in told


def test_check_connects_and_reports_each_upstream(config: Path) -> None:
    done = run("check", "--connect", "--json", "-c", config)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["valid"], told["problems"], told["warnings"], told["upstreams"]) == (True, [], [], ["odd"])
    (report,) = told["reports"]
    assert (report["name"], report["ok"], report["transport"]) == ("odd", True, "stdio")
    assert report["tools"] > 0
    assert report["latency"] > 0


def test_r44_check_fails_with_the_reason_and_without_the_secret(broken: Path) -> None:
    done = run("check", "--connect", "-c", broken)
    assert done.returncode == 1
    assert done.stdout.startswith("gone\tfailed\tstdio")
    assert "/no/such/command" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_list_shows_what_clients_see(config: Path) -> None:
    done = run("list", "tools", "-c", config)
    assert done.returncode == 0, done.stderr
    assert "odd__echo\tSays what it was told." in done.stdout.splitlines()


def test_call_goes_through_the_gateway(config: Path) -> None:
    done = run("call", "odd__echo", "--arg", "text=7", "--json", "-c", config)
    assert done.returncode == 0, done.stderr
    assert '"7"' in json.dumps(json.loads(done.stdout)), "the schema says string"


def test_r87_a_tool_that_fails_exits_with_1_and_an_unknown_one_with_3(config: Path) -> None:
    assert run("call", "odd__fail", "-c", config).returncode == 1
    unknown = run("call", "odd__ecoh", "-c", config)
    assert unknown.returncode == 3
    assert "Unknown tool: odd__ecoh; did you mean 'odd__echo'?" in unknown.stderr


def test_r87_a_tool_or_resource_of_no_server_exits_with_3_and_starts_none(tmp_path: Path) -> None:
    path, started = starting(tmp_path)
    done = run("call", "ood__echo", "-c", path)
    assert (done.returncode, "did you mean 'odd__'?" in done.stderr) == (3, True)
    assert run("read", "ood+file:///x", "-c", path).returncode == 3
    assert not started.exists()


def test_a_call_starts_the_server_of_its_name_alone(tmp_path: Path) -> None:
    path, started = starting(tmp_path)
    done = run("call", "odd__echo", "--arg", "text=7", "-c", path)
    assert (done.returncode, done.stdout) == (0, '{"said": {"text": "7"}}\n'), done.stderr
    assert run("read", "odd+odd:memo", "-c", path).returncode == 0
    assert not started.exists()


def starting(folder: Path) -> tuple[Path, Path]:
    """A configuration of a good server and a neighbour that never answers, and the file that it makes on starting."""
    started = folder / "started"
    script = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    odd = {
        "command": sys.executable,
        "args": ["-m", "tests.system.odd_server"],
        "cwd": str(Path(__file__).parents[2]),
    }
    slow = {"command": sys.executable, "args": ["-c", script]}
    path = folder / "mcproxy.json"
    path.write_text(json.dumps({"mcpServers": {"odd": odd, "slow": slow}}))
    return path, started


def test_r87_a_list_fails_where_every_server_failed_and_says_why(broken: Path) -> None:
    done = run("list", "tools", "-c", broken)
    assert (done.returncode, done.stdout) == (1, "")
    assert "gone: the command /no/such/command does not exist" in done.stderr


def test_r87_nothing_to_list_is_neither_success_nor_failure(tmp_path: Path) -> None:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("mcpServers: {}\n")
    done = run("list", "prompts", "-c", path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "no prompts\n")


def test_the_result_of_a_call_begins_a_line_of_its_own_after_the_progress(config: Path) -> None:
    screen, keyboard = os.openpty()
    command = [sys.executable, "-m", "mcproxy", "call", "odd__report", "-c", str(config)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=keyboard, stdout=keyboard, stderr=keyboard, env=environment) as done:
        os.close(keyboard)
        written = b""
        with suppress(OSError):  # the other side is closed
            while chunk := os.read(screen, 65536):
                written += chunk
    os.close(screen)
    assert done.returncode == 0, written
    progress, _, _ = written.rpartition(b"report: done")
    assert b"\x1b[?25l" in progress, "no progress was shown"
    assert progress.endswith((b"\x1b[2K", b"\n")), written


def test_read_prints_a_resource(config: Path) -> None:
    listed = json.loads(run("list", "resources", "--json", "-c", config).stdout)
    uri = next(entry["uri"] for entry in listed if "uri" in entry)
    done = run("read", uri, "--json", "-c", config)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["contents"]


def test_r12_over_stdio_nothing_but_mcp_is_on_stdout_and_the_end_of_stdin_is_the_end(config: Path) -> None:
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    done = run("serve", "--stdio", "-c", config, input=json.dumps(initialize) + "\n")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"]["protocolVersion"] == "2025-11-25"


def wait_for(event: str, gateway: subprocess.Popen[str]) -> None:
    assert gateway.stderr is not None
    log = [gateway.stderr.readline()]
    while event not in log[-1]:
        log.append(gateway.stderr.readline())
        assert log[-1], log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_r9_a_signal_to_end_stops_the_gateway_with_0(config: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "mcproxy", "serve", "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as gateway:
        wait_for("upstream connected", gateway)
        gateway.send_signal(number)
        _, rest = gateway.communicate(timeout=GUARD)
    assert gateway.returncode == 0, rest


def test_r54_a_gateway_takes_as_many_descriptors_as_it_may_and_its_children_get_what_it_was_given(config: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    serve = f'ulimit -S -n 256; exec "{sys.executable}" -m mcproxy serve -c "{config}"'
    with subprocess.Popen(["sh", "-c", serve], stderr=subprocess.PIPE, text=True) as gateway:
        wait_for("upstream connected", gateway)
        (child,) = (pid for pid in descendants(gateway.pid) if "reaper" not in command_line(pid))
        limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in (gateway.pid, child)]
        gateway.terminate()
        gateway.communicate(timeout=GUARD)
    assert limits == [(hard, hard), (256, hard)]


def test_r9_a_terminal_that_closes_ends_the_gateway_that_was_started_on_it(config: Path) -> None:
    screen, keyboard = os.openpty()
    # What leads a session gets the first terminal that it opens; then that is its own.
    lead = (
        "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", lead, "-m", "mcproxy", "serve", "-c", str(config)]
    with subprocess.Popen(
        command, stdin=keyboard, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as gateway:
        os.close(keyboard)
        wait_for("upstream connected", gateway)
        gateway.send_signal(signal.SIGHUP)
        wait_for("nothing changed", gateway)
        os.close(screen)
        wait_for("stopping", gateway)
        gateway.send_signal(signal.SIGHUP)
        _, rest = gateway.communicate(timeout=GUARD)
    assert gateway.returncode == 0, rest


def test_r49_a_signal_has_a_gateway_without_a_terminal_read_its_configuration_again(config: Path) -> None:
    command = [sys.executable, "-m", "mcproxy", "serve", "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as gateway:
        wait_for("upstream connected", gateway)
        gateway.send_signal(signal.SIGHUP)
        wait_for("nothing changed", gateway)
        gateway.send_signal(signal.SIGUSR1)
        wait_for('"threshold": "debug", "event": "log level changed"', gateway)
        gateway.terminate()
        _, rest = gateway.communicate(timeout=GUARD)
    assert gateway.returncode == 0, rest


@pytest.mark.parametrize("arguments", [("list", "tools"), ("list", "tools", "--json"), ("check", "--connect")])
def test_output_that_is_not_read_is_no_traceback(config: Path, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "mcproxy", *arguments, "-c", str(config)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=GUARD, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("arguments", [("list", "tools"), ("check", "--json"), ("check",), ("read", "odd+odd:memo")])
def test_r87_output_that_a_full_disk_takes_no_more_of_is_told(config: Path, arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "mcproxy", *arguments, "-c", str(config)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=GUARD, check=False)
    said = "the output could not be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("section", ["proxy", "admin"])
def test_r87_a_port_in_use_is_told_with_file_key_and_remedy(config: Path, section: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        document = json.loads(config.read_text())
        document[section] = {"port": port}
        config.write_text(json.dumps(document))
        done = run("serve", "-c", config, *(["--port", "0"] if section == "admin" else []))
    assert done.returncode == 1
    assert f"{config}:1:" in done.stderr
    assert f": {section}.port: 127.0.0.1:{port} is in use: stop the program that listens there" in done.stderr
    assert "Traceback" not in done.stderr
